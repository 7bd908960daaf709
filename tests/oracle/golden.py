"""What lives of nodes ask of the bucket, of disks and of SQLite: ``make golden``.

A life of ``tests/stateful/two_nodes.py`` is played by its seed, and in a matrix of faults a step is
saved, drained and read while a call of the bucket fails, before or after it took effect, or its
body is changed on the way. Of each deed is written down which requests reach the bucket, in order,
with their conditions and how they end, and how many syncs and statements it takes.
``lives.json.zst`` keeps that. A restructuring may change none of it, but for differences that
``meant.toml`` lists with a reason.

A life is compared up to its first difference, as it goes on differently then.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
import tempfile
import threading
import tomllib
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import apsw
import zstandard
from cachetier_client.identity.names import SaveIds

from cachetier.drain.schedule.tasks import Task
from cachetier.errors import CachetierError
from cachetier.remote.wrapped import Operation
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import Fault, FaultMoment, FaultyObjectStore
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful import two_nodes
from tests.stateful.node import Node
from tests.stateful.two_nodes import World
from tests.stateful.unsynced import _UnsyncedFile, unsynced

HERE = Path(__file__).parent
KEPT, MEANT = HERE / "lives.json.zst", HERE / "meant.toml"
LIVES = 200
LEEWAY = 1.02  # of syncs and statements in all
MANY = 8  # requests that are alike are shown as one line
OPERATIONS = (
    *("head", "get", "read_into", "put", "create_upload", "upload_part", "copy_part", "list_parts"),
    *("complete_upload", "abort_upload", "list_uploads", "list", "list_page", "delete"),
)
LOOKS = ("head", "get", "read_into", "list", "list_page", "list_parts", "list_uploads")
_CONDITIONS = ("condition", "etag", "if_match", "if_none_match")
_HEX = re.compile(r"\b[0-9a-f]{16}\b")
_NUMBER = re.compile(r"\d+")


@dataclass(slots=True)
class Deed:
    """What was done, and what it asked for: ``beside`` are requests of other threads, sorted."""

    name: str
    requests: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)
    syncs: int = 0
    statements: int = 0


class Log:
    """Writes down what a life asks for. The deed that goes on now is the last."""

    def __init__(self) -> None:
        self.deeds = [Deed("begin")]

    def begin(self, name: str) -> None:
        self.deeds.append(Deed(name))

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear of everything inside."""
        with ExitStack() as stack:
            for operation in OPERATIONS:
                call = getattr(MemoryObjectStore, operation)
                heard = self._heard(operation, call)
                stack.enter_context(patch.object(MemoryObjectStore, operation, heard))
            synced = self._counted(_UnsyncedFile.xSync)
            stack.enter_context(patch.object(_UnsyncedFile, "xSync", synced))
            for name in ("fsync", "fdatasync"):
                stack.enter_context(patch.object(os, name, self._counted(getattr(os, name))))
            apsw.connection_hooks.append(self._opened)
            stack.callback(apsw.connection_hooks.remove, self._opened)
            yield

    def _heard(self, operation: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def heard(store: Any, *arguments: Any, **named: Any) -> Any:
            try:
                answer = call(store, *arguments, **named)
            except Exception as error:
                self._note(operation, arguments, named, type(error).__name__)
                raise
            outcome = "nothing" if answer is None and operation == "head" else "ok"
            self._note(operation, arguments, named, outcome)
            return answer

        return heard

    def _note(
        self, operation: str, arguments: Sequence[Any], named: dict[str, Any], outcome: str
    ) -> None:
        key = _HEX.sub("#", str(arguments[0])) if arguments else ""
        on = [f"{name}" for name in _CONDITIONS if named.get(name) is not None]
        request = " ".join((operation, key, *on, outcome))
        if threading.current_thread() is threading.main_thread():
            self.deeds[-1].requests.append(request)
        else:
            insort(self.deeds[-1].beside, request)

    def _counted(self, sync: Callable[..., None]) -> Callable[..., None]:
        def counted(*arguments: Any) -> None:
            self.deeds[-1].syncs += 1
            sync(*arguments)

        return counted

    def _opened(self, connection: apsw.Connection) -> None:
        def trace(_cursor: Any, _sql: str, _bindings: Any) -> bool:
            self.deeds[-1].statements += 1
            return True

        connection.exec_trace = trace


def played(seed: int) -> list[Deed]:
    """Play a life, and return its deeds; what the model looks at after each is none."""
    log, deeds = Log(), list[Deed]()
    with tempfile.TemporaryDirectory() as top, unsynced() as vfs, log.listening():
        world = World(Path(top), seed, vfs)
        try:
            for _ in range(two_nodes.TURNS):
                deed = world.dice.choice(world.deeds)
                log.begin(deed.__name__)
                deed()
                deeds.append(log.deeds[-1])
                log.begin("look")
                world.look()
            log.begin("settle")
            world.settle()
            deeds.append(log.deeds[-1])
        except BaseException as error:
            error.add_note(f"life {seed}, after {[each.name for each in deeds[-3:]]}")
            raise
        finally:
            world.close()
    return deeds


# --- a matrix of faults ---------------------------------------------------------------------------

CHANGING = ("put", "create_upload", "upload_part", "complete_upload")
WITH_BODY = ("put", "upload_part", "get", "read_into")
ROUNDS, PAUSE_SECONDS = 12, 100.0
SHARDS = {"small": 300, "file": 70_000, "parts": 5 << 20}


def cells() -> dict[str, Fault]:
    """Return the faults by name: the first, middle and last call of each kind, in each way."""
    calls = _step_with([])[1]
    found = {}
    for operation, times in sorted(calls.items()):
        moments = [FaultMoment.BEFORE]
        moments += [FaultMoment.AFTER] if operation in CHANGING else []
        moments += [FaultMoment.BODY] if operation in WITH_BODY else []
        for call in sorted({1, (times + 1) // 2, times}):
            for moment in moments:
                name = f"{operation} {call} of {times}, {moment.name.lower()}"
                found[name] = Fault(operation, call, moment)
    return found


def struck(fault: Fault) -> list[Deed]:
    """Save, drain and read a step that meets a fault; return its deeds."""
    deeds, _calls, fired = _step_with([fault])
    assert fired == [fault], f"{fault} did not take place"
    return deeds


def _step_with(plan: list[Fault]) -> tuple[list[Deed], Counter[Operation], list[Fault]]:
    log, clock = Log(), FakeClock()
    with tempfile.TemporaryDirectory() as top, unsynced() as vfs, log.listening():
        bucket = FaultyObjectStore(MemoryObjectStore(minimum_part_bytes=1), plan)
        node = Node(Path(top) / "cache", bucket, clock, vfs=vfs)
        try:
            for rank in (0, 1):
                log.begin("save")
                ids = SaveIds("run", 1, "save", rank, 2)
                for name, size in SHARDS.items():
                    node.put(ids, f"{name}-{rank}", bytes([rank]) * size)
                node.checkpoints.seal(ids, 2)
            for _ in range(ROUNDS):
                while (task := _next_task(node, log)) is not None:
                    log.begin(task.kind.name.lower())
                    node.real_drain.perform(task)
                clock.advance(PAUSE_SECONDS)
            for row in node.rows():
                log.begin("evict")
                node.evict(row)
            for name in SHARDS:
                for rank in (0, 1):
                    log.begin("read")
                    with suppress(CachetierError):
                        node.get("run", 1, f"{name}-{rank}")
        finally:
            node.die()
    return log.deeds, bucket.calls, bucket.fired


def _next_task(node: Node, log: Log) -> Task | None:
    log.begin("look for work")
    return node.real_drain.next_task()


# --- what is kept ---------------------------------------------------------------------------------

Lives = dict[str, list[Deed]]


def lives(seeds: Sequence[int]) -> Lives:
    """Play lives and the matrix, on all processors."""
    logging.disable(logging.CRITICAL)  # in what is forked too: a life is full of troubles
    matrix = cells()
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
        of_seeds = zip([f"life {seed}" for seed in seeds], pool.map(played, seeds), strict=True)
        return {
            **dict(of_seeds),
            **dict(zip(matrix, pool.map(struck, matrix.values()), strict=True)),
        }


def packed(found: Lives) -> bytes:
    """Return lives as they are kept: each text once, then numbers."""
    number: dict[str, int] = {}

    def numbered(texts: Iterable[str]) -> list[int]:
        return [number.setdefault(text, len(number)) for text in texts]

    written = {
        name: [
            [
                *numbered([deed.name]),
                *(deed.syncs, deed.statements),
                *(numbered(deed.requests), numbered(deed.beside)),
            ]
            for deed in life
        ]
        for name, life in found.items()
    }
    document = json.dumps({"texts": list(number), "lives": written}, separators=(",", ":"))
    return zstandard.ZstdCompressor(level=19).compress(document.encode())


def unpacked(data: bytes) -> Lives:
    document = json.loads(zstandard.ZstdDecompressor().decompress(data))
    texts = document["texts"]

    def deed(name: int, syncs: int, statements: int, *asked: list[int]) -> Deed:
        requests, beside = ([texts[number] for number in numbers] for numbers in asked)
        return Deed(texts[name], requests, beside, syncs, statements)

    return {name: [deed(*each) for each in life] for name, life in document["lives"].items()}


# --- differences ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """A deed that asks the bucket for other things: what it does no more, and what it does now."""

    deed: str
    gone: tuple[str, ...]
    new: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.deed}:", *(f"  - {each}" for each in _shown(self.gone))]
        lines += [f"  + {each}" for each in _shown(self.new)]
        return "\n".join(lines if self.gone or self.new else [*lines, "  another order"])


def _shown(requests: Sequence[str]) -> Iterator[str]:
    """Yield a line for each request, and one for many that are alike."""
    for request, alike in groupby(requests):
        times = len(list(alike))
        if times > MANY:
            yield f"{request}, {times} times"
        else:
            yield from [request] * times


def difference(kept: Deed, now: Deed) -> Difference | None:
    """Compare which requests there are, and the order of those that change anything.

    A look at the bucket may be made by this thread or another one, whichever comes first.
    """
    before, after = (Counter([*each.requests, *each.beside]) for each in (kept, now))
    same_order = _changing(kept) == _changing(now)
    if kept.name == now.name and before == after and same_order:
        return None
    gone, new = (before - after).elements(), (after - before).elements()
    return Difference(kept.name, tuple(map(_pattern, gone)), tuple(map(_pattern, new)))


def _changing(deed: Deed) -> list[str]:
    return [each for each in deed.requests if each.split(" ", 1)[0] not in LOOKS]


def _pattern(request: str) -> str:
    """Return a request without the numbers of step, save and rank."""
    return _NUMBER.sub("N", request)


def compared(kept: Lives, now: Lives) -> Comparison:
    """Compare the lives that both have, each up to its first difference."""
    found = Comparison(unknown=sorted(kept.keys() ^ now.keys()))
    for name in kept.keys() & now.keys():
        for one, other in zip_longest(kept[name], now[name], fillvalue=Deed("nothing")):
            differs = difference(one, other)
            if differs is not None:
                found.differences[differs] += 1
                break
            found.deeds += 1
            found.syncs += other.syncs - one.syncs
            found.statements += other.statements - one.statements
            found.kept_syncs += one.syncs
            found.kept_statements += one.statements
    return found


@dataclass(slots=True)
class Comparison:
    """What is different, how often, and how much more the same deeds cost.

    ``unknown``: lives that only one side has, as calls of the matrix came or went.
    """

    unknown: list[str] = field(default_factory=list)
    differences: Counter[Difference] = field(default_factory=Counter)
    deeds: int = 0
    syncs: int = 0
    statements: int = 0
    kept_syncs: int = 0
    kept_statements: int = 0

    def unexplained(self, meant: Sequence[str]) -> list[Difference]:
        """Return the differences of which no line of ``meant`` speaks."""
        return [each for each in self.differences if str(each) not in meant]

    def costs_more(self) -> bool:
        more = self.kept_syncs * LEEWAY < self.kept_syncs + self.syncs
        return more or self.kept_statements * LEEWAY < self.kept_statements + self.statements


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare what lives of two nodes ask for.")
    parser.add_argument("--write", action="store_true", help="keep what they ask for now")
    parser.add_argument("--lives", type=int, default=LIVES, help="only so many of them")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a life
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})
    now = lives(range(options.lives))
    if options.write:
        KEPT.write_bytes(packed(now))
        deeds = sum(map(len, now.values()))
        print(f"{len(now)} lives, {deeds} deeds, {KEPT.stat().st_size} bytes")
        return
    kept = unpacked(KEPT.read_bytes())
    for seed in range(options.lives, LIVES):
        del kept[f"life {seed}"]
    found = compared(kept, now)
    meant = [each["difference"].strip() for each in tomllib.loads(MEANT.read_text())["meant"]]
    for each, times in found.differences.most_common():
        mark = "meant" if str(each) in meant else "NOT MEANT"
        print(f"{mark}, {times} times: {each}")
    for name in found.unknown:
        print(f"only one side has: {name}")
    print(
        f"{found.deeds} deeds alike; syncs {found.syncs:+} of {found.kept_syncs}, "
        f"statements {found.statements:+} of {found.kept_statements}"
    )
    if found.unexplained(meant):
        sys.exit("what is meant is listed in tests/oracle/meant.toml, with a reason")
    if found.costs_more():
        sys.exit("the same deeds cost more")


if __name__ == "__main__":
    main()
