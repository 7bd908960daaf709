"""What ``S3ObjectStore`` makes of answers that no well-behaved server gives."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from awscrt.checksums import crc64nvme
from cachetier_client.bucket_format.uploads import UploadedPart
from cachetier_client.io.digests import to_base64

from cachetier.errors import (
    CopiesRefusedError,
    RemoteDigestError,
    RemoteRefusedError,
    SourceChangedError,
    ThrottledError,
    TransientError,
)
from cachetier.remote.base import CopyRange, ObjectStore
from cachetier.remote.s3.boto_client import Credentials, connect
from cachetier.remote.s3.reconnecting import Renewed
from cachetier.remote.s3.store import S3ObjectStore
from cachetier.remote.stall_guard import Timeouts

BODY = b"0123456789"
SENT = to_base64(crc64nvme(BODY))
Serve = Callable[..., S3ObjectStore]
PATIENT = Timeouts(connect_seconds=60.0, read_seconds=60.0)


def answer(status: str, body: bytes = b"", *headers: str, length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def error_body(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>as told</Message></Error>".encode()


@contextmanager
def canned_server(reply: bytes) -> Iterator[str]:
    """Answer every request with ``reply`` and close; with nothing at all when it is empty."""
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            held.append(connection)
            without_body = connection.recv(65536).startswith(b"HEAD")
            if reply:
                head, mark, body = reply.partition(b"\r\n\r\n")
                connection.sendall(head + mark + (b"" if without_body else body))
                connection.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=serve, name="canned-server")
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for each in (listener, *held):
            each.close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server that always gives the same answer, and return a store that talks to it."""
    with ExitStack() as stack:

        def started(reply: bytes, timeouts: Timeouts = PATIENT) -> S3ObjectStore:
            client = connect(
                endpoint=stack.enter_context(canned_server(reply)),
                credentials=Credentials("key", "secret"),
                timeouts=timeouts,
            )
            return S3ObjectStore("bucket", Renewed(lambda: client), timeouts=timeouts)

        yield started


def put(store: ObjectStore) -> object:
    return store.put("a", BODY, digest=crc64nvme(BODY))


def test_a_body_that_breaks_off_is_a_passing_trouble(serve: Serve) -> None:
    store = serve(answer("200 OK", BODY[:4], length=10))

    with pytest.raises(TransientError):
        store.get("a")


def test_a_range_that_breaks_off_is_a_passing_trouble(serve: Serve) -> None:
    store = serve(answer("206 Partial", BODY[:4], "Content-Range: bytes 0-9/50", length=10))

    with pytest.raises(TransientError):
        store.read_into("a", 0, memoryview(bytearray(10)))


def test_the_whole_object_instead_of_a_range_is_not_taken_for_it(serve: Serve) -> None:
    store = serve(answer("200 OK", BODY))

    with pytest.raises(RemoteDigestError):
        store.get("a", 5, 5)
    with pytest.raises(RemoteDigestError):
        store.get("a", 0, 5)


def test_another_range_is_not_taken_for_the_one_asked_for(serve: Serve) -> None:
    store = serve(answer("206 Partial", BODY[4:9], "Content-Range: bytes 4-8/10"))

    with pytest.raises(RemoteDigestError):
        store.get("a", 5, 5)


def test_bytes_that_fail_the_stored_digest_are_not_returned(serve: Serve) -> None:
    flipped = bytes([BODY[0] ^ 1]) + BODY[1:]
    store = serve(answer("200 OK", flipped, f"x-amz-checksum-crc64nvme: {SENT}"))

    with pytest.raises(RemoteDigestError):
        store.get("a")


def test_a_put_that_the_store_says_it_kept_otherwise_is_refused(serve: Serve) -> None:
    store = serve(answer("200 OK", b"", 'ETag: "x"', f"x-amz-checksum-crc64nvme: {to_base64(1)}"))

    with pytest.raises(RemoteDigestError):
        put(store)


