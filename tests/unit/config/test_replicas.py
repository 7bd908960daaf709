"""Replicas in the settings: tables, JSON, and every way to get one wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from cachetier_client.bucket_format.at_rest import AtRest

from cachetier.config.settings import load
from cachetier.errors import ConfigError

LEAST = {"cache_dir": "/tmp/cache", "remote": "s3://bucket"}


def test_replicas_are_tables_in_the_order_of_nearness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "replicas.toml"
    file.write_text(
        '[replicas.near]\nurl = "s3://near/p"\nendpoint = "http://127.0.0.1:8333"\n'
        '[replicas.b-2]\nurl = "s3://two"\nrequired = true\ncompression = "zstd:3"\n'
    )
    _, *replicas = load(LEAST, config=file).remotes
    assert [each.name for each in replicas] == ["near", "b-2"]
    assert (replicas[0].bucket, replicas[0].prefix) == ("near", "p")
    assert [each.required for each in replicas] == [False, True]

    monkeypatch.setenv("CACHETIER_REPLICAS", '{"near": {"url": "s3://other"}}')
    assert load(LEAST, config=file).remotes[1].bucket == "other"


@pytest.mark.parametrize(
    ("replicas", "says"),
    [
        ({"near": {"remote": "s3://two"}}, "near: unknown key `remote`: did you mean url?"),
        ({"near": {}}, "near: `url` is not set"),
        ({"near": {"url": "b"}}, "near.url: 'b' does not begin with s3://"),
        ({"near": {"url": "s3://two", "endpoint": "b:1"}}, "near.endpoint: 'b:1' is not a URL"),
        ({"near": {"url": "s3://two", "compression": "gzip"}}, "near.compression"),
        ({"near": "s3://two"}, "near: 's3://two' is not a table"),
        ({"near": {"url": "s3://two", "encryption": "rot13"}}, "near.encryption: 'rot13' is no"),
        ({"near": {"url": "s3://two", "storage_class": "GLACIER"}}, "cannot be read back"),
        ({"Near": {"url": "s3://two"}}, "'Near' cannot be the name of a replica"),
        ({"durable": {"url": "s3://two"}}, "'durable' cannot be the name of a replica"),
        ({"a" * 32: {"url": "s3://two"}}, "cannot be the name of a replica"),
        ({"near": {"url": "s3://bucket"}}, "near has the same place as `remote`"),
        (
            {"a": {"url": "s3://two"}, "c": {"url": "s3://two/"}},
            "c has the same place as replica a",
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
    with pytest.raises(ConfigError, match="near has the same place as `remote`"):
        load({**here, "replicas": {"near": {"url": "s3://bucket", "endpoint": endpoint}}})
    load({**here, "replicas": {"near": {"url": "s3://bucket", "endpoint": "http://store:8333"}}})


def test_each_remote_is_encrypted_as_its_own_settings_say() -> None:
    near = {"url": "s3://near", "encryption": "aws:kms", "kms_context": {"a": "b"}}
    settings = load(
        {
            **LEAST,
            "remote_encryption": "AES256",
            "remote_storage_class": "GLACIER_IR",
            "replicas": {"near": near, "far": {"url": "s3://far"}},
        }
    )
    assert settings.durable.at_rest == AtRest("AES256", storage_class="GLACIER_IR")
    kept = [each.at_rest for each in settings.remotes[1:]]
    assert kept == [AtRest("aws:kms", kms_context=(("a", "b"),)), AtRest()]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"remote_storage_class": "GLACIER"}, "cannot be read back at once"),
        ({"remote_storage_class": "DEEP_ARCHIVE"}, "take GLACIER_IR"),
        ({"remote_storage_class": "STANDARD IA"}, "is no storage class"),
        ({"remote_encryption": "AES256 k"}, 'needs the encryption "aws:kms"'),
        ({"remote": {"url": "s3://a-bucket", "kms_key": "k"}}, "mean encryption = 'aws:kms alias"),
        ({"remote_encryption": "AES256", "remote_kms_context": {"a": "b"}}, "needs the encryption"),
        ({"remote_encryption": "kms"}, "did you mean aws:kms?"),
        ({"remote_encryption": "aws:kms a b"}, "is no KMS key"),
    ],
)
def test_what_no_write_could_ask_for_is_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({**LEAST, **given})
    assert says in caught.value.message
