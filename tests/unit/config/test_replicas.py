"""Replicas in the settings: tables, JSON, and every way to get one wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachetier.config.settings import load
from cachetier.errors import ConfigError

LEAST = {"cache_dir": "/tmp/cache", "remote": "s3://bucket"}


def test_replicas_are_tables_in_the_order_of_nearness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "replicas.toml"
    file.write_text(
        '[replicas.near]\nremote = "s3://near/p"\nendpoint = "http://127.0.0.1:8333"\n'
        '[replicas.b-2]\nremote = "s3://two"\nrequired = true\ncompression = "zstd:3"\n'
    )
    replicas = load(LEAST, config=file).replicas
    assert list(replicas) == ["near", "b-2"]
    assert (replicas["near"].bucket, replicas["near"].prefix) == ("near", "p")
    assert (replicas["near"].required, replicas["b-2"].required) == (False, True)

    monkeypatch.setenv("CACHETIER_REPLICAS", '{"near": {"remote": "s3://other"}}')
    assert load(LEAST, config=file).replicas["near"].bucket == "other"


@pytest.mark.parametrize(
    ("replicas", "says"),
    [
        ({"near": {"remot": "s3://two"}}, "near: unknown key `remot`: did you mean remote?"),
        ({"near": {}}, "near: `remote` is not set"),
        ({"near": {"remote": "b"}}, "near.remote: 'b' does not begin with s3://"),
        ({"near": {"remote": "s3://two", "endpoint": "b:1"}}, "near.endpoint: 'b:1' is not a URL"),
        ({"near": {"remote": "s3://two", "compression": "gzip"}}, "near.compression"),
        ({"near": "s3://two"}, "near: 's3://two' is no table"),
        ({"Near": {"remote": "s3://two"}}, "'Near' cannot be the name of a replica"),
        ({"durable": {"remote": "s3://two"}}, "'durable' cannot be the name of a replica"),
        ({"a" * 32: {"remote": "s3://two"}}, "cannot be the name of a replica"),
        ({"near": {"remote": "s3://bucket"}}, "near is the same place as `remote`"),
        (
            {"a": {"remote": "s3://two"}, "c": {"remote": "s3://two/"}},
            "c is the same place as replica a",
        ),
    ],
)
def test_a_replica_that_cannot_be_is_refused_by_name(replicas: object, says: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load({**LEAST, "remote": "s3://bucket", "replicas": replicas})
    assert says in refusal.value.message


@pytest.mark.parametrize("endpoint", ["http://Store:80", "http://store:80/", "http://STORE/"])
def test_one_server_written_in_two_ways_is_no_second_copy(endpoint: str) -> None:
    here = {**LEAST, "remote_endpoint": "http://store"}
    with pytest.raises(ConfigError, match="near is the same place as `remote`"):
        load({**here, "replicas": {"near": {"remote": "s3://bucket", "endpoint": endpoint}}})
    load({**here, "replicas": {"near": {"remote": "s3://bucket", "endpoint": "http://store:8333"}}})