def test_a_composite_checksum_is_no_digest(serve: Serve) -> None:
    store = serve(answer("200 OK", BODY, 'ETag: "x-2"', "x-amz-checksum-crc64nvme: AAAA-2"))

    assert store.get("a") == BODY


def test_the_time_a_store_asks_for_is_passed_on(serve: Serve) -> None:
    store = serve(answer("503 Slow Down", error_body("SlowDown"), "Retry-After: 7"))

    with pytest.raises(ThrottledError) as caught:
        put(store)
    assert caught.value.retry_after_seconds == 7.0


def test_an_error_inside_a_success_is_an_error(serve: Serve) -> None:
    store = serve(answer("200 OK", error_body("InternalError")))
    part = UploadedPart(1, '"x"', len(BODY), crc64nvme(BODY))

    with pytest.raises(TransientError):
        store.complete_upload("a", "upload", [part], digest=crc64nvme(BODY))


def test_half_a_listing_is_a_passing_trouble(serve: Serve) -> None:
    store = serve(answer("200 OK", b"<ListBucketResult><Contents><Key>a"))

    with pytest.raises(TransientError):
        store.list("")


def test_a_redirect_to_another_region_is_for_a_person(serve: Serve) -> None:
    store = serve(answer("301 Moved Permanently", error_body("PermanentRedirect")))

    with pytest.raises(RemoteRefusedError):
        put(store)


def test_something_that_is_no_http_is_a_passing_trouble(serve: Serve) -> None:
    store = serve(b"SSH-2.0-not-an-object-store\r\n")

    with pytest.raises(TransientError):
        put(store)


def test_a_server_that_never_answers_is_given_up_after_its_time(serve: Serve) -> None:
    store = serve(b"", replace(PATIENT, read_seconds=0.5))

    with pytest.raises(TransientError):
        put(store)
    with pytest.raises(TransientError):
        store.get("a")


def test_an_error_names_the_key_and_what_the_store_said(serve: Serve) -> None:
    store = serve(answer("403 Forbidden", error_body("AccessDenied")))

    with pytest.raises(RemoteRefusedError) as caught:
        put(store)
    assert caught.value.context == {
        "key": "a",
        "remote_code": "AccessDenied",
        "remote_status": 403,
    }
    assert "as told" in str(caught.value)


def test_names_of_metadata_are_lower_case_as_they_were_put(serve: Serve) -> None:
    store = serve(answer("200 OK", BODY, 'ETag: "x"', "X-Amz-Meta-Cachetier-Save: s1"))

    found = store.head("a")

    assert found is not None
    assert found.metadata == {"cachetier-save": "s1"}


def test_an_etag_has_its_quotes_wherever_a_store_leaves_them_out(serve: Serve) -> None:
    entry = "<Key>a</Key><Size>1</Size><LastModified>2026-11-26T00:00:00Z</LastModified>"
    page = f"<R><Contents>{entry}<ETag>x</ETag></Contents></R>".encode()

    assert serve(answer("200 OK", page)).list_page("", "", "", 9).objects[0].etag == '"x"'
    assert serve(answer("200 OK", b"", "ETag: x")).put("a", b"", digest=0).etag == '"x"'


def test_another_version_is_not_read_where_the_store_ignores_if_match(serve: Serve) -> None:
    store = serve(answer("206 Partial", BODY[:5], "Content-Range: bytes 0-4/10", 'ETag: "new"'))

    with pytest.raises(SourceChangedError):
        store.read_into("a", 0, memoryview(bytearray(5)), '"old"')
    store.read_into("a", 0, memoryview(bytearray(5)), '"new"')


def test_a_store_that_takes_a_copied_part_for_an_empty_one_refuses_copies(serve: Serve) -> None:
    store = serve(answer("200 OK", b"", 'ETag: "d41d8cd98f00b204e9800998ecf8427e"'))

    with pytest.raises(CopiesRefusedError):
        store.copy_part("a", "upload", 1, CopyRange("b", '"x"', 0, 10), digest=0)
