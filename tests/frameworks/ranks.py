"""Several ranks of a torch job, each a process with gloo, and what each of them returned.

A test names a function of a module beside it; each rank calls it with the arguments and answers
with something JSON can carry. What a rank raises comes back as ``Failed``, so that a test can look
at the error of each.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from tests.frameworks import rank

SECONDS = 90.0
# A process that has imported torch forks each rank: to import it anew takes each some seconds.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([rank.__name__])


# Each process of pytest begins elsewhere.
_PORTS = (20_000 + (97 * os.getpid() + number) % 12_000 for number in count())


@dataclass(frozen=True)
class Failed:
    """A rank that raised, or was killed (``kind`` is then ``exit``)."""

    kind: str
    message: str


class Job:
    """Ranks under way."""

    def __init__(
        self,
        function: Callable[..., Any],
        world_size: int,
        *,
        environment: Mapping[str, str] | None = None,
        gloo: bool = True,
        **arguments: Any,
    ) -> None:
        self._results = Path(tempfile.mkdtemp(prefix="ranks-"))
        target = f"{function.__module__}:{function.__qualname__}"
        common = {
            **os.environ,
            **(environment or {}),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "GLOO_SOCKET_IFNAME": "lo",
            "RANK_GLOO": "1" if gloo else "",
        }
        self._processes = [
            FORKS.Process(
                target=rank.main,
                args=(
                    target,
                    arguments,
                    {**common, "RANK": str(number), "LOCAL_RANK": str(number)},
                    self._results / f"{number}.json",
                ),
            )
            for number in range(world_size)
        ]
        for process in self._processes:
            process.start()

    def results(self, seconds: float = SECONDS) -> list[Any]:
        """Wait for all ranks, and return what each returned, or ``Failed``."""
        ends_at = time.monotonic() + seconds
        try:
            for process in self._processes:
                process.join(max(0.1, ends_at - time.monotonic()))
                if process.exitcode is None:
                    raise TimeoutError(f"{process.name} did not end in {seconds:.0f} s")
        finally:
            for process in self._processes:
                process.kill()
                process.join()
        return [self._result(number) for number in range(len(self._processes))]

    def _result(self, number: int) -> Any:
        path = self._results / f"{number}.json"
        if not path.exists():
            return Failed("exit", f"code {self._processes[number].exitcode}")
        told = json.loads(path.read_text(encoding="utf-8"))
        return Failed(**told["error"]) if "error" in told else told["result"]


def run_ranks(function: Callable[..., Any], world_size: int, **options: Any) -> list[Any]:
    """Run ``function`` on each rank, and return what each returned; no rank may fail."""
    results = Job(function, world_size, **options).results()
    assert not [each for each in results if isinstance(each, Failed)], results
    return results


def _free_port() -> int:
    """Return a free port below those that the system hands out: nobody else gets it meanwhile."""
    for port in _PORTS:
        with socket.socket() as listening, suppress(OSError):
            listening.bind(("127.0.0.1", port))
            return port
    raise AssertionError("the ports go round for ever")
