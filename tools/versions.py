"""The one version: pyproject.toml says it, and ``make docs`` writes it wherever else it stands."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tools.pages import ROOT

SOURCE = ROOT / "pyproject.toml"
# Of each file, what stands before the version. Sample outputs in docs/ are as they once came.
PLACES = {
    "pyproject.toml": ('"cachetier-client==',),
    "client/pyproject.toml": ('\nversion = "',),
    "cachetier/__init__.py": ('__version__ = "',),
    "client/cachetier_client/transport/connect.py": ('\nVERSION = "',),
    "deploy/Dockerfile": ("\nARG VERSION=",),
    "deploy/helm/cachetier/Chart.yaml": ("\nversion: ", "\nappVersion: "),
    "deploy/kubernetes.yml": ("image: cachetier:",),
    "deploy/kubernetes-training.yml": ("image: cachetier:",),
    "deploy/kubernetes-leave.yml": ("image: cachetier:",),
    "deploy/host-directories.patch.yml": ("image: cachetier:",),
    "docker-compose.yml": ("{CACHETIER_IMAGE:-cachetier:",),
}
_VERSION = r"\d+(?:\.\w+)+"


def version() -> str:
    """Return the version that both distributions, the image and the chart have."""
    project = tomllib.loads(SOURCE.read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def documents() -> dict[Path, str]:
    """Return the text of each file that repeats the version.

    Raises:
        ValueError: A file has no version where this table says.
    """
    return {ROOT / name: _with_version(ROOT / name, befores) for name, befores in PLACES.items()}


def _with_version(path: Path, befores: tuple[str, ...]) -> str:
    text = path.read_text(encoding="utf-8")
    for before in befores:
        if before not in text:
            raise ValueError(f"{path.name} has no version behind {before!r}")
        text = re.sub(f"({re.escape(before)}){_VERSION}", rf"\g<1>{version()}", text)
    return text


if __name__ == "__main__":
    print(version())  # noqa: T201
