"""The proxy changes nothing that passes, and each of its troubles shows as what it is."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from awscrt.checksums import crc64nvme
from botocore.exceptions import ClientError

from cachetier.errors import PreconditionFailedError, ThrottledError, TransientError
from cachetier.remote.base import IF_ABSENT, ObjectStore
from cachetier.remote.call_policy import CallPolicy, Retries
from cachetier.remote.s3.boto_client import Credentials, connect
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import Fault, Trouble

BODY = bytes(range(256)) * 5000
DIGEST = crc64nvme(BODY)


@pytest.fixture
def proxy(seaweed_s3: S3Endpoint) -> Iterator[S3Proxy]:
    with S3Proxy(seaweed_s3.url) as started:
        yield started


@pytest.fixture
def store(seaweed_s3: S3Endpoint, proxy: S3Proxy) -> ObjectStore:
    return seaweed_s3.behind(proxy.url).store()


def test_everything_passes_unchanged(store: ObjectStore, folder: str) -> None:
    keys = [f"{folder}{number:03}" for number in range(100)]  # a listing that comes in chunks
    for key in keys:
        store.put(key, b"", digest=crc64nvme(b""))
    store.put(folder + "big", BODY, digest=DIGEST, metadata={"cachetier-save": "s1"})

    assert store.list(folder).keys == (*keys, folder + "big")
    assert store.get(folder + "big") == BODY
    found = store.head(folder + "big")
    assert found is not None
    digest = DIGEST if store.keeps_digests else None
    assert (found.digest, found.metadata) == (digest, {"cachetier-save": "s1"})


def test_each_request_waits_on_a_connection_kept_alive_too(
    store: ObjectStore, proxy: S3Proxy, folder: str
) -> None:
    store.put(folder + "a", BODY, digest=DIGEST)
    proxy.latency_seconds = 0.05
    before, started = proxy.requests, time.monotonic()

    store.head(folder + "a")
    store.get(folder + "a")
    store.get(folder + "a", 5, 1000)
    store.read_into(folder + "a", 0, memoryview(bytearray(len(BODY))))

    assert time.monotonic() - started >= 4 * 0.05
    assert proxy.requests - before == 4
    assert proxy.connections == 1  # every body was read to its end, so the connection was free


def test_a_lost_reply_hides_a_success(store: ObjectStore, proxy: S3Proxy, folder: str) -> None:
    proxy.troubles.add(Fault(Trouble.LOST_REPLY))

    with pytest.raises(TransientError):
        store.put(folder + "a", BODY, digest=DIGEST, condition=IF_ABSENT)
    with pytest.raises(PreconditionFailedError):
        store.put(folder + "a", BODY, digest=DIGEST, condition=IF_ABSENT)

    assert proxy.troubles.fired == {Trouble.LOST_REPLY: 1}
    found = store.head(folder + "a")
    assert found is not None
    assert found.digest == (DIGEST if store.keeps_digests else None)


def test_a_reset_in_a_body_leaves_nothing(store: ObjectStore, proxy: S3Proxy, folder: str) -> None:
    proxy.troubles.add(Fault(Trouble.RESET))

    with pytest.raises(TransientError):
        store.put(folder + "a", BODY, digest=DIGEST)

    assert proxy.troubles.fired == {Trouble.RESET: 1}
    assert store.head(folder + "a") is None


def test_too_fast_a_client_is_told_to_slow_down(
    store: ObjectStore, proxy: S3Proxy, folder: str
) -> None:
    proxy.troubles.limit(0.001)
    store.put(folder + "a", BODY, digest=DIGEST)

    with pytest.raises(ThrottledError):
        store.put(folder + "b", BODY, digest=DIGEST)
    with pytest.raises(ThrottledError):
        store.get(folder + "a")

    proxy.troubles.limit(0)
    assert store.head(folder + "b") is None
    assert proxy.troubles.fired == {Trouble.SLOW_DOWN: 2}
    assert proxy.connections == 1


def test_retries_ride_out_every_trouble(store: ObjectStore, proxy: S3Proxy, folder: str) -> None:
    patient = CallPolicy(store, retries=Retries(sleep=lambda _: proxy.troubles.limit(0)))
    proxy.troubles.add(Fault(Trouble.RESET))
    proxy.troubles.add(Fault(Trouble.LOST_REPLY))
    proxy.troubles.limit(0.001)
    patient.list(folder)  # takes the only token

    patient.put(folder + "a", BODY, digest=DIGEST)

    assert set(proxy.troubles.fired) == {Trouble.SLOW_DOWN, Trouble.RESET, Trouble.LOST_REPLY}
    assert patient.get(folder + "a") == BODY


def test_a_client_that_waits_for_100_continue_gets_it(
    seaweed_s3: S3Endpoint, proxy: S3Proxy, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "botocore.awsrequest")
    client = connect(endpoint=proxy.url, credentials=seaweed_s3.credentials)
    client.meta.events.register("before-call.s3", _expect_continue)

    client.put_object(Bucket=seaweed_s3.bucket, Key=folder + "a", Body=BODY)

    assert "100 Continue response seen" in caplog.text
    assert seaweed_s3.store().get(folder + "a") == BODY


def test_a_client_that_waits_for_100_continue_is_refused_before_it_sends_its_body(
    seaweed_s3: S3Endpoint, proxy: S3Proxy, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "botocore.awsrequest")
    client = connect(endpoint=proxy.url, credentials=seaweed_s3.credentials)
    proxy.troubles.limit(0.001)
    client.head_bucket(Bucket=seaweed_s3.bucket)  # takes the only token
    client.meta.events.register("before-call.s3", _expect_continue)

    with pytest.raises(ClientError):
        client.put_object(Bucket=seaweed_s3.bucket, Key=folder + "a", Body=BODY)

    assert "NOT sending request body" in caplog.text
    assert proxy.troubles.fired == {Trouble.SLOW_DOWN: 1}


def _expect_continue(params: dict[str, dict[str, str]], **_: object) -> None:
    params["headers"]["Expect"] = "100-continue"


def test_a_server_that_is_not_there_closes_the_connection() -> None:
    with S3Proxy("http://127.0.0.1:1") as proxy:
        client = S3Endpoint(proxy.url, "bucket", Credentials("any", "body"), "checksum").store()
        with pytest.raises(TransientError):
            client.head("a")


def test_the_command_prints_its_port_strikes_as_told_and_says_so_at_its_end(
    seaweed_s3: S3Endpoint, folder: str
) -> None:
    command = [sys.executable, "-m", "cachetier.testing.s3proxy", "--upstream", seaweed_s3.url]
    rules = ["--lose-replies", "1", "--fault", "slow_down:GetObject", "--retry-after", "3"]
    with subprocess.Popen(
        [*command, "--latency-ms", "5", *rules], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        store = seaweed_s3.behind(url).store()
        with pytest.raises(TransientError):
            store.put(folder + "a", BODY, digest=DIGEST)
        with pytest.raises(ThrottledError) as caught:
            store.get(folder + "a")
        assert store.get(folder + "a") == BODY
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        said = process.stdout.read()

    assert caught.value.retry_after_seconds == 3
    assert said == "3 requests; struck: lost_reply 1, slow_down 1\n"


@pytest.mark.parametrize("rule", ["fire", "stall:Put", "stall::often=1"])
def test_the_command_says_what_is_wrong_with_a_rule(rule: str) -> None:
    command = [sys.executable, "-m", "cachetier.testing.s3proxy", "--upstream", "http://127.0.0.1"]
    ended = subprocess.run([*command, "--fault", rule], capture_output=True, text=True, check=False)

    assert ended.returncode == 2
    assert "argument --fault" in ended.stderr
