"""How the distributions are installed: the one place that turns over at the release.

``released`` under ``[tool.cachetier]`` in pyproject.toml says whether an index has them. Until then
a name in an index may be anybody's, so every page installs from a clone or from built wheels.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from tools.pages import DOCS, ROOT, with_parts
from tools.versions import version

PAGE = DOCS / "install.md"

_FROM_CLONE = """\
No index has these distributions yet: a `cachetier` that pip finds in one is somebody else's. Install from a clone:

```sh
pip install ./client               # the client, for ranks
pip install './client[torch]'      # with an extra
pip install ./client .             # the service and the command, on a node
pip install ./client '.[otel]'     # with an extra
```

Where there is no clone, as in the build of a training image, install wheels that a clone built:

```sh
pip wheel --no-deps --wheel-dir dist ./client .
pip install 'dist/cachetier_client-{version}-py3-none-any.whl[torch]'
pip install dist/cachetier_client-{version}-py3-none-any.whl dist/cachetier-{version}-py3-none-any.whl
```

An upgrade is the same with `--upgrade`. No registry has the image either. Build it, and push it to one of yours:

```sh
docker build --file deploy/Dockerfile --tag cachetier:{version} .
```"""
_FROM_INDEX = """\
```sh
pip install cachetier-client               # the client, for ranks
pip install 'cachetier-client[torch]'      # with an extra
pip install cachetier                      # the service and the command, on a node
pip install 'cachetier[otel]'              # with an extra
```

An upgrade is the same with `--upgrade`. The image is built from a clone:

```sh
docker build --file deploy/Dockerfile --tag cachetier:{version} .
```"""


def released() -> bool:
    """Return whether an index has the distributions, as pyproject.toml says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return bool(project["tool"]["cachetier"]["released"])


def documents() -> dict[Path, str]:
    """Return the page with the commands of the day."""
    return {PAGE: with_parts(PAGE, {"install": install(released=released())})}


def install(*, released: bool) -> str:
    return (_FROM_INDEX if released else _FROM_CLONE).format(version=version())
