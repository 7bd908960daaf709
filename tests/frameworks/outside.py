"""Examples that run with a framework: in its own environment, or in this one if it is here."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "frameworks"
PYTHON = "FRAMEWORK_PYTHON"  # set by `make frameworks`
SECONDS = 280.0


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
    with tempfile.TemporaryDirectory(prefix="outside-") as folder:
        started = [
            _started(
                [*command, *map(str, arguments)],
                {**common, **(_place(rank, ranks, port) if ranks else {})},
                Path(folder) / str(rank),
            )
            for rank in range(ranks or 1)
        ]
        try:
            codes = [process.wait(SECONDS) for process in started]
        finally:
            for process in started:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # and what it left behind
                process.wait()
        told = [Path(folder, str(rank)).read_text() for rank in range(ranks or 1)]
    assert codes == [code] * len(codes), "\n".join(each[-8000:] for each in told)
    return [_last(out) for out in told]


def _started(
    command: list[str], environment: Mapping[str, str], output: Path
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own; its output goes to a file, which nobody waits on."""
    with output.open("wb") as file:
        return subprocess.Popen(
            command, env=environment, stdout=file, stderr=file, start_new_session=True
        )


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
