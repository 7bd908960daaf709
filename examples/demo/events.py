"""What each rank writes down while it trains, and how the demo follows it.

One JSON object a line; ``at`` is the machine's monotonic clock, the same for all processes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

Event = dict[str, Any]


class EventLog:
    """Appends events to one rank's file."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = path_of(folder, rank).open("a", buffering=1)

    def write(self, kind: str, **fields: object) -> None:
        """Write one line, at once."""
        self._file.write(json.dumps({"kind": kind, "at": time.monotonic(), **fields}) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class Follower:
    """Reads the events of all ranks as they come."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self._folder = folder
        self._offsets = dict.fromkeys(range(ranks), 0)

    def new(self) -> Iterator[tuple[int, Event]]:
        """Yield (rank, event) for each whole line written since the last call."""
        for rank, offset in self._offsets.items():
            path = path_of(self._folder, rank)
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(offset)
                lines = file.read()
            whole = lines[: lines.rfind(b"\n") + 1]
            self._offsets[rank] = offset + len(whole)
            for line in whole.splitlines():
                yield rank, json.loads(line)


def path_of(folder: Path, rank: int) -> Path:
    """Return where a rank's events are."""
    return folder / f"rank-{rank}.jsonl"
