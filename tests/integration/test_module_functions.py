"""A rank that makes no client: the functions of ``cachetier_client`` against a real node."""

from __future__ import annotations

import json

import cachetier_client
import pytest
from click.testing import CliRunner

from cachetier.cli.app import app
from tests.integration.test_unix_door import Door, door

__all__ = ["door"]


def test_steps_are_saved_found_and_read_by_functions_alone(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHETIER_URL", f"unix://{door.path}")
    monkeypatch.setenv("CACHETIER_RUN", "a-run")
    with cachetier_client.checkpoint(None, 7, rank=0, world_size=1) as part:
        part.put(b"weights", "model")
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


def test_a_newer_step_of_this_node_is_named_beside_the_durable_one(door: Door) -> None:
    with cachetier_client.Client(f"unix://{door.path}", run="a-run") as client:
        for step in (7, 8):
            with client.checkpoint(None, step, rank=0, world_size=1) as part:
                part.put(b"weights", "model")
            if step == 7:
                door.node.drain.drain_all()
        durable, local = client.latest(), client.latest(level="local")

        assert durable is not None
        assert local is not None
        assert (durable.step, durable.newer_local) == (7, 8)
        assert (local.step, local.newer_local) == (8, None)
    url = ["--url", f"unix://{door.path}"]
    shown = CliRunner().invoke(app, ["ls", "a-run", "--latest", *url])
    assert shown.stdout == "7\n"
    assert shown.stderr == "This node can restore step 8, which is newer.\n"
    told = json.loads(CliRunner().invoke(app, ["ls", "a-run", "--latest", "--json", *url]).stdout)
    assert (told["step"]["step"], told["newer_local"]) == (7, 8)
