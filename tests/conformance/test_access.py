"""What only a person can mend says so, and is told apart from what passes by itself."""

from __future__ import annotations

import pytest
from awscrt.checksums import crc64nvme

from cachetier.errors import ConfigError, RemoteRefusedError, TransientError
from cachetier.remote.base import ObjectStore
from cachetier.remote.s3.boto_client import Credentials, connect
from cachetier.remote.s3.reconnecting import Renewed
from cachetier.remote.s3.store import S3ObjectStore
from cachetier.remote.stall_guard import Timeouts
from cachetier.testing.s3_endpoint import S3Endpoint, free_ports
from cachetier.testing.weed import OWNER, READER

WRONG_SECRET = Credentials(OWNER.access_key, "not the secret")
UNKNOWN_KEY = Credentials("nobody", "nobody's secret")


def put(store: ObjectStore, key: str) -> None:
    store.put(key, b"body", digest=crc64nvme(b"body"))


def test_a_missing_bucket_is_refused_by_check_and_by_every_write(server: S3Endpoint) -> None:
    store = server.store(bucket="there-is-no-such-bucket")

    for call in (
        store.check,
        lambda: put(store, "a"),
        lambda: store.get("a"),
        lambda: store.list(""),
        lambda: store.create_upload("a"),
    ):
        with pytest.raises(RemoteRefusedError):
            call()


@pytest.mark.parametrize("credentials", [WRONG_SECRET, UNKNOWN_KEY], ids=["secret", "key"])
def test_wrong_credentials_are_refused(
    seaweed_s3: S3Endpoint, credentials: Credentials, folder: str
) -> None:
    store = seaweed_s3.store(credentials=credentials)

    for call in (
        store.check,
        lambda: store.head(folder + "a"),
        lambda: store.get(folder + "a"),
        lambda: put(store, folder + "a"),
        lambda: store.list(folder),
        lambda: store.delete(folder + "a"),
    ):
        with pytest.raises(RemoteRefusedError):
            call()


def test_who_may_only_read_is_refused_a_write_and_changes_nothing(
    seaweed_s3: S3Endpoint, folder: str
) -> None:
    put(seaweed_s3.store(), folder + "a")
    store = seaweed_s3.store(credentials=READER)
    try:
        store.check()
    except RemoteRefusedError:
        pytest.skip("the server has no key that may only read")

    for call in (
        lambda: put(store, folder + "a"),
        lambda: store.create_upload(folder + "a"),
        lambda: store.delete(folder + "a"),
    ):
        with pytest.raises(RemoteRefusedError):
            call()
    assert store.get(folder + "a") == b"body"


def test_no_credentials_at_all_are_refused_before_anything_is_sent(
    moto_s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    store = S3ObjectStore(moto_s3.bucket, Renewed(lambda: connect(endpoint=moto_s3.url)))

    with pytest.raises(RemoteRefusedError):
        store.check()


def test_the_usual_aws_variables_let_a_store_in(
    seaweed_s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in seaweed_s3.environment().items():
        monkeypatch.setenv(name, value)

    S3ObjectStore(seaweed_s3.bucket, Renewed(lambda: connect(endpoint=seaweed_s3.url))).check()


def test_a_store_that_is_not_there_is_a_passing_trouble() -> None:
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    client = connect(endpoint=nobody, timeouts=Timeouts(1.0, 1.0))
    store = S3ObjectStore("bucket", Renewed(lambda: client))

    with pytest.raises(TransientError):
        store.head("a")


def test_an_endpoint_that_is_no_address_is_an_error_of_configuration() -> None:
    with pytest.raises(ConfigError):
        connect(endpoint="not an address")


def test_an_empty_key_never_becomes_a_request_for_the_bucket(moto_s3: S3Endpoint) -> None:
    with pytest.raises(RemoteRefusedError):
        moto_s3.store().delete("")


def test_secrets_do_not_show_in_what_is_printed() -> None:
    assert "hush" not in repr(Credentials("key", "hush", "hush"))
