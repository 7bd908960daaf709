"""The latest decisions of ``compression = "auto"`` and their reasons, for ``serve`` to show."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import asdict
from typing import Any

from cachetier.drain.messages import ReportCompression
from cachetier.drain.upload.compression_model import Verdict

RUNS_KEPT = 32


class Decisions:
    """Collects what to tell ``serve``: counts, and of each run the last decision. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._frames = {"compressed": 0, "stored": 0}
        self._runs: OrderedDict[str, Verdict] = OrderedDict()

    def note(self, run: str, verdict: Verdict) -> None:
        """Remember what was decided for ``run``."""
        with self._lock:
            _keep(self._runs, run, verdict)

    def count(self, *, compressed: bool, blocks: int = 1) -> None:
        """Count blocks that were compressed, or stored as they are."""
        with self._lock:
            self._frames["compressed" if compressed else "stored"] += blocks

    def news(self) -> ReportCompression | None:
        """Return what is new since the last time; None if nothing is."""
        with self._lock:
            if not self._runs and not any(self._frames.values()):
                return None
            news = ReportCompression(self._frames, dict(self._runs))
            self._frames = {"compressed": 0, "stored": 0}
            self._runs = OrderedDict()
            return news


class Decided:
    """What ``serve`` heard since it started; not thread-safe."""

    def __init__(self) -> None:
        self._blocks = {"compressed": 0, "stored": 0}
        self._runs: OrderedDict[str, Verdict] = OrderedDict()

    def hear(self, news: ReportCompression) -> None:
        """Take what ``Decisions.news`` returned."""
        for kind, count in news.blocks.items():
            self._blocks[kind] += count
        for run, verdict in news.runs.items():
            _keep(self._runs, run, verdict)

    def as_json(self) -> dict[str, Any]:
        """Return the status object's ``drain.compression``."""
        return {
            "blocks": dict(self._blocks),
            "runs": {run: asdict(verdict) for run, verdict in self._runs.items()},
        }


def _keep(runs: OrderedDict[str, Verdict], run: str, verdict: Verdict) -> None:
    """Keep the last decision of each of the last runs."""
    runs.pop(run, None)
    runs[run] = verdict
    if len(runs) > RUNS_KEPT:
        runs.popitem(last=False)
