"""The checksum of an object that is put in parts: made of theirs, and held against the client's.

Which one it shall be is said when the upload begins, and kept with it; without that, it is what the
completion declares, or a CRC-64/NVME, which every part has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cachetier.doors.s3.checksums import CRC64NVME, HEADER, declared_in, kind_of_upload, of_parts
from cachetier.doors.s3.errors import refused
from cachetier.model.objects import Head
from cachetier.objects.base import DeclaredPart, OpenUpload, StoredPart

WHOLE_LIMIT_BYTES = 5 << 40  # stores differ; all take as much
_SIZE, _TYPE = "x-amz-mp-object-size", f"{HEADER}type"


def begun_with(head: Head) -> tuple[str | None, str | None]:
    """Return algorithm and type of the checksum that an upload was begun with, if any was named."""
    return next(iter(head.checksums.items()), (None, None))


def checksum_of_whole(
    headers: Mapping[str, str],
    upload: OpenUpload,
    stored: Sequence[StoredPart],
    listed: Sequence[DeclaredPart],
) -> dict[str, str]:
    """Return the checksum of what an upload becomes, by its algorithm.

    Args:
        headers: Of the completion, by their names in lower case.
        upload: What is completed.
        stored: The parts that there are.
        listed: Those that the object shall have.

    Raises:
        CachetierError: InvalidPart; EntityTooLarge; BadDigest, or InvalidRequest: the client
            declares another checksum or size, or one that cannot be told.
    """
    parts = _listed(stored, listed)
    _check_size(headers.get(_SIZE), sum(part.size_bytes for part in parts))
    declared = _declared(headers)
    algorithm, kind = _kind(headers, upload.head, declared)
    values = [(part.checksums.get(algorithm, ""), part.size_bytes) for part in parts]
    if not all(value for value, _ in values):
        raise refused("InvalidRequest", f"not all parts were put with a {algorithm}")
    whole = of_parts(algorithm, kind, values)
    if declared.get(algorithm, whole) not in (whole, whole.partition("-")[0]):
        raise refused("BadDigest", f"the parts do not make the {algorithm} that was declared")
    return {algorithm: whole}


def _listed(stored: Sequence[StoredPart], listed: Sequence[DeclaredPart]) -> list[StoredPart]:
    here = {(part.number, part.etag): part for part in stored}
    for part in listed:
        if (part.number, part.etag) not in here:
            raise refused(
                "InvalidPart", f"part {part.number} is not here with the ETag {part.etag[:60]}"
            )
    return [here[part.number, part.etag] for part in listed]


def _check_size(text: str | None, size_bytes: int) -> None:
    if size_bytes > WHOLE_LIMIT_BYTES:
        raise refused("EntityTooLarge", f"an object has up to {WHOLE_LIMIT_BYTES} bytes")
    if text is not None and text.strip() != str(size_bytes):
        raise refused(
            "InvalidRequest", f"the parts have {size_bytes} bytes, and {_SIZE} is {text[:20]}"
        )


def _declared(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the checksums that a completion declares; behind some is the number of parts."""
    named = {name: text.partition("-") for name, text in headers.items() if name.startswith(HEADER)}
    found = declared_in({name: value for name, (value, _, _) in named.items()})
    counts = {
        name.removeprefix(HEADER).upper(): f"{dash}{count}"
        for name, (_, dash, count) in named.items()
    }
    return {name: f"{value}{counts[name]}" for name, value in found.items()}


def _kind(headers: Mapping[str, str], head: Head, declared: Mapping[str, str]) -> tuple[str, str]:
    algorithm, kind = begun_with(head)
    if algorithm is None or kind is None:
        algorithm = next(iter(declared), CRC64NVME)
        _, kind = kind_of_upload({f"{HEADER}algorithm": algorithm, _TYPE: headers.get(_TYPE, "")})
        assert kind is not None  # an algorithm has one
    if headers.get(_TYPE, kind).upper() != kind or declared.keys() - {algorithm}:
        raise refused("InvalidRequest", f"the checksum of this upload is a {kind} {algorithm}")
    return algorithm, kind
