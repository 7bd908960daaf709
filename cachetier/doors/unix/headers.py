"""Read what a request's header says, refusing anything that is not what the protocol allows.

Source: docs/protocol.md.
"""

from __future__ import annotations

from typing import Any

from cachetier_client.io import digests
from cachetier_client.transport.wire import Header

from cachetier.errors import DigestMismatchError, InvalidRequestError, SizeMismatchError
from cachetier.model import names
from cachetier.model.levels import Level, checked_level
from cachetier.model.shard import Content, SaveIds, checked_element_size
from cachetier.restore.restore import Opened

LONGEST_WAIT_SECONDS = 7 * 86_400.0
LATEST_INSTANT = 1e12
DAY_SECONDS = 86_400.0


def ids_of(header: Header) -> SaveIds:
    """Return who is saving."""
    return SaveIds(
        run=names.checked_run(header.get("run")),
        step=names.checked_step(header.get("step")),
        save_id=names.checked_save_id(header.get("save_id")),
        rank=header.get("rank", 0),
        world_size=header.get("world_size", 1),
        overwrite=header.get("overwrite", False) is True,
    ).checked()


def step_of(header: Header) -> tuple[str, int]:
    return names.checked_run(header.get("run")), names.checked_step(header.get("step"))


def optional_step_of(header: Header) -> tuple[str | None, int | None]:
    run, step = header.get("run"), header.get("step")
    return (
        None if run is None else names.checked_run(run),
        None if step is None else names.checked_step(step),
    )


def name_of(header: Header) -> str:
    return names.checked_name(header.get("name"))


def level_of(header: Header) -> Level:
    return checked_level(header.get("level", Level.DURABLE))


def timeout_of(header: Header) -> float:
    """Return ``timeout_seconds``, never longer than a week."""
    value = header.get("timeout_seconds", 60.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise InvalidRequestError(f"timeout_seconds {value!r} is not a number of seconds")
    return float(min(value, LONGEST_WAIT_SECONDS))


def seconds_of(header: Header, field: str) -> float:
    """Return a duration; a day where none is given."""
    value = header.get(field, DAY_SECONDS)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise InvalidRequestError(f"{field} {value!r} is not a number of seconds")
    return float(value)


def busy_of(header: Header) -> bool:
    """Return ``busy``: whether the rank is in a training step."""
    value = header.get("busy")
    if not isinstance(value, bool):
        raise InvalidRequestError(f"busy {value!r} is neither true nor false")
    return value


def flag_of(header: Header, field: str, *, otherwise: bool = False) -> bool:
    """Return a flag, or ``otherwise`` where it is not given."""
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
    """Return a non-negative integer."""
    value = header.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequestError(f"{field} {value!r} is not a non-negative integer")
    return value


def optional_count_of(header: Header, field: str) -> int | None:
    return None if header.get(field) is None else count_of(header, field)


def element_size_of(header: Header) -> int:
    """Return what a put says of its elements: 2, 4, 8, or 0."""
    size_bytes = optional_count_of(header, "size_bytes")
    return checked_element_size(header.get("element_size"), size_bytes)


def digest_of(header: Header) -> int:
    value = header.get("digest")
    try:
        return digests.from_hex(value if isinstance(value, str) else "")
    except ValueError as error:
        raise DigestMismatchError(str(error)) from None


def content_of(header: Header, packed: bytearray, element_size: int) -> Content:
    """Return the declared content of a commit: header and packed block digests."""
    try:
        blocks = digests.unpack(packed)
    except ValueError as error:
        raise SizeMismatchError(str(error)) from None
    return Content(count_of(header, "size_bytes"), digest_of(header), blocks, element_size)


def opened_header(opened: Opened) -> Header:
    """Return what the reply to ``open`` says of a shard."""
    content = opened.shard.content
    return {
        "size_bytes": content.size_bytes,
        "digest": digests.to_hex(content.digest),
        "source": opened.source,
        "inline": opened.body is not None,
    }


def receipt_header(receipt: Any) -> Header:
    return {
        "run": receipt.run,
        "step": receipt.step,
        "name": receipt.name,
        "save_id": receipt.save_id,
        "size_bytes": receipt.size_bytes,
        "digest": digests.to_hex(receipt.digest),
        "level": str(receipt.level),
    }
