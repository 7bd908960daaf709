"""A rank that makes no client: the functions of ``cachetier_client`` against a real node."""

from __future__ import annotations

import cachetier_client
import pytest

from tests.integration.test_unix_door import Door, door

__all__ = ["door"]


def test_steps_are_saved_found_and_read_by_functions_alone(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHETIER_URL", f"unix://{door.path}")
    monkeypatch.setenv("CACHETIER_RUN", "a-run")
    with cachetier_client.checkpoint(None, 7, rank=0, world_size=1) as part:
        part.put("model", b"weights")
    cachetier_client.put_shard(b"more", step=8, name="model", rank=0, world_size=1)
    cachetier_client.seal(None, 8, rank=0, world_size=1)

    assert [each.step for each in cachetier_client.steps(None)] == [7, 8]
    newest = cachetier_client.latest(None, level="local")
    assert newest is not None
    assert newest.step == 8
    assert bytes(cachetier_client.get_shard(None, 7, "model")) == b"weights"
    with pytest.raises(cachetier_client.NotDurableError):
        cachetier_client.wait(None, 8, "durable", timeout_seconds=0.1)
    with pytest.raises(cachetier_client.NotDurableError):
        cachetier_client.flush(timeout_seconds=0.1)
    cachetier_client.default_client().close()
