"""What clients declare of their bytes is held against them: each algorithm, header and trailer."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Mapping

import pytest
from awscrt import checksums as crt
from cachetier_client.io.digests import digest_of
from hypothesis import given
from hypothesis import strategies as st

from cachetier.doors.s3.checksums import (
    COMPOSITE,
    FULL_OBJECT,
    SIZES_BYTES,
    Checksums,
    declared_in,
    kind_of_upload,
    of_parts,
)
from cachetier.doors.s3.errors import S3RefusedError

DATA = b"the bytes of a shard" * 1000


def checksum(algorithm: str, data: bytes) -> str:
    made: dict[str, bytes] = {
        "CRC32": zlib.crc32(data).to_bytes(4, "big"),
        "CRC32C": crt.crc32c(data).to_bytes(4, "big"),
        "CRC64NVME": crt.crc64nvme(data).to_bytes(8, "big"),
        "SHA1": hashlib.sha1(data).digest(),
        "SHA256": hashlib.sha256(data).digest(),
        "MD5": hashlib.md5(data).digest(),
    }
    return base64.b64encode(made[algorithm]).decode()


def header(algorithm: str) -> str:
    return f"x-amz-checksum-{algorithm.lower()}"


def taken(
    headers: Mapping[str, str],
    data: bytes = DATA,
    trailers: Mapping[str, str] | None = None,
    sha256: str | None = None,
) -> dict[str, str]:
    checksums = Checksums(headers, sha256)
    for start in range(0, len(data), 777):
        checksums.update(memoryview(data)[start : start + 777])
    return checksums.finish(digest_of(data), trailers)


def refusal(headers: Mapping[str, str], **body: object) -> str:
    with pytest.raises(S3RefusedError) as refused:
        taken(headers, **body)  # type: ignore[arg-type]
    return str(refused.value.s3_code)


@pytest.mark.parametrize("algorithm", SIZES_BYTES)
def test_each_algorithm_is_taken_in_the_header_and_in_the_trailer(algorithm: str) -> None:
    value = {header(algorithm): checksum(algorithm, DATA)}
    assert taken(value) == {algorithm: checksum(algorithm, DATA)}
    assert taken({"x-amz-trailer": header(algorithm)}, trailers=value) == taken(value)
    for changed in (DATA[:-1], DATA + b"x", b"X" + DATA[1:], b""):
        assert refusal(value, data=changed) == "BadDigest"
        announced = {"x-amz-trailer": header(algorithm)}
        assert refusal(announced, data=changed, trailers=value) == "BadDigest"


def test_nothing_is_taken_that_nobody_declared() -> None:
    assert not Checksums({"x-amz-checksum-mode": "ENABLED", "x-amz-checksum-type": "x"}).are_taken
    assert not Checksums({header("CRC64NVME"): checksum("CRC64NVME", DATA)}).are_taken
    assert Checksums({header("CRC32"): checksum("CRC32", DATA)}).are_taken
    assert taken({}) == {}


def test_content_md5_is_checked_and_known() -> None:
    headers = {"content-md5": checksum("MD5", DATA)}
    assert taken(headers) == {}
    assert Checksums(headers).declared_md5 == hashlib.md5(DATA).hexdigest()
    assert Checksums({}).declared_md5 is None
    assert refusal(headers, data=b"other") == "BadDigest"
    for wrong in ("", "abc", "AAAA", "!" * 24, "ä"):
        assert refusal({"content-md5": wrong}) == "InvalidDigest"


def test_the_hash_of_the_signature_is_checked() -> None:
    digest = hashlib.sha256(DATA).hexdigest()
    assert taken({}, sha256=digest) == {}
    assert refusal({}, data=b"other", sha256=digest) == "XAmzContentSHA256Mismatch"
    both = {header("SHA256"): checksum("SHA256", DATA)}
    assert taken(both, sha256=digest) == {"SHA256": checksum("SHA256", DATA)}


@pytest.mark.parametrize(
    "headers",
    [
        {header("CRC32"): "AAAA"},
        {header("CRC32"): "not base64"},
        {header("CRC32"): ""},
        {header("SHA256"): checksum("SHA1", DATA)},
        {"x-amz-checksum-md4": "AAAA"},
        {header("CRC32"): "AAAAAA==", header("SHA1"): checksum("SHA1", DATA)},
        {header("CRC32"): "AAAAAA==", "x-amz-trailer": header("CRC32C")},
        {header("CRC32"): "AAAAAA==", "x-amz-sdk-checksum-algorithm": "SHA1"},
        {"x-amz-trailer": "x-amz-meta-a"},
        {"x-amz-trailer": "x-amz-checksum-crc32, x-amz-checksum-sha1"},
        {"x-amz-trailer": "," * 5000 + "x"},
    ],
)
def test_what_cannot_be_checked_is_refused(headers: dict[str, str]) -> None:
    assert refusal(headers) == "InvalidRequest"


def test_the_trailers_that_are_announced_are_named() -> None:
    checksums = Checksums({"x-amz-trailer": "X-Amz-Checksum-CRC32C"})
    assert checksums.trailers == ("x-amz-checksum-crc32c",)


def test_an_algorithm_that_is_only_named_sets_no_value() -> None:
    assert taken({"x-amz-sdk-checksum-algorithm": "CRC32"}) == {}


@pytest.mark.parametrize("algorithm", SIZES_BYTES)
@given(pieces=st.lists(st.binary(max_size=100), min_size=1, max_size=5))
def test_the_checksum_of_a_whole_follows_from_its_parts(
    algorithm: str, pieces: list[bytes]
) -> None:
    parts = [(checksum(algorithm, piece), len(piece)) for piece in pieces]
    if not algorithm.startswith("SHA"):
        assert of_parts(algorithm, FULL_OBJECT, parts) == checksum(algorithm, b"".join(pieces))
    if algorithm != "CRC64NVME":
        raw = b"".join(base64.b64decode(value) for value, _ in parts)
        wanted = f"{checksum(algorithm, raw)}-{len(parts)}"
        assert of_parts(algorithm, COMPOSITE, parts) == wanted


@pytest.mark.parametrize(
    ("algorithm", "kind", "found"),
    [
        (None, None, (None, None)),
        ("crc32", None, ("CRC32", COMPOSITE)),
        ("CRC64NVME", None, ("CRC64NVME", FULL_OBJECT)),
        ("CRC32C", FULL_OBJECT, ("CRC32C", FULL_OBJECT)),
        ("SHA256", COMPOSITE, ("SHA256", COMPOSITE)),
        ("SHA256", FULL_OBJECT, None),
        ("CRC64NVME", COMPOSITE, None),
        ("CRC32", "SOME", None),
        ("MD5", None, None),
        (None, COMPOSITE, None),
    ],
)
def test_an_upload_has_a_checksum_that_there_is(
    algorithm: str | None, kind: str | None, found: object
) -> None:
    headers = {"x-amz-checksum-algorithm": algorithm, "x-amz-checksum-type": kind}
    given_headers = {name: value for name, value in headers.items() if value}
    if found is not None:
        assert kind_of_upload(given_headers) == found
        return
    with pytest.raises(S3RefusedError) as refused:
        kind_of_upload(given_headers)
    assert refused.value.s3_code == "InvalidRequest"


def test_checksums_of_parts_are_read_as_they_are_declared() -> None:
    assert declared_in({header("CRC32"): "AAAAAA==", "etag": "x"}) == {"CRC32": "AAAAAA=="}
