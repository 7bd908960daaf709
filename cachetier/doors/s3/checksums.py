"""The checksums that a client declared: computed as bytes come, compared at the end.

A CRC-64/NVME is not taken here: the file's blocks have it anyway, and it is told at the end.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from awscrt import checksums as crt

from cachetier.doors.s3.errors import refused

CRC64NVME = "CRC64NVME"
COMPOSITE, FULL_OBJECT = "COMPOSITE", "FULL_OBJECT"
SIZES_BYTES = {"CRC32": 4, "CRC32C": 4, CRC64NVME: 8, "SHA1": 20, "SHA256": 32}
HEADER = "x-amz-checksum-"
_NO_VALUES = (f"{HEADER}algorithm", f"{HEADER}mode", f"{HEADER}type")
_MD5_BYTES = 16
# CRCs of a whole are joined from those of its parts; hashes cannot be.
_JOINED = {
    "CRC32": crt.combine_crc32,
    "CRC32C": crt.combine_crc32c,
    CRC64NVME: crt.combine_crc64nvme,
}


class _Running(Protocol):
    def update(self, data: memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


class _Crc32:
    def __init__(self) -> None:
        self._crc = 0

    def update(self, data: memoryview, /) -> None:
        self._crc = zlib.crc32(data, self._crc)

    def digest(self) -> bytes:
        return self._crc.to_bytes(4, "big")


class _Crc32c(_Crc32):
    def update(self, data: memoryview, /) -> None:
        self._crc = crt.crc32c(data, self._crc)


_RUNNING: Mapping[str, Callable[[], _Running]] = {
    "CRC32": _Crc32,
    "CRC32C": _Crc32c,
    "SHA1": hashlib.sha1,
    "SHA256": hashlib.sha256,
}


class Checksums:
    """The checksums of one body, fed block by block in order."""

    def __init__(self, headers: Mapping[str, str], payload_sha256: str | None = None) -> None:
        """Read what a request declares.

        Args:
            headers: By their names in lower case.
            payload_sha256: What the signature says of the body, in hexadecimal.

        Raises:
            CachetierError: InvalidRequest, or InvalidDigest of a Content-MD5 that is none.
        """
        self._expected = _declared(headers)
        self._in_trailer = _announced(headers)
        named = headers.get("x-amz-sdk-checksum-algorithm", "").upper()
        known = {*self._expected, *self._in_trailer}
        if len(known) > 1 or (named in SIZES_BYTES and known and named not in known):
            raise refused("InvalidRequest", "a body has one x-amz-checksum- header, or trailer")
        self._taken: tuple[str, ...] = ()
        self._md5 = _md5_of(headers.get("content-md5"))
        self._sha256 = payload_sha256
        self._running: dict[str, _Running] = {
            name: _RUNNING[name]() for name in known if name != CRC64NVME
        }
        if self._md5 is not None:
            self._running["MD5"] = hashlib.md5(usedforsecurity=False)
        if payload_sha256 is not None:
            self._running.setdefault("SHA256", hashlib.sha256())

    @property
    def trailers(self) -> tuple[str, ...]:
        """The names of the trailers that are announced."""
        return tuple(HEADER + name.lower() for name in self._in_trailer)

    @property
    def declared_md5(self) -> str | None:
        """The digest in Content-MD5, in hexadecimal."""
        return None if self._md5 is None else self._md5.hex()

    @property
    def are_taken(self) -> bool:
        """Whether the bytes must be fed; a CRC-64/NVME wants none of them."""
        return bool(self._running)

    def take(self, algorithm: str) -> None:
        """Return this one too in the end, though nobody declared it; before the first byte."""
        self._taken = (algorithm,)
        if algorithm != CRC64NVME:
            self._running.setdefault(algorithm, _RUNNING[algorithm]())

    def update(self, data: memoryview) -> None:
        for each in self._running.values():
            each.update(data)

    def finish(self, crc64nvme: int, trailers: Mapping[str, str] | None = None) -> dict[str, str]:
        """Hold all that was declared against the bytes; return it, and what was to be taken.

        Args:
            crc64nvme: Of the bytes.
            trailers: What came behind the bytes, by names in lower case.

        Raises:
            CachetierError: BadDigest, XAmzContentSHA256Mismatch, or InvalidRequest for a trailer
                that is no checksum.
        """
        expected = {**self._expected, **_declared(trailers or {})}
        found = {name: each.digest() for name, each in self._running.items()}
        found[CRC64NVME] = crc64nvme.to_bytes(8, "big")
        if self._sha256 is not None and not _is_same(found["SHA256"], bytes.fromhex(self._sha256)):
            raise refused("XAmzContentSHA256Mismatch", "the body is not the one that was signed")
        if self._md5 is not None and not _is_same(found["MD5"], self._md5):
            raise refused("BadDigest", "the body is not the one that Content-MD5 was made of")
        for name, value in expected.items():
            if not _is_same(found[name], value):
                raise refused("BadDigest", f"the body is not the one that the {name} was made of")
        return {name: _text(found[name]) for name in (*expected, *self._taken)}


def headers_of(checksums: Mapping[str, str]) -> dict[str, str]:
    """Return checksums as headers of an answer; readers skip the checksums of checksums."""
    named = {f"{HEADER}{name.lower()}": value for name, value in checksums.items()}
    return {**named, **{f"{HEADER}type": kind for kind in _kinds(checksums)}}


def fields_of(checksums: Mapping[str, str], *, typed: bool = False) -> list[tuple[str, str]]:
    """Return checksums as fields of a document, with their type where they are of an object."""
    fields = [(f"Checksum{name}", value) for name, value in checksums.items()]
    return fields + [("ChecksumType", kind) for kind in _kinds(checksums) if typed]


def _kinds(checksums: Mapping[str, str]) -> list[str]:
    """Return the type of checksums; none of none."""
    return [COMPOSITE if is_composite(checksums) else FULL_OBJECT] if checksums else []


def is_composite(checksums: Mapping[str, str]) -> bool:
    """Return whether checksums are those of the checksums of parts."""
    return any("-" in value for value in checksums.values())


def declared_in(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the checksums that headers or trailers say, in base64 by their algorithms.

    Raises:
        CachetierError: InvalidRequest: one is none.
    """
    return {name: _text(value) for name, value in _declared(headers).items()}


