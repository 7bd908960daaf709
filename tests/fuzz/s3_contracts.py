"""What the parsers of the S3 door promise for any bytes: see ``contracts``."""

from __future__ import annotations

from contextlib import suppress

from cachetier.doors.s3.checksums import Checksums, kind_of_upload
from cachetier.doors.s3.chunked import ChunkedBody
from cachetier.doors.s3.documents import read_deletion, read_parts
from cachetier.doors.s3.errors import S3RefusedError
from cachetier.doors.s3.requests import request_of, source_of
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


EXAMPLES = [
    signed("PUT", "/bucket/a%20b?partNumber=1&uploadId=x", headers={"x-amz-meta-a": "b"}),
    signed("GET", "/bucket?list-type=2&prefix=a%2F&delimiter=%2F"),
    presigned("GET", "/bucket/key"),
]
NOW = date_of(EXAMPLES[0])


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
        route_of(request)
        request.number("partNumber", 1, 1, 10_000)
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
    b'<!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;&b;&b;">]><Delete>&d;</Delete>',
]
CHECKSUMS = [
    b"PUT\n/\n\nx-amz-checksum-crc32: AAAAAA==\nx-amz-sdk-checksum-algorithm: CRC32",
    b"PUT\n/\n\nx-amz-trailer: x-amz-checksum-sha256\ncontent-md5: 1B2M2Y8AsgTpgAmY7PhCfg==",
    b"POST\n/\n\nx-amz-checksum-algorithm: CRC64NVME\nx-amz-checksum-type: FULL_OBJECT",
]
