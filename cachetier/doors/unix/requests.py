"""The requests of the socket protocol, read from frames; what the protocol forbids is refused.

Source: docs/protocol.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from cachetier_client.bucket_format.stored import Content, ShardFacts
from cachetier_client.identity import names
from cachetier_client.identity.names import COUNT_LIMIT, SaveIds, shown
from cachetier_client.io import digests
from cachetier_client.transport.base import PutRequest
from cachetier_client.transport.wire import Frame, Header

from cachetier.errors import DigestMismatchError, InvalidRequestError, SizeMismatchError
from cachetier.model.levels import Level, checked_level
from cachetier.model.shard import INLINE_BYTES

LONGEST_WAIT_SECONDS = 7 * 86_400.0
LATEST_INSTANT = 1e12
_EXPIRES = "expires_seconds"


@dataclass(frozen=True, slots=True)
class Put:
    """A small shard, whole."""

    shard: PutRequest
    body: bytes
    digest: int
    timeout_seconds: float

    @classmethod
    def parse(cls, frame: Frame) -> Put:
        header = frame.header
        shard = put_of(header)
        if count_of(header, "size_bytes") != len(frame.body):
            raise InvalidRequestError("size_bytes is not the size of the body", name=shard.name)
        if len(frame.body) > INLINE_BYTES:
            raise InvalidRequestError(f"{len(frame.body)} bytes are too many for an inline shard")
        return cls(shard, bytes(frame.body), digest_of(header), timeout_of(header))


# --- fields --------------------------------------------------------------------------------------


def ids_of(header: Header) -> SaveIds:
    """Return who is saving."""
    return SaveIds(
        run=header.get("run", ""),
        step=header.get("step", -1),
        save_id=header.get("save_id", ""),
        rank=header.get("rank", 0),
        world_size=header.get("world_size", 1),
        overwrite=header.get("overwrite", False) is True,
    )


def put_of(header: Header) -> PutRequest:
    """Return which shard is put, and what is known of it before its bytes."""
    size_bytes = optional_count_of(header, "size_bytes")
    memory = header.get("ack") == Level.MEMORY
    ids, facts = ids_of(header), ShardFacts.of_fields(header)
    return PutRequest(ids, name_of(header), size_bytes, facts, memory)


def step_of(header: Header) -> tuple[str, int]:
    return names.checked_run(header.get("run")), names.checked_step(header.get("step"))


def name_of(header: Header) -> str:
    return names.checked_name(header.get("name"))


def shard_of(header: Header) -> tuple[str, int, str]:
    """Return run, step and name of a shard to read."""
    return *step_of(header), name_of(header)


def level_of(header: Header) -> Level:
    return checked_level(header.get("level", Level.DURABLE))


def timeout_of(header: Header) -> float:
    """Return ``timeout_seconds``, never longer than a week."""
    return min(seconds_of(header, "timeout_seconds", 60.0), LONGEST_WAIT_SECONDS)


def seconds_of(header: Header, field: str, otherwise: float) -> float:
    """Return a duration, or ``otherwise`` where none is given."""
    value = header.get(field, otherwise)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise InvalidRequestError(f"{field} {value!r} is not a number of seconds")
    return float(min(value, LATEST_INSTANT))


def lasting(header: Header) -> float | None:
    """Return in how many seconds what is made ends; None: never."""
    return seconds_of(header, _EXPIRES, 0.0) if header.get(_EXPIRES) is not None else None


def flag_of(header: Header, field: str, *, otherwise: bool | None = False) -> bool:
    """Return a flag, or ``otherwise`` where it is not given: None if it must be."""
    value = header.get(field, otherwise)
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{field} {value!r} is neither true nor false")
    return value


def instant_of(value: object) -> float:
    """Return ``value`` if it is a number of UTC seconds, else an instant that never comes."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return float("inf")
    return float(max(0, min(value, LATEST_INSTANT)))


def count_of(header: Header, field: str) -> int:
    """Return an integer from 0 to what anything here may count."""
    value = header.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < COUNT_LIMIT:
        raise InvalidRequestError(f"{field} {shown(value)} is not an integer from 0 to 2^53 - 1")
    return value


def optional_count_of(header: Header, field: str) -> int | None:
    return None if header.get(field) is None else count_of(header, field)


def ranks_of(header: Header) -> list[int]:
    """Return the ranks that are named; none: all."""
    ranks = header.get("ranks") or []
    if not isinstance(ranks, list) or not all(_is_rank(each) for each in ranks):
        raise InvalidRequestError(f"ranks {shown(ranks)} is not a list of ranks")
    return ranks


def _is_rank(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def content_of(frame: Frame) -> Content:
    """Return what the client declares, at commit, of the bytes that it has written."""
    try:
        blocks = digests.unpack(frame.body)
    except ValueError as error:
        raise SizeMismatchError(str(error)) from None
    size_bytes, digest = count_of(frame.header, "size_bytes"), digest_of(frame.header)
    return Content(size_bytes, digest, blocks)


def digest_of(header: Header) -> int:
    value = header.get("digest")
    try:
        return digests.from_hex(value if isinstance(value, str) else "")
    except ValueError as error:
        raise DigestMismatchError(str(error)) from None
