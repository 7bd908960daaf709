"""Bad input at the S3 door: S3's own code, nothing kept, nothing allocated beyond the limits."""

from __future__ import annotations

import base64
import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from cachetier.doors.http.limits import RequestLimits
from tests.fakes.bodies import noise
from tests.integration.s3door import DoorServed, Key, S3Caller, door_over, path_of, received

LIMITS = RequestLimits(header_seconds=600.0, progress_seconds=600.0, head_bytes=32 << 10)
KEY = path_of("train/a")
LARGE = 9 << 20


@pytest.fixture
def door(tmp_path: Path) -> Iterator[DoorServed]:
    with door_over(tmp_path, limits=LIMITS) as served:
        yield served


def wait_until(holds: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def keeps_nothing(door: DoorServed) -> bool:
    return not door.objects.staged and door.objects.keys("data") == []


def spoiled(caller: S3Caller, changes: dict[str, str]) -> dict[str, str]:
    return {**caller.signed("PUT", KEY, b"x"), **changes}


def head(method: str, path: str, headers: dict[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def test_who_signs_wrongly_is_told_why(door: DoorServed) -> None:
    wrong = S3Caller(door.url, Key(door.key.id, "another secret"))
    assert wrong("PUT", KEY, b"x").code == "SignatureDoesNotMatch"
    unknown = S3Caller(door.url, Key("CTNOBODY", "another secret"))
    assert unknown("PUT", KEY, b"x").code == "InvalidAccessKeyId"
    assert door.unsigned("PUT", KEY, b"x").code == "AccessDenied"
    old = spoiled(door, {"X-Amz-Date": "20200101T000000Z"})
    assert door.unsigned("PUT", KEY, b"x", old).code == "RequestTimeTooSkewed"
    assert door.unsigned("PUT", KEY, b"y", spoiled(door, {})).code == "XAmzContentSHA256Mismatch"
    assert keeps_nothing(door)


def test_a_presigned_url_opens_until_it_expires(door: DoorServed) -> None:
    client = door.client(signature_version="s3v4")
    client.put_object(Bucket="bucket", Key="train/a", Body=b"x")
    wanted = {"Bucket": "bucket", "Key": "train/a"}
    url = client.generate_presigned_url("get_object", wanted, ExpiresIn=60)
    path = url.removeprefix(door.url)
    assert door.unsigned("GET", path).body == b"x"
    assert door.unsigned("GET", path.replace("Expires=60", "Expires=61")).status == 403
    # A signature of another day, to be long over.
    stale = path.replace(time.strftime("%Y%m%dT", time.gmtime()), "20200101T")
    assert door.unsigned("GET", stale).status in (400, 403)


def test_parameters_of_a_presigned_url_count_as_the_headers_that_they_stand_for(
    door: DoorServed,
) -> None:
    named = door.presigned("PUT", f"{KEY}?x-amz-meta-owner=me")
    assert door.unsigned("PUT", named, b"x").status == 200
    assert door("HEAD", KEY).headers["x-amz-meta-owner"] == "me"

    copied = door.presigned("PUT", f"{KEY}-copy?x-amz-copy-source={quote(KEY, safe='')}")
    assert door.unsigned("PUT", copied).status == 200
    assert door("GET", f"{KEY}-copy").body == door("GET", KEY).body == b"x"

    wrong = door.presigned("PUT", f"{KEY}?x-amz-checksum-crc32=AAAAAA%3D%3D")
    assert door.unsigned("PUT", wrong, b"y").code == "BadDigest"
    assert door("GET", KEY).body == b"x"


def test_a_header_that_differs_from_its_parameter_is_refused(door: DoorServed) -> None:
    headers = {"x-amz-meta-owner": "you"}
    answer = door("PUT", f"{KEY}?x-amz-meta-owner=me", b"x", headers)
    assert (answer.status, answer.code) == (400, "InvalidArgument")
    assert keeps_nothing(door)


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("train/" + "k" * 1019, "KeyTooLongError"),
        ("train/../other", "InvalidURI"),
        ("train/a%00b", "InvalidURI"),
        ("train/%ff%fe", "InvalidURI"),
        ("train/.cachetier/order/x", "AccessDenied"),
        ("outside/a", "AccessDenied"),
    ],
)
def test_keys_that_there_cannot_be_are_refused(door: DoorServed, key: str, code: str) -> None:
    assert door("PUT", f"/bucket/{key}", b"x").code == code
    assert keeps_nothing(door)


@pytest.mark.parametrize(
    ("path", "headers"), [("//key", {}), ("/bucket/train/a", {"Host": ".localhost"})]
)
def test_a_key_without_a_bucket_is_refused(
    door: DoorServed, path: str, headers: dict[str, str]
) -> None:
    answer = door("PUT", path, b"x", headers)
    assert (answer.status, answer.code) == (400, "InvalidURI")
    assert keeps_nothing(door)


def test_a_key_of_a_mebibyte_ends_the_connection(door: DoorServed) -> None:
    with socket.create_connection(("127.0.0.1", door.port)) as connection:
        connection.settimeout(20)
        try:
            connection.sendall(head("GET", f"/bucket/{'k' * (1 << 20)}", {"Host": "x"}))
        except OSError:
            pass  # the door has hung up already
        answer = received(connection)
    assert not answer or b" 400 " in answer.split(b"\r\n")[0]


@pytest.mark.parametrize("number", ["0", "10001", "-1", "x", ""])
def test_part_numbers_out_of_range_are_refused(door: DoorServed, number: str) -> None:
    client = door.client()
    upload = client.create_multipart_upload(Bucket="bucket", Key="train/a")["UploadId"]
    answer = door("PUT", f"{KEY}?partNumber={number}&uploadId={upload}", b"x")
    assert answer.code == "InvalidArgument"
    assert "Parts" not in client.list_parts(Bucket="bucket", Key="train/a", UploadId=upload)


@pytest.mark.parametrize("size_bytes", [100, LARGE])
def test_a_body_that_ends_early_leaves_nothing(door: DoorServed, size_bytes: int) -> None:
    body = noise(size_bytes)
    with socket.create_connection(("127.0.0.1", door.port)) as connection:
        connection.sendall(head("PUT", KEY, length(door.signed("PUT", KEY, body), size_bytes)))
        connection.sendall(body[:-1])
    wait_until(lambda: not door.objects.staged)
    wait_until(lambda: door.door.connections == 0)
    assert keeps_nothing(door)


def host_of(door: DoorServed) -> dict[str, str]:
    return {"Host": f"127.0.0.1:{door.port}"}


def length(headers: dict[str, str], size_bytes: int) -> dict[str, str]:
    return {**headers, "Host": headers.get("Host", "x"), "Content-Length": str(size_bytes)}


@pytest.mark.parametrize("size_bytes", [100, LARGE])
def test_a_body_that_drips_is_cut_off(tmp_path: Path, size_bytes: int) -> None:
    with door_over(tmp_path, limits=replace(LIMITS, progress_seconds=0.5)) as door:
        headers = door.signed("PUT", KEY, noise(size_bytes), {"Host": f"127.0.0.1:{door.port}"})
        with socket.create_connection(("127.0.0.1", door.port)) as connection:
            connection.sendall(head("PUT", KEY, length(headers, size_bytes)) + b"x")
            answer = received(connection)
        assert b"<Code>RequestTimeout</Code>" in answer
        assert keeps_nothing(door)


def test_a_body_without_length_is_refused(door: DoorServed) -> None:
    headers = door.signed("PUT", KEY, b"", {"Host": f"127.0.0.1:{door.port}"})
    headers.pop("Content-Length", None)
    chunked = {"Transfer-Encoding": "chunked", "Connection": "close"}
    with socket.create_connection(("127.0.0.1", door.port)) as connection:
        connection.sendall(head("PUT", KEY, {**headers, **chunked}))
        connection.sendall(b"0\r\n\r\n")
        answer = received(connection)
    assert b"<Code>MissingContentLength</Code>" in answer


def chunked_headers(door: DoorServed, size_bytes: int) -> dict[str, str]:
    """Return signed headers of a body in chunks that are not signed, with a CRC32 behind it."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    from tests.integration.s3door import REGION

    kind = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    given = {
        "Host": f"127.0.0.1:{door.port}",
        "x-amz-content-sha256": kind,
        "x-amz-decoded-content-length": str(size_bytes),
        "x-amz-trailer": "x-amz-checksum-crc32",
        "Content-Encoding": "aws-chunked",
    }
    request = AWSRequest("PUT", f"{door.url}{KEY}", given)

    class Signer(SigV4Auth):
        def payload(self, _request: AWSRequest) -> str:
            return kind

    Signer(Credentials(door.key.id, door.key.secret), "s3", REGION).add_auth(request)
    return {name: str(value) for name, value in request.headers.items()}


def in_chunks(body: bytes, chunk_bytes: int = 1 << 20) -> bytes:
    import zlib

    crc = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
    pieces = [body[at : at + chunk_bytes] for at in range(0, len(body), chunk_bytes)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return framed + f"0\r\nx-amz-checksum-crc32:{crc}\r\n\r\n".encode()


@pytest.mark.parametrize("size_bytes", [0, 100, LARGE])
def test_chunks_with_a_trailer_are_taken(door: DoorServed, size_bytes: int) -> None:
    body = noise(size_bytes)
    answer = door.unsigned("PUT", KEY, in_chunks(body), chunked_headers(door, size_bytes))
    assert answer.status == 200, answer
    assert door.objects.body("data", "train/a") == body
    assert "content-encoding" not in door("HEAD", KEY).headers


@pytest.mark.parametrize("size_bytes", [100, LARGE])
@pytest.mark.parametrize("trouble", ["truncated", "doubled", "wrong trailer", "longer"])
def test_chunks_that_are_wrong_leave_nothing(
    door: DoorServed, size_bytes: int, trouble: str
) -> None:
    body = noise(size_bytes)
    framed = in_chunks(body)
    sent = {
        "truncated": framed[: len(framed) - 200] if size_bytes > 200 else framed[:50],
        "doubled": framed[: framed.index(b"\r\n") + 2 + min(size_bytes, 1 << 20) + 2] + framed,
        "wrong trailer": framed.replace(b"crc32:", b"crc32:AAAA"),
        "longer": in_chunks(body + b"x"),
    }[trouble]
    answer = door.unsigned("PUT", KEY, sent, chunked_headers(door, size_bytes))
    assert 400 <= answer.status < 500, answer
    assert keeps_nothing(door)


def test_documents_that_are_bombs_are_refused(door: DoorServed) -> None:
    bomb = (
        b'<?xml version="1.0"?><!DOCTYPE d [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
        b"<Delete><Object><Key>&b;</Key></Object></Delete>"
    )
    many = b"<Object><Key>train/a</Key></Object>" * 10_001
    for body in (bomb, b"<Delete>" + many + b"</Delete>", b"no xml", b""):
        answer = door("POST", "/bucket?delete", body)
        assert answer.code in ("MalformedXML", "MissingContentLength"), answer


def test_what_is_not_offered_says_so(door: DoorServed) -> None:
    for method, path in (
        ("GET", "/bucket?versioning"),
        ("GET", f"{KEY}?acl"),
        ("PUT", f"{KEY}?tagging"),
        ("PUT", "/bucket?acl"),
        ("GET", f"{KEY}?versionId=3"),
    ):
        assert door(method, path).code == "NotImplemented"
    assert door("PUT", "/new-bucket").code == "NoSuchBucket"
    answer = door("PUT", KEY, b"x", {"x-amz-server-side-encryption": "AES256"})
    assert answer.code == "NotImplemented"


def test_an_expiry_that_is_no_date_is_refused_as_it_would_hold_up_the_mount(
    door: DoorServed,
) -> None:
    assert door("PUT", KEY, b"x", {"Expires": "soon"}).code == "InvalidArgument"
    assert keeps_nothing(door)
    assert door("PUT", KEY, b"x", {"Expires": "Tue, 24 Nov 2026 17:00:00 GMT"}).status == 200


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"x-amz-meta-who": "a\tb"}, "InvalidArgument"),
        ({"x-amz-meta-who": "a" * 2000}, "MetadataTooLarge"),
        ({"Content-Disposition": "a" * 5000}, "MetadataTooLarge"),
    ],
)
def test_what_a_bucket_would_refuse_later_is_refused_at_the_put(
    door: DoorServed, headers: dict[str, str], code: str
) -> None:
    assert door("PUT", KEY, b"x", headers).code == code
    assert keeps_nothing(door)


def test_a_wrong_md5_leaves_nothing(door: DoorServed) -> None:
    md5 = base64.b64encode(hashlib.md5(b"y", usedforsecurity=False).digest()).decode()
    assert door("PUT", KEY, b"x", {"Content-MD5": md5}).code == "BadDigest"
    assert door("PUT", KEY, b"x", {"Content-MD5": "no md5"}).code == "InvalidDigest"
    assert keeps_nothing(door)


def test_a_put_that_waits_for_the_bucket_says_that_it_is_safe_here(door: DoorServed) -> None:
    headers = {"x-cachetier-ack": "durable", "x-cachetier-timeout": "0.1"}
    answer = door("PUT", KEY, b"x", headers)
    assert (answer.status, answer.code) == (503, "SlowDown")
    assert b"safe" in answer.body
    assert door.objects.body("data", "train/a") == b"x"
    assert door("PUT", KEY, b"x", {"x-cachetier-ack": "soon"}).code == "InvalidArgument"


def test_who_expects_to_go_on_is_told_before_its_body_comes(door: DoorServed) -> None:
    body = noise(LARGE)
    given = {"Host": f"127.0.0.1:{door.port}", "Expect": "100-continue"}
    headers = length(door.signed("PUT", KEY, body, given), LARGE)
    with socket.create_connection(("127.0.0.1", door.port)) as connection:
        connection.settimeout(20)
        connection.sendall(head("PUT", KEY, headers))
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        # The connection goes on behind a body that the parser never saw.
        connection.sendall(head("GET", KEY, door.signed("GET", KEY, b"", host_of(door))))
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_reader_who_hangs_up_ends_the_work(door: DoorServed) -> None:
    door.client().put_object(Bucket="bucket", Key="train/a", Body=noise(48 << 20))
    before = threading.active_count()
    for _ in range(8):
        with socket.create_connection(("127.0.0.1", door.port)) as connection:
            connection.sendall(head("GET", KEY, door.signed("GET", KEY, b"", host_of(door))))
            assert b" 200 " in connection.recv(65536)
    wait_until(lambda: door.door.connections == 0)
    assert threading.active_count() <= before + 8