def kind_of_upload(headers: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return algorithm and type of the checksum that a multipart upload shall have.

    Raises:
        CachetierError: InvalidRequest: there is no such algorithm, or not of this type.
    """
    algorithm = headers.get(f"{HEADER}algorithm", "").upper() or None
    kind = headers.get(f"{HEADER}type", "").upper() or None
    if algorithm is None:
        if kind is not None:
            raise refused("InvalidRequest", f"{HEADER}type goes with {HEADER}algorithm")
        return None, None
    if algorithm not in SIZES_BYTES:
        raise refused("InvalidRequest", f"{HEADER}algorithm is one of {', '.join(SIZES_BYTES)}")
    kind = kind or (FULL_OBJECT if algorithm == CRC64NVME else COMPOSITE)
    fits = algorithm in _JOINED if kind == FULL_OBJECT else algorithm != CRC64NVME
    if kind not in (COMPOSITE, FULL_OBJECT) or not fits:
        raise refused("InvalidRequest", f"the {algorithm} of an upload is not {kind[:20]}")
    return algorithm, kind


def of_parts(algorithm: str, kind: str, parts: Sequence[tuple[str, int]]) -> str:
    """Return the checksum of an object put in parts, as headers say it.

    Args:
        algorithm: Of the parts' checksums, and of the whole's.
        kind: ``COMPOSITE``, of the checksums of the parts; or ``FULL_OBJECT``, of the bytes.
        parts: Checksum, in base64, and length of each, in order.
    """
    values = [(base64.b64decode(value), size_bytes) for value, size_bytes in parts]
    if kind == FULL_OBJECT:
        whole = 0
        for value, size_bytes in values:
            whole = _JOINED[algorithm](whole, int.from_bytes(value, "big"), size_bytes)
        return _text(whole.to_bytes(SIZES_BYTES[algorithm], "big"))
    running: _Running = _RUNNING[algorithm]()
    for value, _ in values:
        running.update(memoryview(value))
    return f"{_text(running.digest())}-{len(parts)}"


def _declared(headers: Mapping[str, str]) -> dict[str, bytes]:
    found = {}
    for header, text in headers.items():
        if not header.startswith(HEADER) or header in _NO_VALUES:
            continue
        name = header.removeprefix(HEADER).upper()
        value = _decoded(text) if name in SIZES_BYTES else None
        if value is None or len(value) != SIZES_BYTES[name]:
            raise refused("InvalidRequest", f"the value of {header[:60]} is no such checksum")
        found[name] = value
    return found


def _announced(headers: Mapping[str, str]) -> tuple[str, ...]:
    names = [each.strip().lower() for each in headers.get("x-amz-trailer", "").split(",")]
    found = []
    for each in filter(None, names):
        name = each.removeprefix(HEADER).upper()
        if not each.startswith(HEADER) or name not in SIZES_BYTES:
            raise refused(
                "InvalidRequest", f"x-amz-trailer names {each[:60]}, which is no checksum"
            )
        found.append(name)
    return tuple(found)


def _md5_of(text: str | None) -> bytes | None:
    value = None if text is None else _decoded(text)
    if text is not None and (value is None or len(value) != _MD5_BYTES):
        raise refused("InvalidDigest", "Content-MD5 is no MD5 in base64")
    return value


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _is_same(found: bytes, expected: bytes) -> bool:
    return hmac.compare_digest(found, expected)
