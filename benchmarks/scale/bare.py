"""``python3 -m benchmarks.scale.bare RESULTS``: measure where there is only Python 3.12, and torch.

It uses the standard library alone, neither pip nor a network. It makes an environment in
``.scale/environment``, unpacks the wheels of ``.scale/wheels`` there, and runs ``benchmarks.scale``
in it. Packages of the Python that was called, such as torch, are seen from it as well.
"""

from __future__ import annotations

import os
import shutil
import site
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
CARRIED = ROOT / ".scale"
COMMAND = """#!{python}
import sys
from cachetier.cli.main import main
sys.exit(main())
"""


def environment(carried: Path = CARRIED) -> Path:
    """Make the environment anew, and return its Python."""
    directory = carried / "environment"
    shutil.rmtree(directory, ignore_errors=True)
    venv.create(directory, symlinks=True)
    python = directory / "bin" / "python"
    scheme = {"base": str(directory), "platbase": str(directory)}
    packages = Path(sysconfig.get_path("purelib", "venv", scheme))
    for wheel in sorted((carried / "wheels").glob("*.whl")):
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(packages)
    seen = [str(ROOT), str(ROOT / "client"), *site.getsitepackages(), site.getusersitepackages()]
    (packages / "carried.pth").write_text("\n".join(seen) + "\n")
    command = directory / "bin" / "cachetier"
    command.write_text(COMMAND.format(python=python))
    command.chmod(0o755)
    return python


if __name__ == "__main__":
    made = environment()
    os.chdir(ROOT)
    os.execv(made, [str(made), "-m", "benchmarks.scale", *sys.argv[1:]])
