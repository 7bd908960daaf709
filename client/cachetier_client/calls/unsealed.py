"""Say what was saved and will not be found.

What was put and never sealed is safe, but nobody lists or restores it. It is told once, as a
warning in the log: when a newer step of the run is sealed, when the client is closed, and when the
interpreter exits. So is a folder named ``cachetier:``, which a framework makes that takes an
address for a local path.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from pathlib import Path

from cachetier_client.identity.addresses import SCHEME
from cachetier_client.identity.names import SaveIds
from cachetier_client.identity.places import place_of
from cachetier_client.identity.step_names import StepName
from cachetier_client.units import counted

log = logging.getLogger(__name__)

PartKey = tuple[str, int, str, int]


class Unsealed:
    """The parts of saves that one client has put shards into since they were sealed. Thread-safe.

    A part that is sealed or taken back is ``over``.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._shards: dict[PartKey, int] = {}
        _live.add(self)

    def put(self, part: SaveIds) -> None:
        """Note a shard."""
        with self._lock:
            key = _key(part)
            self._shards[key] = self._shards.get(key, 0) + 1

    def over(self, part: SaveIds) -> None:
        """Note that a part was sealed or taken back."""
        with self._lock:
            self._shards.pop(_key(part), None)

    def tell(self, before: SaveIds | None = None) -> None:
        """Warn of what is unsealed: all of it, or steps of a run before the one just sealed."""
        with self._lock:
            late = [
                key
                for key in self._shards
                if before is None or (key[0] == before.run and key[1] < before.step)
            ]
            counts = {key: self._shards.pop(key) for key in late}
        for (run, step, _, rank), shards in counts.items():
            path = place_of(run, step, StepName.chosen()).path
            what = f"{counted(shards, 'shard')} of cachetier://{path}"
            are = "was" if shards == 1 else "were"
            log.warning("%s %s never sealed by rank %d: %s", what, are, rank, _HINT)

    def forget(self) -> None:
        """Say nothing any more: the client belongs to the parent process."""
        _live.discard(self)


def tell_of_local_folder() -> None:
    """Warn if something took an address for a local path, and has written there."""
    folder = Path(f"{SCHEME}:")
    if folder.is_dir():
        what = "is a folder: something took an address of cachetier for a local path, and what it"
        log.warning("%s %s has written there is nowhere else", folder.absolute(), what)


_HINT = (
    "safe on this node, but no step that anybody lists, restores or sends to the bucket. Call "
    "seal, or put them inside `with client.checkpoint(...)`; for files see docs/fsspec.md, 'When a "
    "step is there'."
)

_live: weakref.WeakSet[Unsealed] = weakref.WeakSet()


def _key(part: SaveIds) -> PartKey:
    return part.run, part.step, part.save_id, part.rank


@atexit.register
def _at_exit() -> None:
    if _live:
        tell_of_local_folder()
    for each in list(_live):
        each.tell()
