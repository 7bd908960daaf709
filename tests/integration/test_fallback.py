"""Ranks that save while their service is away: what they put can be restored like anything else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from cachetier_client import Client
from cachetier_client.errors import (
    SaveSupersededError,
    SealedError,
    StepPublishedError,
)
from cachetier_client.fallback.direct import parts

from cachetier.testing.s3_endpoint import S3Endpoint
from tests.fakes.bodies import noise
from tests.integration.fallbacks import RUN, Place, place, until
from tests.integration.serving import running

LARGE = 17 << 20  # more than one part
SAVE = "a-save"


@pytest.fixture
def past(moto_s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with place(moto_s3, monkeypatch) as made:
        yield made


def restored(past: Place, step: int) -> dict[str, bytes]:
    """Return the shards of a step as a node that never saw it gives them."""
    with past.node("elsewhere"), past.client("elsewhere", fallback="fail") as client:
        listing = [sys.executable, "-m", "cachetier", "ls", RUN, "--level", "durable", "--json"]
        listed = subprocess.check_output([*listing, "--url", client.url])
        assert json.loads(listed)["steps"][-1]["step"] == step
        names = [shard.name for shard in client.step(RUN, step).shards]
        return {name: bytes(client.get_shard(RUN, step, name)) for name in names}


def test_a_step_saved_without_any_service_is_restored_by_one_that_comes_later(past: Place) -> None:
    pieces = [noise(LARGE)[:5_000_001], noise(LARGE)[5_000_001:]]
    for rank in range(2):
        with past.client(f"node-{rank}") as client:
            with client.checkpoint(RUN, 1, rank=rank, world_size=2, save_id=SAVE) as checkpoint:
                receipt = checkpoint.put(pieces, f"gathered-{rank}")
                assert receipt.level == "durable"
                checkpoint.put(b"", f"empty-{rank}")
                with checkpoint.open(f"streamed-{rank}") as stream:
                    stream.write(noise(LARGE)[:3])
                    stream.write(noise(LARGE)[3:])
                with checkpoint.open(f"short-{rank}") as stream:
                    stream.write(b"short")
            assert past.is_published(1) == (rank == 1)
            assert (client.fallback_shards, client.fallback_bytes) == (4, 2 * LARGE + 5)

    expected = {"gathered": noise(LARGE), "empty": b"", "streamed": noise(LARGE), "short": b"short"}
    assert restored(past, 1) == {
        f"{name}-{rank}": body for name, body in expected.items() for rank in range(2)
    }


def test_a_service_that_is_killed_between_two_puts_seals_what_went_past_it(past: Place) -> None:
    with past.node() as node, past.client() as client:
        with client.checkpoint(RUN, 1, rank=0, world_size=1, save_id=SAVE) as checkpoint:
            assert checkpoint.put(b"first" * 1000, "first").level == "local"
            node.kill()
            assert checkpoint.put(noise(LARGE), "second").level == "durable"
        assert not past.is_published(1)
        pending = "p/run/1/.cachetier/pending-0.json"
        assert pending in past.all_keys()

        node.start()
        until(lambda: past.is_published(1))
        until(lambda: pending not in past.all_keys())
        assert bytes(client.get_shard(RUN, 1, "second")) == noise(LARGE)
        local = client.latest(level="local")
        assert local is None or local.step == 1
    assert restored(past, 1) == {"first": b"first" * 1000, "second": noise(LARGE)}


def test_a_service_that_is_killed_before_the_seal_seals_when_it_is_back(past: Place) -> None:
    with past.node() as node, past.client() as client:
        checkpoint = client.checkpoint(RUN, 1, rank=0, world_size=1, save_id=SAVE)
        checkpoint.put(b"only", "only")
        node.kill()
        assert checkpoint.seal() == (0,)
        assert client.fallback_shards == 0

        node.start()
        until(lambda: past.is_published(1))
    assert restored(past, 1) == {"only": b"only"}


def test_a_part_that_went_past_the_service_goes_on_so_when_that_is_back(past: Place) -> None:
    with past.node() as node, past.client() as client:
        with client.checkpoint(RUN, 1, rank=0, world_size=1, save_id=SAVE) as checkpoint:
            checkpoint.put(b"before", "before")
            node.kill()
            checkpoint.put(b"without", "without")
            node.start()
            assert checkpoint.put(b"after", "after").level == "durable"
        # The end of the part tells the service, which need not wait for its next look.
        until(lambda: past.is_published(1))
        status = client.status()
        assert status["state"] == "ready"

        with client.checkpoint(RUN, 2, rank=0, world_size=1, save_id=SAVE) as checkpoint:
            assert checkpoint.put(b"with", "with").level == "local"
        until(lambda: past.is_published(2))
        assert client.fallback_shards == 2
    assert past.bucket.objects.get("p/run/1/after") == b"after"
    manifest = past.manifest(1)
    assert manifest is not None
    assert [shard.name for shard in manifest.shards] == ["after", "before", "without"]


def test_what_is_left_at_the_service_of_a_try_that_was_given_up_is_never_read(past: Place) -> None:
    def save(body: bytes) -> None:
        with client.checkpoint(RUN, 1, rank=0, world_size=1, save_id=SAVE) as checkpoint:
            checkpoint.put(body, "x")
            if body == b"first try":
                checkpoint.put(body, "y")
                node.kill()
                raise ZeroDivisionError

    with past.node() as node, past.client() as client:
        with pytest.raises(ZeroDivisionError):
            save(b"first try")
        save(b"second try")
        assert past.is_published(1)

        node.start()
        until(lambda: bytes(client.get_shard(RUN, 1, "x")) == b"second try")
        client.wait(RUN, 1, "durable", 60)
        assert [shard.name for shard in client.step(RUN, 1).shards] == ["x"]
        assert client.status()["dirty_bytes"] == 0
    assert restored(past, 1) == {"x": b"second try"}


@pytest.mark.parametrize("last", ["direct", "served"])
def test_a_rank_with_its_service_and_one_without_publish_a_step_together(
    past: Place, last: str
) -> None:
    def save(client: Client, rank: int) -> None:
        with client.checkpoint(RUN, 1, rank=rank, world_size=2, save_id=SAVE) as checkpoint:
            checkpoint.put(f"rank {rank}".encode(), f"of-{rank}")

    with past.node(), past.client() as served, past.client("nowhere") as direct:
        if last == "direct":
            save(served, 0)
            until(lambda: "p/run/1/.cachetier/rank-0.json" in past.all_keys())
            save(direct, 1)
        else:
            save(direct, 1)
            save(served, 0)
            served.wait(RUN, 1, "durable", 60)
        assert past.is_published(1)
        assert (served.fallback_shards, direct.fallback_shards) == (0, 1)
    assert restored(past, 1) == {"of-0": b"rank 0", "of-1": b"rank 1"}


def test_the_service_hears_what_went_past_it_and_counts_it(
    past: Place, moto_s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CACHETIER_REMOTE")  # the client knows it from the service alone
    settings = {
        "cache_dir": past.scratch / "cache",
        "socket": past.scratch / "node.sock",
        "http": "",
        "capacity": "1 GB",
        "remote": f"s3://{past.name}/p",
        "remote_endpoint": moto_s3.url,
        "remote_assume": moto_s3.verify,
        "grace": "1s",
    }
    with past.client() as client:
        with running(settings):
            assert client.status()["state"] == "ready"
        for step in (1, 2):
            with client.checkpoint(RUN, step, rank=0, world_size=1, save_id=SAVE) as checkpoint:
                checkpoint.put(b"direct", "direct")
        with running(settings) as service:
            client.close()
            told = service.metrics.exposition().decode().splitlines()
            assert "cachetier_fallback_shards_total 2.0" in told
            assert "cachetier_fallback_bytes_total 12.0" in told


# --- what the service would refuse, too ----------------------------------------------------------


def test_a_published_step_is_only_replaced_if_that_was_asked_for(
    past: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with past.client() as client:
        with client.checkpoint(RUN, 1, rank=0, world_size=1, save_id="old") as checkpoint:
            checkpoint.put(b"old", "x")
        with pytest.raises(StepPublishedError):
            client.put_shard(b"new", step=1, name="x", rank=0, world_size=1, save_id="new")
        with client.checkpoint(
            RUN, 1, rank=0, world_size=1, save_id="new", overwrite=True
        ) as checkpoint:
            checkpoint.put(b"new", "x")
        monkeypatch.setattr(parts, "THIS_PROCESS", parts.DirectRankParts())  # another process, late
        with pytest.raises(SaveSupersededError):
            client.put_shard(
                b"x", step=1, name="y", rank=0, world_size=1, save_id="old", overwrite=True
            )
    assert past.bucket.objects.get("p/run/1/x") == b"old"
    assert restored(past, 1) == {"x": b"new"}


def test_a_name_is_replaced_until_the_seal_and_the_same_bytes_are_harmless_after(
    past: Place,
) -> None:
    ids: dict[str, Any] = {"step": 1, "rank": 0, "world_size": 1, "save_id": SAVE}
    with past.client() as client:
        client.put_shard(b"one", name="x", **ids)
        client.put_shard(noise(LARGE), name="x", **ids)
        client.put_shard(b"three", name="x", **ids)
        assert client.seal(RUN, 1, rank=0, world_size=1, save_id=SAVE) == (0,)
        assert client.seal(RUN, 1, rank=0, world_size=1, save_id=SAVE) == (0,)
        assert client.put_shard(b"three", name="x", **ids).level == "durable"
        with pytest.raises(SealedError):
            client.put_shard(b"four", name="x", **ids)
    assert restored(past, 1) == {"x": b"three"}


def test_other_bytes_than_the_service_holds_are_refused(past: Place) -> None:
    ids: dict[str, Any] = {"step": 1, "rank": 0, "world_size": 1, "save_id": SAVE}
    with past.node() as node, past.client() as client:
        client.put_shard(b"one", name="x", **ids)
        node.kill()
        client.put_shard(b"other", name="y", **ids)
        assert client.put_shard(b"one", name="x", **ids).level == "local"
        with pytest.raises(SealedError, match="holds other bytes"):
            client.put_shard(b"two", name="x", **ids)


def test_an_aborted_part_leaves_none_of_its_objects(past: Place) -> None:
    with past.client() as client:
        with pytest.raises(ZeroDivisionError):
            with client.checkpoint(RUN, 1, rank=0, world_size=1, save_id=SAVE) as checkpoint:
                checkpoint.put(b"x", "x")
                with checkpoint.open("y") as stream:
                    stream.write(noise(LARGE))
                raise ZeroDivisionError
    claim = "p/run/1/.cachetier/manifest.json"  # hinders nobody
    assert past.all_keys() == [claim]
    assert not list(past.bucket.objects.list_uploads("p/"))
    with past.client() as client:
        with client.checkpoint(RUN, 1, rank=0, world_size=1, save_id="again") as checkpoint:
            checkpoint.put(b"again", "x")
    assert restored(past, 1) == {"x": b"again"}
