"""The latest decisions of ``compression = "auto"`` and their reasons, for ``serve`` to show."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cachetier.drain.upload.compression_model import CompressionVerdict

RUNS_KEPT = 32


class CompressionLog:
    """Counts of blocks, and the last decision of each of the last runs. Thread-safe.

    The drain has one of what ``serve`` has not heard, and ``serve`` one of all that it heard.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._blocks = {"compressed": 0, "stored": 0}
        self._runs: OrderedDict[str, CompressionVerdict] = OrderedDict()

    def note(self, run: str, verdict: CompressionVerdict) -> None:
        """Remember what was decided for ``run``."""
        with self._lock:
            self._runs.pop(run, None)
            self._runs[run] = verdict
            if len(self._runs) > RUNS_KEPT:
                self._runs.popitem(last=False)

    def count(self, *, compressed: bool, blocks: int = 1) -> None:
        """Count blocks that were compressed, or stored as they are."""
        with self._lock:
            self._blocks["compressed" if compressed else "stored"] += blocks

    def news(self) -> tuple[Mapping[str, int], Mapping[str, CompressionVerdict]] | None:
        """Return the blocks and runs that are new since the last time; None if none are."""
        with self._lock:
            if not self._runs and not any(self._blocks.values()):
                return None
            news = self._blocks, self._runs
            self._begin()
            return news

    def hear(self, blocks: Mapping[str, int], runs: Mapping[str, CompressionVerdict]) -> None:
        """Take what another's ``news`` returned."""
        for kind in ("compressed", "stored"):
            self.count(compressed=kind == "compressed", blocks=blocks[kind])
        for run, verdict in runs.items():
            self.note(run, verdict)

    def as_json(self) -> dict[str, Any]:
        """Return the status object's ``drain.compression``."""
        with self._lock:
            runs = {run: asdict(verdict) for run, verdict in self._runs.items()}
            return {"blocks": dict(self._blocks), "runs": runs}
