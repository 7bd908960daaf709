"""A cache directory that an earlier cachetier left is opened, and every shard of it is read."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import apsw
import pytest

from cachetier.errors import CatalogDamagedError, IntegrityError
from cachetier.local.catalog import connection, notes, schema, uploads
from cachetier.model.levels import Level
from tests.crash.golden_directory import (
    GOLDEN,
    PART_BYTES,
    RUN,
    SHARDS,
    body,
    build,
    ids,
    pack,
    unpack,
)
from tests.crash.sweep import fates
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.fakes.strict_disk import StrictDisk
from tests.stateful.fake_drain import REMOTE
from tests.stateful.invariants import judge_bytes
from tests.stateful.node import Node
from tests.stateful.reading import bytes_of
from tests.stateful.unsynced import unsynced

DIRECTORIES = sorted(GOLDEN.glob("schema-*.tar.xz"))


def opened(cache_dir: Path, vfs: str) -> Node:
    return Node(cache_dir, MemoryObjectStore(minimum_part_bytes=1), FakeClock(), vfs=vfs)


def judge(node: Node) -> None:
    """Check that what ``build`` made is all there."""
    rows = {(row.step, row.name): row for row in node.rows()}
    assert {address: str(row.state) for address, row in rows.items()} == SHARDS
    for address, row in rows.items():
        if SHARDS[address] != "evicted":
            assert bytes_of(node.store, row) == body(*address)
    states = {view.step: (view.state, view.ranks) for view in node.checkpoints.steps(RUN)}
    assert states == {
        1: ("published", (0, 1)),
        2: ("sealed", (0, 1)),
        3: ("open", ()),
        4: ("damaged", ()),
    }
    assert [(pin.step, pin.pinned_at) for pin in node.store.read(notes.pins)] == [(1, 10.0)]
    (incident,) = node.store.read(notes.incidents_after, 0)
    assert (incident.step, incident.name, incident.at) == (4, "b/c", 20.0)
    upload = node.store.read(uploads.progress_of, rows[3, "b/c"].version, REMOTE)
    assert (upload.upload_id, upload.part_bytes, len(upload.parts)) == ("an-upload", PART_BYTES, 1)
    judge_bytes(node)


@pytest.mark.parametrize("golden", DIRECTORIES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_what_an_earlier_cachetier_left_is_all_there_and_goes_on(
    golden: Path, tmp_path: Path, vfs: str
) -> None:
    unpack(golden, tmp_path / "cache")
    for _ in range(2):
        node = opened(tmp_path / "cache", vfs)
        judge(node)
        node.close()

    node = opened(tmp_path / "cache", vfs)
    with pytest.raises(IntegrityError):
        node.get(RUN, 4, "b/c")
    for rank in (0, 1):
        node.checkpoints.seal(ids(3, rank), 2)
    node.drain.drain_all()

    latest = node.checkpoints.latest(RUN, Level.DURABLE)
    assert latest is not None
    assert latest.step == 3, "what was open is sealed, sent and published"
    for name in ("a", "b/c"):
        assert node.get(RUN, 3, name) == body(3, name)
    node.close()


def test_what_an_earlier_cachetier_left_is_all_there_when_the_power_goes_while_it_is_migrated(
    tmp_path: Path,
) -> None:
    (tmp_path / "top").mkdir()
    unpack(DIRECTORIES[-1], tmp_path / "top" / "cache")
    disk, images = StrictDisk(tmp_path / "top"), []
    disk.on_step = lambda: images.append(disk.image())
    with disk.recording():
        node = opened(tmp_path / "top" / "cache", disk.vfs)
        images.append(disk.image())
        disk.on_step = lambda: None
        node.die()

    seen, schemas = set(), set()
    (tmp_path / "arena").mkdir()
    with unsynced() as vfs:
        for number, image in enumerate(images):
            for _way, fate in fates(number, lucks=3):
                left = image.survivor(fate)
                if left.identity in seen:
                    continue
                seen.add(left.identity)
                left.write_to(tmp_path / "arena")
                schemas.add(schema_of(tmp_path / "arena" / "cache"))
                node = opened(tmp_path / "arena" / "cache", vfs)
                judge(node)
                node.die()
    assert schemas == {schema.VERSION - 1, schema.VERSION}
    assert len(seen) > len(images)


def schema_of(cache_dir: Path) -> object:
    """Return the version that a copy of the catalog, with its log, has."""
    with tempfile.TemporaryDirectory() as folder:
        for path in cache_dir.glob("catalog.db*"):
            shutil.copy(path, folder)
        sql = apsw.Connection(str(Path(folder) / "catalog.db"))
        version = sql.pragma("user_version")
        sql.close()
    return version


def test_a_directory_built_today_is_as_the_golden_ones_are(tmp_path: Path, vfs: str) -> None:
    """So that it can be kept before its schema is released."""
    build(tmp_path / "cache")
    pack(tmp_path / "cache", tmp_path / "today.tar.xz")
    unpack(tmp_path / "today.tar.xz", tmp_path / "again")

    node = opened(tmp_path / "again", vfs)
    judge(node)
    node.close()
    assert "schema-12.tar.xz" in {path.name for path in DIRECTORIES}


def test_a_catalog_of_a_newer_cachetier_is_refused_and_left_as_it_is(
    tmp_path: Path, vfs: str
) -> None:
    newer = schema.VERSION + 1
    unpack(DIRECTORIES[-1], tmp_path / "cache")
    sql = apsw.Connection(str(tmp_path / "cache" / "catalog.db"))
    sql.pragma("user_version", newer)
    connection.abandon(sql)
    before = files_of(tmp_path / "cache")

    with pytest.raises(CatalogDamagedError) as refusal:
        opened(tmp_path / "cache", vfs)

    assert refusal.value.message == (
        f"the catalog has schema {newer}, this cachetier knows {schema.VERSION}"
    )
    assert refusal.value.hint.startswith("Start the newer cachetier again")
    assert files_of(tmp_path / "cache") == before


def files_of(cache_dir: Path) -> dict[str, bytes]:
    files = [path for path in cache_dir.rglob("*") if path.is_file()]
    return {path.name: path.read_bytes() for path in files if not path.name.endswith("-shm")}
