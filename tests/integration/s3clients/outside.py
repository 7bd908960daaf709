"""Clients in processes of their own, of their own environment, or of this one if it has them."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.s3clients.place import Place

PYTHON = "S3CLIENT_PYTHON"  # set by `make s3clients`
PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 100.0
_OF_OTHERS = ("AWS_", "CACHETIER_")


def needs_package(package: str, name: str) -> pytest.MarkDecorator:
    """Return a mark that skips where a client that is a package is not installed."""
    there = PYTHON in os.environ or importlib.util.find_spec(package) is not None
    return _needs(there, package, name)


def needs_program(name: str) -> pytest.MarkDecorator:
    """Return a mark that skips where a client that is a program is not installed."""
    return _needs(found_program(name) is not None, name, name)


def client_python() -> str:
    """Return the Python that has the client."""
    return os.environ.get(PYTHON, sys.executable)


def found_program(name: str) -> str | None:
    """Return where a program is: beside the client's Python, or this one. Others do not count."""
    beside = [str(Path(python).parent) for python in (client_python(), sys.executable)]
    return shutil.which(name, path=os.pathsep.join(beside))


def run(place: Place, *command: object, **more: str) -> str:
    """Run a client with nothing but the place's environment; return what it prints.

    Args:
        more: Variables that this client needs besides.
    """
    kept = {name: text for name, text in os.environ.items() if not name.startswith(_OF_OTHERS)}
    config = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    done = subprocess.run(
        list(map(str, command)),
        env={**kept, **config, **place.environment, **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def run_program(place: Place, name: str, *arguments: object, **more: str) -> dict[str, Any]:
    """Run one of ``programs`` by the client's Python; return what it printed last, as JSON."""
    script = PROGRAMS / name
    printed = run(place, client_python(), script, *arguments, PYTHONWARNINGS="ignore", **more)
    return dict(json.loads(printed.splitlines()[-1]))


def _needs(there: bool, what: str, name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        not there, reason=f"{what} is not installed: make s3clients ONLY={name}"
    )
