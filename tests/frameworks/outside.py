"""Examples that run with a framework: in its own environment, or in this one if it is here."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "frameworks"
PYTHON = "FRAMEWORK_PYTHON"  # set by `make frameworks`
SECONDS = 300.0


def needs(package: str, name: str) -> pytest.MarkDecorator:
    """Return a mark that skips where a framework is not installed."""
    there = PYTHON in os.environ or importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(
        not there, reason=f"{package} is not installed: make frameworks ONLY={name}"
    )


def run_example(
    script: str, *arguments: object, environment: Mapping[str, str], ranks: int = 0, code: int = 0
) -> list[dict[str, Any]]:
    """Run an example, one process for each rank; return what each printed last, as JSON.

    Args:
        ranks: As torchrun would start; 0: a process that knows of none.
        code: What every process must end with.
    """
    command = [os.environ.get(PYTHON, sys.executable), str(EXAMPLES / script)]
    common = {
        **os.environ,
        **environment,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "client"))),
        "PYTHONWARNINGS": "ignore",
    }
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen(
            [*command, *map(str, arguments)],
            env={**common, **(_place(rank, ranks, port) if ranks else {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks or 1)
    ]
    try:
        told = [process.communicate(timeout=SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    for process, (out, err) in zip(started, told, strict=True):
        assert process.returncode == code, f"{out[-4000:]}\n{err[-8000:]}"
    return [_last(out) for out, _ in told]


def _place(rank: int, ranks: int, port: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _last(out: str) -> dict[str, Any]:
    lines = [line for line in out.splitlines() if line.startswith("{")]
    return dict(json.loads(lines[-1])) if lines else {}
