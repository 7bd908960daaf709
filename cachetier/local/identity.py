"""The label of a data file, in an extended attribute: whose bytes it holds.

So an orphan can be told from rubbish, and a lost catalog rebuilt. It is JSON. That of a shard has
``store``, ``run``, ``step``, ``save``, ``rank``, ``name``, ``size_bytes``, ``digest`` and
``world_size``, and ``facts`` if its rank said any: see ``lost_and_found.Identity``. That of a piece
of an object has ``object`` beside ``store``, ``run``, ``size_bytes`` and ``digest``, which are the
file's own: see ``ObjectIdentity``.

A file of an object that was put whole says all of it. One of a part says its upload and its number.
When the upload is completed, its first piece is marked again, with the object: how many ``pieces``
it has, and its ETag. Which of the upload's files those are tells the upload they name, as parts
that were replaced or left out have no file any more; whether they are tells the ETag, in which the
digest of all bytes is. Bytes that lie in the catalog, of up to 64 KiB, are not marked anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cachetier_client.identity.names import MOUNT_MARK, SaveIds
from cachetier_client.io import digests

from cachetier.local.catalog.rows import NewShard
from cachetier.model.objects import Head
from cachetier.model.shard import Shard

# Ext4 keeps all attributes of a file in one block, and says that it is full beyond that.
_ROOM_BYTES = 3_500


class FileMark(NamedTuple):
    """An identity as it is written, and what an error about the file says that it concerns."""

    identity: bytes
    context: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ObjectIdentity:
    """The label of a file that is a piece of an object.

    Attributes:
        store_id: Whose file it is.
        run: Of the mount.
        key: Of the object.
        size_bytes: Of the file.
        digest: Of the file's bytes.
        at: When they were put, by the node's clock: of two versions of a key, which is newer.
        upload_id: Of a multipart upload.
        part: The number that it has in its upload; 0 in an object that was put whole.
        pieces: Of the whole object, which this is the first of; 0 where the file cannot say.
        etag: Of the whole object, where ``pieces`` is not 0.
        head: Of the whole object, likewise; None as well where it did not fit.
        follows: The highest version that was acknowledged before the object's last byte came.
        acknowledged_at: In the clock of the bucket's store; None where that was not known.
    """

    store_id: str
    run: str
    key: str
    size_bytes: int
    digest: int
    at: float
    upload_id: str | None = None
    part: int = 0
    pieces: int = 0
    etag: str | None = None
    head: Head | None = None
    follows: int = 0
    acknowledged_at: float | None = None

    @property
    def mark(self) -> FileMark:
        identity = self._as_bytes()
        if len(identity) > _ROOM_BYTES:
            identity = replace(self, head=None)._as_bytes()
        return FileMark(identity, {"run": self.run, "name": self.key})

    def _as_bytes(self) -> bytes:
        of_object = {
            "key": self.key,
            "at": self.at,
            "upload": self.upload_id,
            "part": self.part,
            "pieces": self.pieces,
            "etag": self.etag,
            "head": None if self.head is None else self.head.as_text(),
            "follows": self.follows,
            "acknowledged_at": self.acknowledged_at,
        }
        identity = {
            "store": self.store_id,
            "run": self.run,
            "size_bytes": self.size_bytes,
            "digest": digests.to_hex(self.digest),
            "object": {name: value for name, value in of_object.items() if value},
        }
        return _as_json(identity)

    @classmethod
    def parsed(cls, text: bytes | None) -> ObjectIdentity | None:
        """Read an identity; None where there is none, or it is not one of a piece."""
        try:
            found = json.loads(text or b"")
            of_object = found["object"]
            identity = cls(
                str(found["store"]),
                str(found["run"]),
                str(of_object["key"]),
                int(found["size_bytes"]),
                digests.from_hex(found["digest"]),
                float(of_object.get("at", 0.0)),
                of_object.get("upload"),
                int(of_object.get("part", 0)),
                int(of_object.get("pieces", 0)),
                of_object.get("etag"),
                Head.of_text(of_object["head"]) if "head" in of_object else None,
                int(of_object.get("follows", 0)),
                None if (at := of_object.get("acknowledged_at")) is None else float(at),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return identity if identity.run.startswith(MOUNT_MARK) else None


def shard_mark(
    store_id: str, ids: SaveIds | Shard, shard: NewShard | Shard, world_size: int
) -> FileMark:
    """Return what is written on the file of a shard."""
    content, facts = shard.content, shard.facts.recorded()
    identity = {
        "store": store_id,
        "run": ids.run,
        "step": ids.step,
        "save": ids.save_id,
        "rank": ids.rank,
        "name": shard.name,
        "size_bytes": content.size_bytes,
        "digest": digests.to_hex(content.digest),
        "world_size": world_size,
        **({"facts": facts} if facts else {}),
    }
    return FileMark(_as_json(identity), {**ids.context, "name": shard.name})


def _as_json(identity: Mapping[str, object]) -> bytes:
    return json.dumps(identity, separators=(",", ":"), ensure_ascii=False).encode()
