"""Whoever looks after the nodes while jobs run: reads back, deletes, pins, flushes, waits."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from cachetier_client.errors import CachetierClientError

from tests.soak.history import EventLog, History, StepHistory
from tests.soak.nodes import Node
from tests.soak.payloads import checksum

PAUSE_SECONDS = 0.7
CALL_SECONDS = 15.0


class Operator:
    """Does one thing after the other in a thread, while its block lasts."""

    def __init__(
        self,
        nodes: Mapping[str, Node],
        events: Path,
        history: History,
        runs: list[str],
        dice: random.Random,
    ) -> None:
        self._nodes = list(nodes.values())
        self._log = EventLog(events / "operator.events")
        self._history = history
        self._runs = runs
        self._dice = dice
        self._pinned: set[tuple[str, int]] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="soak-operator", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _work(self) -> None:
        doings: dict[Callable[..., None], int] = {
            self._read: 60,
            self._delete: 12,
            self._pin: 6,
            self._unpin: 4,
            self._flush: 8,
            self._wait: 10,
        }
        while not self._stopping.wait(PAUSE_SECONDS * self._dice.random()):
            steps = {at: step for at, step in self._history.update().items() if step.saves}
            if not steps:
                continue
            at = self._dice.choice(sorted(steps))
            (do,) = self._dice.choices(list(doings), list(doings.values()))
            try:
                do(self._dice.choice(self._nodes), *at, steps[at])
            except CachetierClientError:
                pass  # noted

    def _call(self, kind: str, node: Node, run: str, step: int, **what: Any) -> Any:
        return self._log.call(kind, node=node.name, run=run, step=step, **what)

    def _read(self, node: Node, run: str, step: int, history: StepHistory) -> None:
        names = sorted({put.name for save in history.saves.values() for put in save.puts()})
        if not names:
            return
        name = self._dice.choice(names)
        with self._call("get", node, run, step, name=name) as found, node.client() as client:
            body = client.get_shard(run, step, name, timeout_seconds=CALL_SECONDS)
            found |= {"sum": checksum(body), "size": len(body)}

    def _delete(self, node: Node, run: str, step: int, history: StepHistory) -> None:
        """Delete a step that is published, through one node, if nobody saves it or keeps it."""
        if len(history.saves) != 1 or (run, step) in self._pinned:
            return
        with node.client() as client:
            if not any(each.step == step for each in client.steps(run, "durable")):
                return
        with self._call("delete", node, run, step), node.client() as client:
            client.delete_step(run, step, timeout_seconds=CALL_SECONDS)

    def _pin(self, node: Node, run: str, step: int, history: StepHistory) -> None:
        if history.maybe_deleted:
            return
        self._pinned.add((run, step))
        with self._call("pin", node, run, step), node.client() as client:
            client.pin(run, step, timeout_seconds=CALL_SECONDS)

    def _unpin(self, node: Node, _run: str, _step: int, _history: StepHistory) -> None:
        if self._pinned:
            run, step = self._dice.choice(sorted(self._pinned))
            with self._call("unpin", node, run, step), node.client() as client:
                client.unpin(run, step, timeout_seconds=CALL_SECONDS)

    def _flush(self, node: Node, run: str, step: int, _history: StepHistory) -> None:
        with self._call("flush", node, run, step), node.client() as client:
            client.flush(run, step, timeout_seconds=CALL_SECONDS)

    def _wait(self, node: Node, run: str, step: int, _history: StepHistory) -> None:
        with self._call("wait", node, run, step), node.client() as client:
            client.wait(run, step, "durable", timeout_seconds=CALL_SECONDS)
