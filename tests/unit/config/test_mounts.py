"""Mounts of the S3 door in the settings: tables, JSON, and every way to get one wrong."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from cachetier.config.settings import Settings, load
from cachetier.errors import ConfigError
from cachetier.model.levels import Level
from cachetier.model.objects import Mode, Mount, Order

LEAST = {"cache_dir": "/tmp/cache", "remote": "s3://bucket/checkpoints"}
DATA = {"name": "data", "bucket": "bucket/data"}
DOOR = {**LEAST, "s3": "127.0.0.1:7071", "s3_mount": [DATA]}


@pytest.fixture(autouse=True)
def no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)


def refusal(**given: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        load({**LEAST, **given})
    return refused.value.message


def test_mounts_are_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mounts.toml"
    file.write_text(
        's3 = "127.0.0.1:7071"\n[[s3_mount]]\nname = "data"\nbucket = "bucket/data"\n'
        '[[s3_mount]]\nname = "logs"\nbucket = "other"\nmode = "write_through"\n'
        'order = "cluster 2h"\nack = "durable"\nmarkers = "a* b*"\n'
    )
    settings = load(LEAST, config=file)
    assert settings.s3_address == ("127.0.0.1", 7071)
    assert settings.s3_mounts == (
        Mount("data", "bucket", "data/"),
        Mount(
            "logs",
            "other",
            mode=Mode.WRITE_THROUGH,
            order=Order.CLUSTER,
            ack=Level.DURABLE,
            markers=("a*", "b*"),
            release_seconds=7200.0,
        ),
    )
    monkeypatch.setenv("CACHETIER_S3_MOUNT", '[{"name": "x", "bucket": "other"}]')
    assert load(LEAST, config=file).s3_mounts == (Mount("x", "other"),)


def test_the_door_is_off_by_default_and_its_mounts_are_still_known() -> None:
    settings = load({**LEAST, "s3_mount": [DATA]})
    assert settings.s3_address is None
    assert settings.s3_mounts == (Mount("data", "bucket", "data/"),)
    assert isinstance(load(LEAST), Settings)


@pytest.mark.parametrize(
    ("mount", "says"),
    [
        ({"bucket": "two"}, "1: `name` or `bucket` is not set"),
        ({"name": "a/b", "bucket": "two"}, "1.name: the name of a mount 'a/b' is not 1 to 128"),
        ({"name": "a~b", "bucket": "two"}, "1.name: 'a~b' cannot be the name of a mount"),
        ({"name": "a", "bucket": "b!"}, "1.bucket: 's3://b!' has '!' in its bucket"),
        ({"name": "a", "bucket": "two//p"}, "1.bucket: '/p' cannot be the prefix"),
        ({"name": "a", "bucket": "two/p//q"}, "1.bucket: 'p//q' cannot be"),
        ({"name": "a", "bucket": "two/p/.."}, "1.bucket: 'p/..' cannot be"),
        ({"name": "a", "bucket": "two/.cachetier"}, "1.bucket: '.cachetier' cannot"),
        ({"name": "a", "bucket": "two/" + "p" * 513}, "up to 512 bytes"),
        ({"name": "a", "bucket": "two", "mode": "readonly"}, "did you mean read_only?"),
        ({"name": "a", "bucket": "two", "order": "cluster soon"}, "is not a span of time"),
        ({"name": "a", "bucket": "two", "order": "cluster -1s"}, "is not a span of time"),
        ({"name": "a", "bucket": "two", "order": "node 2h"}, "waits for no time"),
        ({"name": "a", "bucket": "two", "release": "2h"}, "did you mean order = 'cluster 1h'?"),
        ({"name": "a", "bucket": "two", "order": "all"}, "1.order: 'all' is not"),
    ],
)
def test_a_mount_that_cannot_be_is_refused_by_what_is_wrong(mount: object, says: str) -> None:
    assert says in refusal(s3_mount=[mount])


def test_two_mounts_of_one_name_are_refused() -> None:
    says = refusal(s3_mount=[DATA, {**DATA, "bucket": "two/data"}])
    assert "two mounts are called data" in says


@pytest.mark.parametrize(
    ("bucket", "prefix", "other"),
    [
        ("bucket", "", "`remote` (s3://bucket/checkpoints/)"),
        ("bucket", "checkpoints", "`remote`"),
        ("bucket", "checkpoints/deep/er", "`remote`"),
        ("near", "n/data", "replica near (s3://near/n/)"),
        ("two", "data/a", "mount first (s3://two/data/)"),
        ("two", "", "mount first"),
        ("two", "data/", "mount first"),
    ],
)
def test_no_two_have_keys_in_common(bucket: str, prefix: str, other: str) -> None:
    first = {"name": "first", "bucket": "two/data"}
    mounts = [first, {"name": "second", "bucket": f"{bucket}/{prefix}"}]
    says = refusal(s3_mount=mounts, replicas={"near": {"url": "s3://near/n"}})
    assert says.startswith("mount second (")
    assert f"and {other}" in says
    assert "share keys" in says


@pytest.mark.parametrize(
    ("bucket", "prefix"), [("bucket", "checkpoints2"), ("bucket", "check"), ("away", "n/data")]
)
def test_names_that_only_begin_alike_and_other_servers_have_nothing_in_common(
    bucket: str, prefix: str
) -> None:
    replica = {"url": "s3://away/n", "endpoint": "http://near:8333"}
    mount = {"name": "a", "bucket": f"{bucket}/{prefix}"}
    load({**LEAST, "s3_mount": [mount], "replicas": {"near": replica}})


def test_a_door_with_nothing_to_offer_is_refused() -> None:
    assert "add an [[s3_mount]]" in refusal(s3="127.0.0.1:7071")


def test_beyond_loopback_the_door_wants_tls_or_somebody_who_says_that_it_does_not() -> None:
    door = {**DOOR, "s3": "0.0.0.0:7071"}
    assert "s3 0.0.0.0:7071 is open to other machines, and objects would" in refusal(**door)
    load({**door, "s3": "http://0.0.0.0:7071"})
    load({**door, "tls": "/c,/k"})
    assert "s3 0.0.0.0:7071" in refusal(**door, http="http://0.0.0.0:7070")


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:7071",
        "https://localhost:7071/",
        "http://[::1]:7071",
        "http://127.9.9.9:7071",
        "http://0.0.0.0:7071",
        "http://s3.node7:7071",
        "http://bucket.s3.node7:7071",
        f"http://{socket.gethostname()}:7071",
    ],
)
def test_a_remote_whose_endpoint_is_our_own_door_is_refused(
    variable: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = {**DOOR, "hosts": "s3.node7"}
    monkeypatch.setenv(variable, url)
    says = refusal(**door)
    assert f"{variable}={url} leads `remote` to our own S3 door" in says
    load({**door, "s3": ""})
    load({**door, "remote_endpoint": "http://127.0.0.1:8333"})

    monkeypatch.delenv(variable)
    assert f"the endpoint {url} leads `remote`" in refusal(**door, remote_endpoint=url)
    replicas = {"near": {"url": "s3://near", "endpoint": url}}
    assert f"the endpoint {url} leads replica near" in refusal(**door, replicas=replicas)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8333", "http://192.0.2.7:7071", "http://elsewhere:7071", "http://a:x"]
)
def test_another_server_in_the_variable_is_none_of_our_business(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    load(DOOR)


def test_the_variable_for_s3_alone_goes_before_the_one_for_all_services(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:7071")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:8333")
    load(DOOR)
