"""Count the files and functions that run on a byte's way: ``python -m tools.house.byte_path``.

A real ``serve`` with its drain, a real socket, an S3 server (moto) beside, and a client in a
process of its own. After a warm-up by the same calls, three passes are counted:

- *put*: one ``put_shard`` of 16 MiB, from the call to its return;
- *get*: one ``get_shard`` of it, which is local;
- *publish*: from the rank's ``seal`` until ``wait`` says that the step is durable.

What counts: each function of ``cachetier`` and ``cachetier_client`` (but ``cachetier.testing``)
that runs in any thread of the three processes during the pass, once, wherever it runs. Lambdas,
comprehensions, generator expressions and class bodies belong to their function. What dataclasses
generate has no file and does not count. What a thread also runs while nothing is asked of the
service (five seconds are watched) is a tick, and does not count for that thread; threads that act
when time has passed (``TIMERS``) never count, and the drain, which a put wakes, sleeps until the
publication: else the machine's speed would decide what is met.

``--tree`` measures another checkout, of this layout or an older one.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from cachetier_client import Client

ROOT = Path(__file__).resolve().parents[2]
RECORDER = Path(__file__).resolve().parent / "recorder"
IDLE_SECONDS = 5.0
SETTLE_SECONDS = 3.0
WAIT_SECONDS = 300.0  # the drain gives way to whatever else the machine does
SIZE_BYTES = 16 << 20
PASSES = ("idle", "put", "get", "publish")
FOLDER = "BYTE_PATH_FOLDER"
TIMERS = ("drain-giving-way", "housekeeping", "remote-looks", "unflushed", "unflushed-note_#")


class Call(NamedTuple):
    """A function, and the thread and process that ran it."""

    pass_name: str
    process: str
    thread: str
    path: str
    line: int
    function: str

    @property
    def who(self) -> tuple[str, str, str, int]:
        return self.process, self.thread, self.path, self.line

    @property
    def what(self) -> tuple[str, int, str]:
        return self.path, self.line, self.function


def passes_of(tree: Path) -> dict[str, set[tuple[str, int, str]]]:
    """Run the three passes on a checkout; return the functions (path, line, name) of each."""
    from benchmarks.node import node
    from cachetier.testing.moto_server import moto_server

    with tempfile.TemporaryDirectory(prefix="byte-path-") as scratch:
        folder = Path(scratch)
        (folder / "pass").write_bytes(b"\0")
        packages = (RECORDER, tree, tree / "client")
        os.environ["PYTHONPATH"] = os.pathsep.join(map(str, packages))
        os.environ["PYTHONSAFEPATH"] = "1"  # the drain would find this folder's packages first
        os.environ[FOLDER] = scratch
        settings = {"remote_assume": "readback"}  # moto judges no digests
        with (
            moto_server() as remote,
            node(folder / "cache", remote=remote, settings=settings) as served,
        ):
            drain = map(str, served.drain_pids())
            command = (sys.executable, __file__, "--drive", served.url, *drain)
            subprocess.run(command, check=True)
        return _functions(_calls(folder), tree)


def _calls(folder: Path) -> Iterator[Call]:
    for file in folder.glob("*.calls"):
        for line in file.read_text(encoding="utf-8").splitlines():
            number, process, thread, path, at, function = line.split("\t")
            yield Call(PASSES[int(number) - 1], process, thread, path, int(at), function)


def _functions(calls: Iterator[Call], tree: Path) -> dict[str, set[tuple[str, int, str]]]:
    noted = list(calls)
    ticks = {call.who for call in noted if call.pass_name == "idle"}
    return {
        name: {
            (os.path.relpath(call.path, tree), call.line, call.function)
            for call in noted
            if call.pass_name == name and call.who not in ticks and call.thread not in TIMERS
        }
        for name in PASSES[1:]
    }


def drive(url: str, drain: Sequence[int]) -> None:
    """Be the client: warm up, then do each pass while the recorder is told which one it is."""
    from cachetier_client import Client

    data = os.urandom(SIZE_BYTES)
    with Client(url) as client:
        for step in (1, 2):
            save(client, step, data, drain, lambda _name: nullcontext())
        time.sleep(SETTLE_SECONDS)
        with recorded("idle"):
            time.sleep(IDLE_SECONDS)
        save(client, 3, data, drain, recorded)


def save(
    client: Client,
    step: int,
    data: bytes,
    drain: Sequence[int],
    during: Callable[[str], AbstractContextManager[None]],
) -> None:
    """Put a shard, get it, seal and wait until the step is published."""
    run = f"run-{os.getpid()}"  # the bucket may be an earlier try's
    with asleep(drain):
        with during("put"):
            client.put_shard(
                data, run=run, step=step, name="weights", rank=0, world_size=1, save_id=str(step)
            )
        time.sleep(SETTLE_SECONDS / 10)
        with during("get"):
            client.get_shard(run, step, "weights")
    with during("publish"):
        client.seal(run, step, rank=0, world_size=1, save_id=str(step))
        client.wait(run, step, "durable", WAIT_SECONDS)


@contextmanager
def asleep(pids: Sequence[int]) -> Iterator[None]:
    """Stop processes meanwhile."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def recorded(name: str) -> Iterator[None]:
    """Have the recorder write down what runs inside as the pass ``name``."""
    path = Path(os.environ[FOLDER]) / "pass"

    def tell(number: int) -> None:
        with path.open("r+b") as file:
            file.write(bytes([number]))

    tell(PASSES.index(name) + 1)
    try:
        yield
    finally:
        tell(0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Count what runs on a byte's way.")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout to measure")
    parser.add_argument("--list", action="store_true", help="list the functions of each pass")
    parser.add_argument("--drive", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("drain", type=int, nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        drive(options.drive, options.drain)
        return
    for name, functions in passes_of(options.tree.resolve()).items():
        files = {path for path, _line, _function in functions}
        click.echo(f"{name:8} {len(files):4} files {len(functions):5} functions")
        if options.list:
            for path, line, function in sorted(functions):
                click.echo(f"    {path}:{line} {function}")


if __name__ == "__main__":
    main()
