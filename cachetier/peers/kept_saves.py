"""When kept objects go: once the bucket says that their save has ended, by their owner or by us.

The bucket decides, whatever an owner says or forgets to say. An owner deletes the copies of its own
saves, too, as soon as it knows: its catalog then says where they are not any more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import msgspec
from cachetier_client.bucket_format.documents import (
    Manifest,
    ManifestState,
    SeenManifest,
    manifest_of,
)
from cachetier_client.bucket_format.uploads import SAVE_KEY
from cachetier_client.clock import Clock
from cachetier_client.errors import InvalidNameError
from cachetier_client.identity.names import RESERVED_SEGMENT, parsed_step

from cachetier.errors import CachetierError, IntegrityError, RemoteError
from cachetier.local.catalog import copies
from cachetier.local.store import Store
from cachetier.model.names import PEERS_NAME
from cachetier.peers.finishing import Finisher
from cachetier.peers.keeper import KeptObjects
from cachetier.remote.bucket import Bucket
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
TOMBSTONE_SECONDS = 3600.0  # until no copy of its save is left anywhere


class KeptSaves:
    """Looks after kept objects in the background.

    Args:
        store: The catalog of this node, whose saves others keep.
        keeper: What this node keeps.
        finisher: Takes over what owners that are gone have left.
        bucket: The durable remote.
        ring: Called when the drain has copies to delete.
        clock: For the age of tombstones.
    """

    def __init__(
        self,
        store: Store,
        keeper: KeptObjects,
        finisher: Finisher,
        bucket: Bucket,
        ring: Callable[[], object],
        clock: Clock,
    ) -> None:
        self._store = store
        self._keeper = keeper
        self._finisher = finisher
        self._bucket = bucket
        self._ring = ring
        self._clock = clock
        self._save_ids: dict[tuple[str, str], str | None] = {}  # of kept objects, by key and ETag
        self._seen: dict[tuple[str, int], SeenManifest | None] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="peers-kept", daemon=True)

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; a call that hangs is left behind."""
        self._stopping.set()

    def look(self) -> None:
        """Release what has ended, and finish what nobody else will.

        Raises:
            RemoteError: The bucket cannot say.
        """
        if self._store.read(copies.are_superfluous, PEERS_NAME):
            self._store.write(copies.delete_superfluous, PEERS_NAME)
            self._ring()
        self._keeper.drop_idle_uploads()
        self._finisher.listen()
        for which, saves in self._kept().items():
            try:
                self._look_at(which, saves)
            except IntegrityError as error:  # the other steps do not wait for a person
                tell(log, events.PEERS_TROUBLE, problem=f"copies of a peer: {error.message}")

    def _look_at(self, which: tuple[str, int], saves: Mapping[str, list[str]]) -> None:
        self._seen[which] = self._bucket.manifest(*which, self._seen.get(which))
        durable = manifest_of(self._seen[which])
        for save_id, keys in saves.items():
            if has_ended(save_id, durable) or self._finisher.finish(
                (*which, save_id), durable, keys
            ):
                self._release(keys)

    def _work(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            try:
                self.look()
            except RemoteError:
                continue  # the drain tells of it
            except Exception as error:
                if not self._stopping.is_set():  # else what it needs may be closed
                    tell(log, events.PEERS_TROUBLE, problem=f"copies of peers: {error!r}")

    def _kept(self) -> Mapping[tuple[str, int], Mapping[str, list[str]]]:
        """Return the keys of what is kept, by step and save."""
        found: dict[tuple[str, int], dict[str, list[str]]] = {}
        ids = {}
        for each in self._keeper.listed(""):
            which = each.key, each.etag
            ids[which] = self._save_ids.get(which) or self._save_id_of(each.key)
            step, save_id = _step_of(each.key), ids[which]
            if step is not None and save_id is not None:
                found.setdefault(step, {}).setdefault(save_id, []).append(each.key)
        self._save_ids = ids
        self._seen = {step: seen for step, seen in self._seen.items() if step in found}
        return found

    def _save_id_of(self, key: str) -> str | None:
        """Return the save that an object is of: documents say it in their text."""
        info = self._keeper.head(key)
        if info is None or SAVE_KEY in info.metadata:
            return info.metadata[SAVE_KEY] if info is not None else None
        with suppress(CachetierError, msgspec.DecodeError, KeyError, TypeError):
            return str(msgspec.json.decode(self._keeper.get(key), type=dict)["save_id"])
        return None

    def _release(self, keys: Iterable[str]) -> None:
        for key in keys:
            info = self._keeper.head(key)
            if info is not None and not self._is_fresh_tombstone(key, info.modified_at or 0.0):
                self._keeper.delete(key, info.etag)

    def _is_fresh_tombstone(self, key: str, modified_at: float) -> bool:
        """Return whether a save of the step must go beside, as a peer may have older bytes yet."""
        is_fresh = self._clock.now() - modified_at < TOMBSTONE_SECONDS
        return is_fresh and key.endswith("/manifest.json") and b'"deleted"' in self._keeper.get(key)


def has_ended(save_id: str, manifest: Manifest | None) -> bool:
    """Return whether a manifest of the bucket says that nobody needs a copy of a save any more."""
    if manifest is None or manifest.save_id != save_id:
        return manifest is not None and save_id in manifest.replaces
    return manifest.state is not ManifestState.CLAIMED


def _step_of(key: str) -> tuple[str, int] | None:
    """Return the run and the step of an object; None if it is of none."""
    run, _, rest = key.partition("/")
    if run == RESERVED_SEGMENT:
        return None
    with suppress(InvalidNameError):
        return run, parsed_step(rest.partition("/")[0].partition("~")[0])
    return None
