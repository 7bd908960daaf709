"""How many requests at once a drain found best for its remote, kept for the next drain.

It stands in the file that a drain locks, so one alone writes it. It is a guess to begin with: what
cannot be read, or is of another remote, is none, and nothing is synced.
"""

from __future__ import annotations

import os

import msgspec

from cachetier.remote.settings import RemoteSettings

LIMIT_BYTES = 4096


class _KeptFinding(msgspec.Struct, frozen=True):
    remote: str
    at_once: int


class Found:
    """The record of one remote in ``descriptor``, a locked file."""

    def __init__(self, descriptor: int, remote: RemoteSettings) -> None:
        self._descriptor = descriptor
        self._remote = remote.place
        self._at_once = self._read()

    def at_once(self) -> int | None:
        """Return what was found before; None where nothing was."""
        return self._at_once

    def keep(self, at_once: int) -> None:
        """Have the next drain begin with ``at_once``; a disk that takes nothing is no trouble."""
        if at_once == self._at_once:
            return
        self._at_once = at_once
        body = msgspec.json.encode(_KeptFinding(self._remote, at_once))
        try:
            os.pwrite(self._descriptor, body, 0)
            os.ftruncate(self._descriptor, len(body))
        except OSError:
            pass

    def _read(self) -> int | None:
        try:
            kept = msgspec.json.decode(
                os.pread(self._descriptor, LIMIT_BYTES, 0), type=_KeptFinding
            )
        except (OSError, msgspec.DecodeError):
            return None
        return kept.at_once if kept.remote == self._remote and kept.at_once > 0 else None
