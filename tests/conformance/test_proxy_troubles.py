"""Each trouble of the proxy shows to a client of S3 as what it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from awscrt.checksums import crc64nvme

from cachetier.errors import (
    RemoteDigestError,
    RemoteError,
    RemoteRefusedError,
    ThrottledError,
    TransientError,
    UploadGoneError,
)
from cachetier.remote.base import ObjectStore
from cachetier.remote.stall_guard import Timeouts
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import Fault, Trouble

BODY = bytes(range(256)) * 500
DIGEST = crc64nvme(BODY)


@pytest.fixture
def proxy(seaweed_s3: S3Endpoint) -> Iterator[S3Proxy]:
    with S3Proxy(seaweed_s3.url) as started:
        yield started


@pytest.fixture
def store(seaweed_s3: S3Endpoint, proxy: S3Proxy) -> ObjectStore:
    return seaweed_s3.behind(proxy.url).store()


@pytest.mark.parametrize(
    ("trouble", "error", "arrives"),
    [
        (Trouble.SLOW_DOWN, ThrottledError, False),
        (Trouble.TOO_MANY_REQUESTS, ThrottledError, False),
        (Trouble.REQUEST_TIMEOUT, TransientError, False),
        (Trouble.INTERNAL_ERROR, TransientError, False),
        (Trouble.BAD_GATEWAY, TransientError, False),
        (Trouble.GATEWAY_TIMEOUT, TransientError, False),
        (Trouble.ACCESS_DENIED, RemoteRefusedError, False),
        (Trouble.EXPIRED_TOKEN, RemoteRefusedError, False),
        (Trouble.TIME_SKEWED, RemoteRefusedError, False),
        (Trouble.NO_SUCH_BUCKET, RemoteRefusedError, False),
        (Trouble.CLOSED, TransientError, False),
        (Trouble.RESET, TransientError, False),
        (Trouble.STALL, TransientError, False),
        (Trouble.LOST_REPLY, TransientError, True),
        (Trouble.CUT_REPLY, TransientError, True),
        (Trouble.CORRUPT, RemoteDigestError, False),
        (Trouble.WRONG_CHECKSUM, RemoteDigestError, True),
    ],
)
def test_a_put_meets_it(
    seaweed_s3: S3Endpoint,
    proxy: S3Proxy,
    folder: str,
    trouble: Trouble,
    error: type[RemoteError],
    arrives: bool,
) -> None:
    if error is RemoteDigestError and seaweed_s3.verify == "readback":
        pytest.skip("the server judges no digest: what it has is read back")
    # Only where no answer ever comes has a store little patience: else it waits for its answer.
    patience = Timeouts(5.0, 3.0) if trouble is Trouble.STALL else Timeouts()
    store = seaweed_s3.behind(proxy.url).store(timeouts=patience)
    proxy.troubles.add(Fault(trouble, "PutObject"))

    with pytest.raises(error):
        store.put(folder + "a", BODY, digest=DIGEST)

    assert proxy.troubles.fired == {trouble: 1}
    assert (seaweed_s3.store().head(folder + "a") is not None) is arrives


def test_slow_down_says_how_long_to_wait(store: ObjectStore, proxy: S3Proxy, folder: str) -> None:
    proxy.troubles.retry_after_seconds = 7
    proxy.troubles.add(Fault(Trouble.SLOW_DOWN))

    with pytest.raises(ThrottledError) as caught:
        store.put(folder + "a", BODY, digest=DIGEST)

    assert caught.value.retry_after_seconds == 7


def test_a_late_put_arrives_after_its_client_has_gone(
    store: ObjectStore, proxy: S3Proxy, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    late = SimpleNamespace(sleep=lambda seconds: seconds and go_on.wait(60))
    monkeypatch.setattr("cachetier.testing.s3_relay.time", late)
    proxy.troubles.add(Fault(Trouble.LATE))

    with pytest.raises(TransientError):
        store.put(folder + "a", BODY, digest=DIGEST)

    assert store.head(folder + "a") is None
    go_on.set()
    give_up_at = time.monotonic() + 60
    while store.head(folder + "a") is None and time.monotonic() < give_up_at:
        time.sleep(0.05)
    assert store.get(folder + "a") == BODY
    assert proxy.troubles.fired == {Trouble.LATE: 1}


def test_an_answer_comes_byte_by_byte(store: ObjectStore, proxy: S3Proxy, folder: str) -> None:
    proxy.trickle_seconds = 0.001
    proxy.troubles.add(Fault(Trouble.TRICKLE))
    began_at = time.monotonic()
    store.put(folder + "a", BODY, digest=DIGEST)

    assert time.monotonic() - began_at > 0.1  # more than a hundred bytes of head
    assert proxy.troubles.fired == {Trouble.TRICKLE: 1}


def test_a_wrong_etag_changes_nothing_but_the_etag(
    store: ObjectStore, proxy: S3Proxy, folder: str
) -> None:
    proxy.troubles.add(Fault(Trouble.WRONG_ETAG))
    told = store.put(folder + "a", BODY, digest=DIGEST)
    found = store.head(folder + "a")

    assert found is not None
    assert told.etag != found.etag
    assert proxy.troubles.fired == {Trouble.WRONG_ETAG: 1}


@pytest.mark.parametrize(
    ("trouble", "error"),
    [(Trouble.BROKEN_XML, TransientError), (Trouble.ERROR_IN_200, TransientError)],
)
def test_a_multipart_upload_meets_it_as_it_begins(
    store: ObjectStore, proxy: S3Proxy, folder: str, trouble: Trouble, error: type[RemoteError]
) -> None:
    proxy.troubles.add(Fault(trouble, "CreateMultipartUpload"))

    with pytest.raises(error):
        store.create_upload(folder + "a")

    assert proxy.troubles.fired == {trouble: 1}


def test_an_upload_is_gone(store: ObjectStore, proxy: S3Proxy, folder: str) -> None:
    upload_id = store.create_upload(folder + "a")
    proxy.troubles.add(Fault(Trouble.NO_SUCH_UPLOAD, "UploadPart"))

    with pytest.raises(UploadGoneError):
        store.upload_part(folder + "a", upload_id, 1, BODY, digest=DIGEST)


def test_an_outage_refuses_connections_until_it_ends(
    store: ObjectStore, proxy: S3Proxy, folder: str
) -> None:
    store.put(folder + "a", BODY, digest=DIGEST)
    proxy.stop()
    with pytest.raises(TransientError):
        store.head(folder + "a")

    proxy.come_back()
    assert store.get(folder + "a") == BODY


def test_an_answer_that_drips_is_cut_off(
    seaweed_s3: S3Endpoint, proxy: S3Proxy, folder: str
) -> None:
    proxy.trickle_seconds = 0.2  # no time-out of a socket ever notices
    proxy.troubles.add(Fault(Trouble.TRICKLE, "HeadObject"))
    store = seaweed_s3.behind(proxy.url).store(timeouts=Timeouts(5.0, 1.0))
    with pytest.raises(TransientError):
        store.head(folder + "a")
    assert proxy.troubles.fired == {Trouble.TRICKLE: 1}
    assert seaweed_s3.behind(proxy.url).store().head(folder + "a") is None
