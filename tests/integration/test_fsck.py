"""``cachetier fsck`` on what a real service left, over a real S3 server."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client
from cachetier_client.clock import SystemClock
from click.testing import CliRunner

from cachetier.cli.app import app
from cachetier.config.settings import load
from cachetier.local.recovery import open_store
from cachetier.remote.base import ObjectStore
from cachetier.remote.factory import open_remote
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.integration.serving import as_file, node_settings, running

BODY = bytes(range(256)) * 1000
LARGE = bytes(17 << 20)  # of more than one part


@dataclass
class Site:
    """A node that has published a step, and is stopped."""

    settings: dict[str, Any]
    objects: ObjectStore
    config: Path

    @property
    def cache_dir(self) -> Path:
        return Path(self.settings["cache_dir"])

    def fsck(self, *options: str) -> Any:
        return CliRunner().invoke(app, ["fsck", "--config", str(self.config), *options])

    def data_files(self) -> list[Path]:
        return [path for path in (self.cache_dir / "data").rglob("*") if path.is_file()]

    def key(self, name: str) -> str:
        prefix = str(self.settings["remote"]).rsplit("/", 1)[1]
        return f"{prefix}/run/7/{name}"

    def reads(self) -> None:
        with running(self.settings) as service, Client(f"unix://{service.socket}") as client:
            assert bytes(client.get_shard("run", 7, "model")) == BODY
            assert bytes(client.get_shard("run", 7, "large")) == LARGE
            assert bytes(client.get_shard("run", 7, "small")) == b"small"


@pytest.fixture
def site(tmp_path: Path, seaweed_s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> Site:
    remote = f"s3://{seaweed_s3.bucket}/{tmp_path.name}"
    settings = node_settings(tmp_path, seaweed_s3, remote, monkeypatch)
    with running(settings) as service, Client(f"unix://{service.socket}") as client:
        with client.checkpoint("run", 7, rank=0, world_size=1) as checkpoint:
            checkpoint.put(BODY, "model")
            checkpoint.put(LARGE, "large")
            checkpoint.put(b"small", "small")
        client.wait("run", 7, "durable", 60)
    config = tmp_path / "cachetier.toml"
    config.write_text(as_file(settings))
    bucket = open_remote(load(settings).durable)
    return Site(settings, bucket.objects, config)


def test_what_a_service_left_is_clean(site: Site) -> None:
    result = site.fsck("--data", "--json")

    report = json.loads(result.stdout)
    assert (result.exit_code, report["clean"], report["findings"]) == (0, True, [])
    assert (report["shards"], report["objects"], report["online"]) == (3, 3, False)
    assert report["checked_bytes"] == len(BODY) + len(LARGE) + 5
    assert "clean" in site.fsck().stdout


def test_beside_the_running_service_it_looks_and_does_not_repair(site: Site) -> None:
    with running(site.settings):
        result = site.fsck("--json", "--data")
        assert (result.exit_code, json.loads(result.stdout)["online"]) == (0, True)
        refused = site.fsck("--repair")
    assert refused.exit_code == 2
    assert "Stop it to repair" in refused.stderr


def test_damage_here_and_there_is_repaired_and_the_step_reads_as_before(site: Site) -> None:
    large = next(path for path in site.data_files() if path.stat().st_size == len(LARGE))
    large.write_bytes(LARGE[:-1] + b"\x01")
    site.objects.delete(site.key("model"))

    found = site.fsck("--data")
    assert found.exit_code == 5
    assert "run/7/large: its bytes fail their digest (bytes_damaged)" in found.stdout
    assert "its object is missing (object_missing)" in found.stdout

    repaired = site.fsck("--data", "--repair")
    assert repaired.exit_code == 0, repaired.stdout
    assert "repair run/7/model: bring it there again" in repaired.stdout
    assert site.fsck("--data").exit_code == 0
    site.reads()


def test_a_large_object_that_is_gone_is_sent_again(site: Site) -> None:
    key = site.key("large")
    before = site.objects.head(key)
    site.objects.delete(key)

    assert site.fsck("--repair").exit_code == 0

    after = site.objects.head(key)
    assert before is not None
    assert after is not None
    assert (after.size_bytes, after.digest) == (before.size_bytes, before.digest)


def test_without_the_remote_only_the_node_is_looked_at(site: Site) -> None:
    result = site.fsck("--local", "--json")

    assert (result.exit_code, json.loads(result.stdout)["objects"]) == (0, 0)
    assert site.fsck("--local", "--rebuild").exit_code == 2


def test_a_lost_catalog_is_rebuilt_and_the_step_comes_from_the_bucket(site: Site) -> None:
    (site.cache_dir / "catalog.db").unlink()
    lost = site.fsck()
    assert lost.exit_code == 5
    assert "catalog.db is missing" in lost.stdout
    assert "Next: read docs/recovery.md; then, if need be, run it again with --rebuild." in (
        lost.stdout
    )

    result = site.fsck("--rebuild")
    assert site.fsck("--rebuild").exit_code == 2, "now it is sound"

    assert result.exit_code == 0, result.stdout
    assert "its step is published: the remote has it" in result.stdout
    site.reads()


def test_no_cache_is_a_usage_error(tmp_path: Path) -> None:
    options = ["fsck", "--local", "--cache-dir", str(tmp_path / "nothing"), "--json"]
    result = CliRunner().invoke(app, options)

    assert (result.exit_code, json.loads(result.stdout)["error"]["code"]) == (2, "config")


def test_a_store_that_was_never_drained_is_checked_too(tmp_path: Path) -> None:
    cache_dir = tmp_path / "cache"
    cache_dir.mkdir()
    open_store(cache_dir, 1 << 30, SystemClock()).store.close()

    assert (
        CliRunner().invoke(app, ["fsck", "--local", "--cache-dir", str(cache_dir)]).exit_code == 0
    )
