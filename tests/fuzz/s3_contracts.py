"""What the parsers of the S3 door promise for any bytes: see ``contracts``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from urllib.parse import quote

from cachetier.doors.s3.checksums import Checksums, kind_of_upload
from cachetier.doors.s3.chunked import ChunkedBody
from cachetier.doors.s3.conditions import MATCH_SIZE, MATCH_TIME, is_unchanged, of_deletion
from cachetier.doors.s3.documents import read_deletion, read_parts
from cachetier.doors.s3.errors import S3RefusedError
from cachetier.doors.s3.heads import head_of
from cachetier.doors.s3.requests import request_of, source_of, with_parameters
from cachetier.doors.s3.routes import route_of
from cachetier.doors.s3.sigv4 import ChunkSignatures, RawRequest, read_signature
from tests.fakes.s3_signing import ChunkSigner, chunked, date_of, presigned, signed

CRC = "x-amz-checksum-crc32"
STAMP, REGION, SEED, KEY = "20260131T235959Z", "us-east-1", "ab" * 32, b"k" * 32
SIZE_BYTES = 9000


def of_lines(data: bytes) -> RawRequest:
    """Return a request of method, path, query and headers, each on a line."""
    method, path, query, *lines = [*data.split(b"\n"), b"", b"", b""]
    headers = [line.partition(b": ")[::2] for line in lines if line]
    return RawRequest(method.decode("latin-1"), path, query, [(n.lower(), v) for n, v in headers])


def as_lines(request: RawRequest) -> bytes:
    headers = [b": ".join(each) for each in request.headers]
    return b"\n".join((request.method.encode(), request.raw_path, request.raw_query, *headers))


WHEN = "Thu, 01 Jan 1970 00:01:40 GMT"
CONDITIONS = {"if-match": '"e-1"', MATCH_SIZE: "7", MATCH_TIME: WHEN}
EXAMPLES = [
    signed("PUT", "/bucket/a%20b?partNumber=1&uploadId=x", headers={"x-amz-meta-a": "b"}),
    signed("GET", "/bucket?list-type=2&prefix=a%2F&delimiter=%2F"),
    signed("DELETE", "/bucket/key", headers=CONDITIONS),
    presigned("GET", "/bucket/key", headers={"if-none-match": "*", "if-modified-since": WHEN}),
    presigned("DELETE", f"/bucket/key?{MATCH_SIZE}=7&{MATCH_TIME}={quote(WHEN)}"),
    presigned("PUT", f"/bucket/key?x-amz-meta-a=b&{CRC}=AAAAAA%3D%3D&x-amz-copy-source=a%2Fb"),
]
NOW = date_of(EXAMPLES[0])
READ_HEADERS: list[Callable[[Mapping[str, str]], object]] = [
    head_of,
    of_deletion,
    lambda headers: is_unchanged(headers, "e-1", 100.0),
]


def read_signed(data: bytes) -> None:
    request = of_lines(data)
    with suppress(S3RefusedError):
        found = read_signature(request, NOW)
        found.is_signed_by("a secret")


def read_request(data: bytes) -> None:
    raw = of_lines(data)
    scope = {
        "type": "http",
        "method": raw.method,
        "raw_path": raw.raw_path,
        "query_string": raw.raw_query,
        "headers": list(raw.headers),
        "client": ("127.0.0.1", 1),
    }
    with suppress(S3RefusedError):
        request = request_of(scope, ["s3.example.org"])
        assert len(request.key.encode()) <= 1024 and "\0" not in request.key
        request = with_parameters(request)
        route_of(request)
        request.number("partNumber", 1, 1, 10_000)
    headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in raw.headers}
    for read in READ_HEADERS:
        with suppress(S3RefusedError):
            read(headers)
    for _, value in raw.headers:
        with suppress(S3RefusedError):
            source_of(value.decode("latin-1"))


def read_checksums(data: bytes) -> None:
    headers = {
        name.decode("latin-1"): value.decode("latin-1") for name, value in of_lines(data).headers
    }
    with suppress(S3RefusedError):
        kind_of_upload(headers)
    with suppress(S3RefusedError):
        checksums = Checksums(headers)
        checksums.update(memoryview(b"some bytes"))
        checksums.finish(0)


def read_chunks(data: bytes) -> None:
    """Decode whole and in pieces: the answer is the same, and never more than was declared."""
    for signs in (False, True):
        assert decoded(data, signs, len(data) or 1) == decoded(data, signs, 7)


def decoded(data: bytes, signs: bool, piece_bytes: int) -> bytes | str:
    scope = f"{STAMP[:8]}/{REGION}/s3/aws4_request"
    signatures = ChunkSignatures(KEY, STAMP, scope, SEED) if signs else None
    body = ChunkedBody(SIZE_BYTES, signatures, trailers=[CRC], signs_trailer=signs)
    found, view = bytearray(), memoryview(data)
    try:
        for start in range(0, len(data), piece_bytes):
            for piece in body.feed(view[start : start + piece_bytes]):
                found += piece
        body.end()
    except S3RefusedError as error:
        return error.s3_code
    finally:
        assert len(found) <= SIZE_BYTES
    return bytes(found)


def chunks() -> list[bytes]:
    trailers = [(CRC, "AAAAAA==")]
    signer = ChunkSigner("a secret", STAMP, REGION, SEED)
    pieces = [bytes(8500), bytes(500)]
    return [
        chunked(pieces, trailers=trailers),
        chunked([bytes(9)] * 1000, trailers=trailers),
        chunked(pieces, signer, trailers=trailers, signs_trailer=True),
    ]


def read_documents(data: bytes) -> None:
    for read in (read_parts, read_deletion):
        with suppress(S3RefusedError):
            read(data)


DOCUMENTS = [
    (
        b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>&quot;a&quot;</ETag>"
        b"<ChecksumCRC32>AAAAAA==</ChecksumCRC32></Part></CompleteMultipartUpload>"
    ),
    b"<Delete><Object><Key>a</Key></Object><Object><Key>b</Key></Object><Quiet>true</Quiet></Delete>",
    f"<Delete><Object><Key>a</Key><ETag>b</ETag><Size>7</Size><LastModifiedTime>{WHEN}"
    "</LastModifiedTime></Object></Delete>".encode(),
    b'<!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;&b;&b;">]><Delete>&d;</Delete>',
]
CHECKSUMS = [
    b"PUT\n/\n\nx-amz-checksum-crc32: AAAAAA==\nx-amz-sdk-checksum-algorithm: CRC32",
    b"PUT\n/\n\nx-amz-trailer: x-amz-checksum-sha256\ncontent-md5: 1B2M2Y8AsgTpgAmY7PhCfg==",
    b"POST\n/\n\nx-amz-checksum-algorithm: CRC64NVME\nx-amz-checksum-type: FULL_OBJECT",
]
