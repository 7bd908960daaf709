"""Whole steps out as files: never fewer shards than the step has."""

from __future__ import annotations

from pathlib import Path

import pytest
from cachetier_client import Client, IncompleteError, RemoteRefusedError
from cachetier_client.step_files import export_files

from tests.client.fake_service import FakeService, Refusal

OF_ONE_NODE = {
    "run": "r",
    "step": 7,
    "state": "published",
    "ranks": [0],
    "world_size": 2,
    "shards": [{"name": "x", "rank": 0, "size_bytes": 1, "digest": "00", "state": "clean"}],
}


def test_shards_of_other_nodes_are_missed_and_not_left_out_while_the_remote_is_away(
    service: FakeService, client: Client, tmp_path: Path
) -> None:
    """This node lists what others put into a published step only if it can ask the remote."""
    out = tmp_path / "out"
    out.mkdir()
    service.answers["step"] = {"step": {**OF_ONE_NODE, "levels": ["local", "durable"]}}
    service.refusals["steps"] = [Refusal("remote_refused")]
    with pytest.raises(RemoteRefusedError):
        export_files(client, "r", 7, out)

    service.answers["step"] = {"step": {**OF_ONE_NODE, "levels": ["local", "replicated"]}}
    with pytest.raises(IncompleteError, match="not whole"):
        export_files(client, "r", 7, out)
    assert list(out.iterdir()) == []
