"""What a catalog says to who only asks how large a save was."""

from __future__ import annotations

from pathlib import Path

from cachetier_client.identity.names import SaveIds

from cachetier.local.recovery import CATALOG_NAME
from cachetier.local.repair.open_catalog import largest_save
from tests.stateful.node import Node


def test_the_largest_save_is_the_sum_of_its_shards(node: Node) -> None:
    for step, shards in ((1, 3), (2, 2)):
        for number in range(shards):
            node.put(SaveIds("run", step, "save"), str(number), bytes(1000))

    assert largest_save(node.cache_dir) == 3000


def test_nobody_can_tell_of_a_catalog_that_is_missing_or_none(tmp_path: Path) -> None:
    assert largest_save(tmp_path) is None

    (tmp_path / CATALOG_NAME).write_bytes(b"no database" * 1000)
    assert largest_save(tmp_path) is None
