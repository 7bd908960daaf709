"""Which caller's span the first put of each save brought along, remembered over a restart.

It is kept in one small file, replaced whole and never synced: if it is lost, a save that was under
way gets a second trace, and nothing else.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path


class Callings:
    """The first caller of each of the last ``limit`` saves. For one thread at a time."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path = path
        self._limit = limit
        self._firsts = self._read()

    def first(self, save: str, traceparent: str | None) -> str | None:
        """Return the span of the save's first caller: ``traceparent`` if this is the first."""
        if save not in self._firsts:
            self._firsts[save] = traceparent
            while len(self._firsts) > self._limit:
                self._firsts.popitem(last=False)
            self._write()
        return self._firsts[save]

    def _read(self) -> OrderedDict[str, str | None]:
        try:
            kept = json.loads(self._path.read_text())
            return OrderedDict((str(save), first and str(first)) for save, first in kept.items())
        except (OSError, ValueError, AttributeError):
            return OrderedDict()

    def _write(self) -> None:
        newer = self._path.with_suffix(".new")
        with suppress(OSError):
            newer.write_text(json.dumps(self._firsts))
            newer.replace(self._path)
