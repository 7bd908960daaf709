"""Bodies in aws-chunked, however they are cut on their way; and what is wrong with one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachetier.doors.s3.chunked import (
    LEAST_SIGNED_BYTES,
    LINE_LIMIT_BYTES,
    TRAILER_LIMIT_BYTES,
    ChunkedBody,
)
from cachetier.doors.s3.errors import S3RefusedError
from cachetier.doors.s3.sigv4 import ChunkSignatures, signing_key
from tests.fakes.s3_signing import SECRET, ChunkSigner, chunked

STAMP, REGION, SEED = "20260131T235959Z", "us-east-1", "ab" * 32
CRC = "x-amz-checksum-crc32"
EXAMPLE_SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


def signer(secret: str = SECRET) -> ChunkSigner:
    return ChunkSigner(secret, STAMP, REGION, SEED)


def signatures(secret: str = SECRET, stamp: str = STAMP, seed: str = SEED) -> ChunkSignatures:
    key = signing_key(secret, stamp[:8], REGION)
    return ChunkSignatures(key, stamp, f"{stamp[:8]}/{REGION}/s3/aws4_request", seed)


def decoded(body: ChunkedBody, wire: bytes, piece_bytes: int = 1 << 20) -> tuple[bytes, Any]:
    found = []
    view = memoryview(wire)
    for start in range(0, len(wire), piece_bytes):
        found += body.feed(view[start : start + piece_bytes])
    return b"".join(found), body.end()


def refusal(body: ChunkedBody, wire: bytes) -> str:
    with pytest.raises(S3RefusedError) as refused:
        decoded(body, wire, 100)
    return str(refused.value.s3_code)


CHUNKS = st.lists(st.binary(min_size=1, max_size=300), max_size=6)


@given(chunks=CHUNKS, piece_bytes=st.integers(1, 500))
def test_chunks_without_signatures_come_back_however_they_are_cut(
    chunks: list[bytes], piece_bytes: int
) -> None:
    whole = b"".join(chunks)
    wire = chunked(chunks, trailers=[(CRC, "AAAAAA==")])
    body = ChunkedBody(len(whole), trailers=[CRC])
    assert decoded(body, wire, piece_bytes) == (whole, {CRC: "AAAAAA=="})


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(LEAST_SIGNED_BYTES, LEAST_SIGNED_BYTES + 99), max_size=3),
    last=st.integers(0, 99),
    piece_bytes=st.integers(1, 5000),
    in_trailer=st.booleans(),
)
def test_signed_chunks_come_back_however_they_are_cut(
    sizes: list[int], last: int, piece_bytes: int, in_trailer: bool
) -> None:
    chunks = [bytes([n % 256]) * size for n, size in enumerate([*sizes, last]) if size]
    whole = b"".join(chunks)
    trailers = [(CRC, "AAAAAA==")] if in_trailer else []
    wire = chunked(chunks, signer(), trailers=trailers, signs_trailer=in_trailer)
    body = ChunkedBody(
        len(whole), signatures(), trailers=[name for name, _ in trailers], signs_trailer=in_trailer
    )
    assert decoded(body, wire, piece_bytes) == (whole, dict(trailers))


def test_bytes_are_views_of_what_was_fed() -> None:
    wire = memoryview(chunked([b"x" * 1000]))
    (piece,) = ChunkedBody(1000).feed(wire)
    assert piece.obj is wire.obj


def test_the_example_of_aws_is_decoded() -> None:
    """Source: https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming.html."""
    seed = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
    found = ChunkSigner(EXAMPLE_SECRET, "20130524T000000Z", REGION, seed)
    wire = chunked([b"a" * 65536, b"a" * 1024], found)
    for signature in (
        "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
        "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
        "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
    ):
        assert signature.encode() in wire
    body = ChunkedBody(66560, signatures(EXAMPLE_SECRET, "20130524T000000Z", seed))
    assert decoded(body, wire) == (b"a" * 66560, {})


def test_the_example_of_aws_with_a_trailer_is_decoded() -> None:
    """Source: https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming-trailers.html."""
    seed = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
    found = ChunkSigner(EXAMPLE_SECRET, "20130524T000000Z", REGION, seed)
    crc32c = ("x-amz-checksum-crc32c", "sOO8/Q==")
    wire = chunked([b"a" * 65536, b"a" * 1024], found, trailers=[crc32c], signs_trailer=True)
    trailer = b"d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"
    assert wire.endswith(b"x-amz-trailer-signature:" + trailer + b"\r\n\r\n")
    key = signatures(EXAMPLE_SECRET, "20130524T000000Z", seed)
    body = ChunkedBody(66560, key, trailers=[crc32c[0]], signs_trailer=True)
    assert decoded(body, wire) == (b"a" * 66560, dict([crc32c]))


def test_an_empty_line_before_the_signature_of_the_trailer_is_taken() -> None:
    wire = chunked([], signer(), trailers=[(CRC, "AAAAAA==")], signs_trailer=True)
    wire = wire.replace(b"==\r\nx-amz-trailer", b"==\n\r\nx-amz-trailer")
    body = ChunkedBody(0, signatures(), trailers=[CRC], signs_trailer=True)
    assert decoded(body, wire) == (b"", {CRC: "AAAAAA=="})


# --- what is wrong -------------------------------------------------------------------------------

SMALL = b"5\r\nhello\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("wire", "size_bytes", "code"),
    [
        (b"", 5, "IncompleteBody"),
        (SMALL[:-1], 5, "IncompleteBody"),
        (SMALL[:-2], 5, "IncompleteBody"),
        (SMALL[:7], 5, "IncompleteBody"),
        (SMALL, 4, "IncompleteBody"),
        (SMALL, 6, "IncompleteBody"),
        (b"5\r\nhello\r\n" + SMALL, 5, "IncompleteBody"),
        (SMALL + b"x", 5, "IncompleteBody"),
        (SMALL + SMALL, 5, "IncompleteBody"),
        (b"5\r\nhello!\r\n0\r\n\r\n", 5, "InvalidChunkSizeError"),
        (b"6\r\nhello\r\n0\r\n\r\n", 6, "InvalidChunkSizeError"),
        (b"ffffffffffffffff\r\nhello", 5, "IncompleteBody"),
        (b"fffffffffffffffff\r\nhello", 5, "InvalidRequest"),
        (b"-5\r\nhello\r\n", 5, "InvalidRequest"),
        (b"0x5\r\nhello\r\n", 5, "InvalidRequest"),
        (b"\r\n", 5, "InvalidRequest"),
        (b"five\r\n", 5, "InvalidRequest"),
        (b"5;chunk-signature=" + b"a" * 64 + b"\r\nhello", 5, "InvalidRequest"),
        (b"5;" + b"x" * LINE_LIMIT_BYTES, 5, "InvalidRequest"),
        (b"0" * (LINE_LIMIT_BYTES + 1), 0, "InvalidRequest"),
        (b"0\r\nno trailer\r\n\r\n", 0, "MalformedTrailerError"),
        (b"0\r\nx-amz-meta-a:b\r\n\r\n", 0, "MalformedTrailerError"),
        (b"0\r\nx-amz-trailer-signature:b\r\n\r\n", 0, "MalformedTrailerError"),
    ],
)
def test_a_body_that_is_not_what_it_says_is_refused(
    wire: bytes, size_bytes: int, code: str
) -> None:
    assert decoded(ChunkedBody(5), SMALL) == (b"hello", {})
    assert refusal(ChunkedBody(size_bytes), wire) == code


@pytest.mark.parametrize(
    ("trailer", "code"),
    [
        (f"{CRC}:a\r\n{CRC}:b\r\n", "MalformedTrailerError"),
        ("", "MalformedTrailerError"),
        (f"{CRC}:\u00e4\r\n", "MalformedTrailerError"),
        (f"{CRC}:{'a' * TRAILER_LIMIT_BYTES}\r\n", "InvalidRequest"),
        ("\0:a\r\n", "MalformedTrailerError"),
    ],
)
def test_a_trailer_that_is_not_the_one_announced_is_refused(trailer: str, code: str) -> None:
    wire = b"0\r\n" + trailer.encode() + b"\r\n"
    assert refusal(ChunkedBody(0, trailers=[CRC]), wire) == code


def test_a_trailer_of_many_lines_is_refused_while_it_comes() -> None:
    names = [f"x-{n}" for n in range(1000)]
    wire = b"0\r\n" + b"".join(f"{name}:{'a' * 100}\r\n".encode() for name in names)
    assert refusal(ChunkedBody(0, trailers=names), wire) == "MalformedTrailerError"


LONG = bytes(LEAST_SIGNED_BYTES)


def signed_wire() -> tuple[bytes, list[bytes]]:
    """Return a signed body of three chunks, and the parts of it."""
    wire = chunked([LONG, LONG, b"end"], signer())
    ends = [wire.index(b"\r\n", at) for at in (0, 8282, 16564, 16650)]
    assert ends[0] < LEAST_SIGNED_BYTES
    first = wire.index(b"2000;", 10)
    second = wire.index(b"3;", first)
    third = wire.index(b"0;chunk", second)
    return wire, [wire[:first], wire[first:second], wire[second:third], wire[third:]]


SIZE = 2 * LEAST_SIGNED_BYTES + 3


def test_chunks_that_are_doubled_swapped_or_left_out_do_not_match() -> None:
    wire, (one, two, three, end) = signed_wire()
    assert decoded(ChunkedBody(SIZE, signatures()), wire)[0] == LONG + LONG + b"end"
    for wrong in (one + one + three + end, two + one + three + end, two + two + three + end):
        assert refusal(ChunkedBody(SIZE, signatures()), wrong) == "SignatureDoesNotMatch"
    short = ChunkedBody(LEAST_SIGNED_BYTES + 3, signatures())
    assert refusal(short, one + three + end) == "SignatureDoesNotMatch"
    assert refusal(ChunkedBody(SIZE, signatures()), one + two + one + end) == "IncompleteBody"


def test_a_changed_byte_another_key_and_another_seed_do_not_match() -> None:
    wire, _ = signed_wire()
    changed = wire.replace(b"end", b"eNd")
    assert refusal(ChunkedBody(SIZE, signatures()), changed) == "SignatureDoesNotMatch"
    assert refusal(ChunkedBody(SIZE, signatures("other")), wire) == "SignatureDoesNotMatch"
    other = signatures(seed="cd" * 32)
    assert refusal(ChunkedBody(SIZE, other), wire) == "SignatureDoesNotMatch"


def test_the_last_chunk_wants_its_signature_too() -> None:
    wire, parts = signed_wire()
    unsigned = b"".join(parts[:3]) + b"0\r\n\r\n"
    assert refusal(ChunkedBody(SIZE, signatures()), unsigned) == "InvalidRequest"
    forged = b"".join(parts[:3]) + b"0;chunk-signature=" + b"0" * 64 + b"\r\n\r\n"
    assert refusal(ChunkedBody(SIZE, signatures()), forged) == "SignatureDoesNotMatch"
    assert len(wire) > SIZE


def test_small_chunks_whose_signatures_would_cost_more_than_they_bring_are_refused() -> None:
    wire = chunked([b"a" * (LEAST_SIGNED_BYTES - 1), b"b"], signer())
    body = ChunkedBody(LEAST_SIGNED_BYTES, signatures())
    assert refusal(body, wire) == "InvalidChunkSizeError"


@pytest.mark.parametrize("change", ["value", "signature", "none"])
def test_a_trailer_that_is_not_signed_does_not_match(change: str) -> None:
    wire = chunked([b"a"], signer(), trailers=[(CRC, "AAAAAA==")], signs_trailer=True)
    signature = wire.partition(b"x-amz-trailer-signature:")[2].partition(b"\r\n")[0]
    wrong = {
        "value": wire.replace(b"AAAAAA==", b"AAAAAB=="),
        "signature": wire.replace(signature, b"0" * 64),
        "none": wire.replace(b"x-amz-trailer-signature:" + signature + b"\r\n", b""),
    }
    body = ChunkedBody(1, signatures(), trailers=[CRC], signs_trailer=True)
    code = "IncompleteBody" if change == "none" else "SignatureDoesNotMatch"
    assert refusal(body, wrong[change]) == code
