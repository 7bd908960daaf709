"""dcp.save while the service is away: the checkpoint goes to S3, and is loaded like any other."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from cachetier_client import Client
from cachetier_client.fallback.direct import parts
from cachetier_client.torch import CachetierReader, CachetierWriter, LazyStager
from torch.distributed import checkpoint as dcp

from cachetier.testing.s3_endpoint import S3Endpoint
from tests.integration.fallbacks import place
from tests.integration.serving import running

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is (disabled, )?unavailable or uninitialized:UserWarning"
)

MIB = 1 << 20


def state_of(seed: int) -> dict[str, object]:
    values = torch.Generator().manual_seed(seed)
    return {
        "large": torch.rand(5 * MIB, generator=values),
        "turned": torch.rand(2048, 3072, generator=values).t(),  # not contiguous: a stream
        "half": torch.rand(1000, generator=values).to(torch.bfloat16),
        "empty": torch.empty(0),
        "step": seed,
        "words": {"nested": ["a", "b"]},
    }


def assert_equal(left: dict[str, object], right: dict[str, object]) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        if isinstance(value, torch.Tensor):
            other = right[name]
            assert isinstance(other, torch.Tensor)
            assert torch.equal(value, other), name
        else:
            assert value == right[name], name


def loaded(client: Client, step: int) -> dict[str, object]:
    state = state_of(0)
    dcp.load(
        state,
        storage_reader=CachetierReader(f"cachetier://run/{step}", client=client),
        no_dist=True,
    )
    return state


def test_checkpoints_saved_without_the_service_are_loaded_once_it_is_back(
    moto_s3: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place(moto_s3, monkeypatch) as past:
        settings = {
            "cache_dir": tmp_path / "cache",
            "socket": past.scratch / "node.sock",
            "http": "",
            "capacity": "1 GB",
            "remote": f"s3://{past.name}/p",
            "remote_endpoint": moto_s3.url,
            "remote_assume": moto_s3.verify,
            "grace": "1s",
        }
        with past.client() as client:

            def save(step: int) -> None:
                writer = CachetierWriter(f"cachetier://run/{step}", client=client)
                dcp.save(state_of(step), storage_writer=writer, no_dist=True)

            with running(settings):
                save(1)
                client.wait("run", 1, "durable", 60)
                assert client.fallback_shards == 0
            for step in (2, 3):
                save(step)
                assert past.is_published(step)
            assert client.fallback_shards == 4  # each time the rank's, and DCP's metadata

            stager = LazyStager(ring_bytes=16 * MIB)
            writer = CachetierWriter("cachetier://run/4", client=client, stager=stager)
            aside = dcp.async_save(state_of(4), storage_writer=writer, no_dist=True)
            assert isinstance(aside, Future)
            aside.result()
            stager.close()
            writer.close()
            assert past.is_published(4)

            with running(settings):
                monkeypatch.setattr(parts, "THIS_PROCESS", parts.DirectRankParts())
                for step in (1, 2, 3, 4):
                    assert_equal(loaded(client, step), state_of(step))
                latest = client.latest("run")
                assert latest is not None
                assert latest.step == 4
