"""Finish what a node had sealed that is gone, or back with a disk that knows nothing of it.

A peer that keeps a copy brings it to the bucket.

The copy has all that it takes, the document of each rank's part and its shards. They become shards
of this node under the same save, and its drain does the rest. The bucket decides, as between any
two nodes: equal bytes that are there count, others under the same name are refused, and a step is
published once. So two peers may finish one part, and its owner may come back with an old disk.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence

from cachetier_client.bucket_format.documents import (
    Manifest,
    ManifestState,
    PartDocument,
    ShardEntry,
    manifest_of,
    read_part,
)
from cachetier_client.bucket_format.layout import Layout, rank_of_part
from cachetier_client.bucket_format.stored import NO_FACTS
from cachetier_client.bucket_format.uploads import STORE_KEY, ObjectInfo
from cachetier_client.clock import Clock
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of, to_hex

from cachetier.errors import (
    BackpressureError,
    CachetierError,
    IntegrityError,
    RemoteDigestError,
)
from cachetier.ingest.ingest import Ingest
from cachetier.local.files.data_files import write_all
from cachetier.local.store import Staged
from cachetier.model.shard import INLINE_BYTES
from cachetier.peers.keeper import READ_BYTES, KeptObjects
from cachetier.remote.bucket import Bucket
from cachetier.remote.neighbours.membership import Membership
from cachetier.steps.operations import Checkpoints
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

KeptSave = tuple[str, int, str]  # run, step and save id
LAYOUT = Layout()  # of the keys at peers
ROOM_SECONDS = 1.0
AGAIN_SECONDS = 60.0  # after there was no room, or the bucket was away


class Finisher:
    """Takes over parts whose owner has not answered for a while, or says that it has not sealed.

    Args:
        keeper: The copies that are here.
        peers: Those of all peers, as one bucket.
        ingest: Takes their shards in on this node.
        checkpoints: Takes over a part here, and seals it.
        membership: Knows which nodes answer.
        after_seconds: How long an owner may be silent; so often the others are asked.
        clock: For that; it counts from the start of this process at the earliest.
    """

    def __init__(
        self,
        keeper: KeptObjects,
        peers: Bucket,
        ingest: Ingest,
        checkpoints: Checkpoints,
        membership: Membership,
        after_seconds: float,
        clock: Clock,
    ) -> None:
        self._keeper = keeper
        self._peers = peers
        self._ingest = ingest
        self._checkpoints = checkpoints
        self._membership = membership
        self._after_seconds = after_seconds
        self._clock = clock
        self._began_at = clock.monotonic()
        self._heard_at: dict[str, float] = {}  # by store id
        self._asked_at: dict[KeptSave, float] = {}  # those who answer, or when one was met
        self._done: set[tuple[str, str]] = set()  # keys of documents, with their ETag
        self._again_at = 0.0

    def listen(self) -> None:
        """Note which nodes answer now."""
        now = self._clock.monotonic()
        for peer in self._membership.answering():
            self._heard_at[peer.name] = now
        lately = now - 2 * self._after_seconds
        self._asked_at = {save: at for save, at in self._asked_at.items() if at >= lately}

    def finish(self, save: KeptSave, durable: Manifest | None, keys: Sequence[str]) -> bool:
        """Take over the parts of a save, of which ``keys`` are kept here, whose owner is gone.

        Return whether nobody will: the manifest at the peers says that the save was replaced, or
        the bucket's, ``durable``, is of another that is not older.

        Raises:
            RemoteError: No peer can say.
        """
        now = self._clock.monotonic()
        if now < max(self._began_at + self._after_seconds, self._again_at):
            return False
        ask = now - self._asked_at.setdefault(save, now) >= self._after_seconds
        if ask:
            self._asked_at[save] = now
        # Documents are read only then, or if somebody is gone: most looks find all owners there.
        elif not any(self._is_gone(self._keeper.head(key)) for key in keys):
            return False
        run, step, save_id = save
        try:
            manifest = manifest_of(self._peers.manifest(run, step))
        except IntegrityError:
            manifest = None  # it says nothing; the bucket decides
        older = manifest.replaces if manifest is not None else ()
        replaces = older if manifest is not None and manifest.save_id == save_id else ()
        if save_id in older or (
            durable is not None
            and durable.state is ManifestState.PUBLISHED
            and durable.save_id not in replaces
        ):
            return not ask  # an owner that is there knows better
        for key in keys:
            rank, document = rank_of_part(key), self._keeper.head(key)
            if rank is None or document is None or (key, document.etag) in self._done:
                continue
            part, _digest = read_part(self._keeper.get(key), run, rank, key)
            places = [LAYOUT.shard_key(run, key.split("/")[1], e.name) for e in part.shards]
            try:
                if not self._is_left(part, [self._info(place) for place in places], ask=ask):
                    continue
                self._take(part, places, replaces)
            except CachetierError as error:
                self._again_at = now + AGAIN_SECONDS
                tell(log, events.PEERS_TROUBLE, problem=f"{key} is not finished: {error.message}")
            else:
                self._done.add((key, document.etag))
        return False

    def _is_left(
        self, part: PartDocument, copies: Sequence[ObjectInfo | None], *, ask: bool
    ) -> bool:
        """Return whether peers have a part whole, and its owner is gone; an empty one has none.

        To ``ask`` one that answers is for those that went back to an older disk.
        """
        for entry, info in zip(part.shards, copies, strict=True):
            if info is None or to_hex(info.digest or 0) != entry.digest:
                return False
        if not ask:
            return all(map(self._is_gone, copies))
        answering = {peer.name: peer for peer in self._membership.answering()}
        owners = {_owner_of(info) for info in copies if not self._is_gone(info)}
        which = part.run, part.step, part.save_id, part.rank
        return all(each in answering and not answering[each].knows(*which) for each in owners)

    def _is_gone(self, info: ObjectInfo | None) -> bool:
        """Return whether the store whose object it is was silent for long."""
        since = self._clock.monotonic() - self._after_seconds
        lately = [name for name, at in self._heard_at.items() if at >= since]
        return _owner_of(info) not in ("", self._membership.name, *lately)

    def _info(self, place: str) -> ObjectInfo | None:
        return self._keeper.head(place) or self._peers.objects.head(place)

    def _pieces(self, place: str, size_bytes: int) -> Iterator[memoryview]:
        if self._keeper.head(place) is not None:
            yield from self._keeper.pieces(place, 0, size_bytes)
            return
        for start in range(0, size_bytes, READ_BYTES):
            piece = memoryview(bytearray(min(READ_BYTES, size_bytes - start)))
            self._peers.objects.read_into(place, start, piece)
            yield piece

    def _take(self, part: PartDocument, places: Sequence[str], replaces: Sequence[str]) -> None:
        ids = SaveIds(part.run, part.step, part.save_id, part.rank, part.world_size)
        self._checkpoints.take_over(ids, replaces)
        for entry, place in zip(part.shards, places, strict=True):
            self._put(ids, entry, place)
        self._checkpoints.seal(ids, None)
        tell(log, events.PART_FINISHED, run=ids.run, step=ids.step, rank=ids.rank)

    def _put(self, ids: SaveIds, entry: ShardEntry, place: str) -> None:
        content, facts = entry.content(), entry.facts or NO_FACTS
        pieces = self._pieces(place, content.size_bytes)
        if content.size_bytes <= INLINE_BYTES:
            what = entry.name, b"".join(map(bytes, pieces)), content.digest, ROOM_SECONDS
            self._ingest.begin_inline(ids, *what, facts=facts)()
            return
        staged = self._ingest.begin(ids, entry.name, content.size_bytes, ROOM_SECONDS)
        try:
            if not isinstance(staged, Staged) or staged.writer is None:
                raise BackpressureError("there is no room for it on this node")
            at = digest = 0
            for piece in pieces:
                write_all(staged.writer, piece, at)
                at, digest = at + len(piece), digest_of(piece, digest)
            if digest != content.digest:
                raise RemoteDigestError("the copy is damaged")
            os.ftruncate(staged.writer, at)
        except BaseException:
            self._ingest.abort(staged)
            raise
        self._ingest.commit(staged, ids, entry.name, content, facts)


def _owner_of(info: ObjectInfo | None) -> str:
    """Return the store id of who put an object, which may name an epoch of it, too.

    Documents name none.
    """
    return info.metadata.get(STORE_KEY, "").partition("-")[0] if info is not None else ""
