"""A node to be damaged: closed, checked, repaired and opened again."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from cachetier_client.bucket_format.layout import Layout

from cachetier.fsck.findings import FindingKind, FsckReport
from cachetier.fsck.run import FsckOptions, fsck
from cachetier.local.catalog import rows
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import SaveState
from cachetier.model.names import DURABLE
from cachetier.model.shard import Shard
from cachetier.remote.base import ObjectStore
from cachetier.remote.bucket import Bucket, Remote
from tests.fakes.fake_clock import FakeClock
from tests.stateful.fake_drain import FakeDrain
from tests.stateful.invariants import judge_bytes, judge_rows
from tests.stateful.node import Node
from tests.unit.steps.test_operations import LARGE, save_step

CAPACITY_BYTES = 64 << 20


class PlainDrain(FakeDrain):
    """A drain to the remote that the service calls ``durable``, without packs."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)  # type: ignore[arg-type]
        self.packing = _never


def _never(_save: Save) -> bool:
    return False


class Patient:
    """A cache directory, and a remote in memory."""

    def __init__(self, directory: Path, remote: ObjectStore, clock: FakeClock) -> None:
        self.cache_dir = directory / "cache"
        self.remote = remote
        self.clock = clock

    def started(self) -> Node:
        return Node(self.cache_dir, self.remote, self.clock, make_drain=PlainDrain)

    @contextmanager
    def running(self) -> Iterator[Node]:
        node = self.started()
        try:
            yield node
        finally:
            node.close()

    def saved(self) -> dict[str, Shard]:
        """Publish step 1, leave step 2 sealed and dirty; return the shards by step and rank."""
        with self.running() as node:
            save_step(node, 1)
            node.drain.drain_all()
            save_step(node, 2)
            return {f"{row.step}/{row.name}": row for row in node.rows()}

    def checked(self, **wanted: bool) -> FsckReport:
        remotes = [Remote(DURABLE, Bucket(self.remote, Layout("tier")))]
        self.said: list[str] = []
        return fsck(
            self.cache_dir,
            remotes,
            self.clock,
            FsckOptions(**wanted),  # type: ignore[arg-type]
            capacity_bytes=CAPACITY_BYTES,
            say=self.said.append,
            sleep=lambda _seconds: None,
        )

    def found(self, **wanted: bool) -> list[FindingKind]:
        return sorted(finding.kind for finding in self.checked(**wanted).findings)

    def repaired(self, **wanted: bool) -> FsckReport:
        """Repair, and check that this node is then clean, however it is looked at."""
        report = self.checked(repair=True, **wanted)
        assert report.remaining() == [], report.outcomes
        said = self.said
        again = self.checked(data=True)
        self.said = said
        assert [f for f in again.findings if f.is_problem] == []
        return report

    def path(self, shard: Shard) -> Path:
        assert shard.file_id is not None
        return self.cache_dir / "data" / shard.file_id[:2] / shard.file_id

    def flip(self, shard: Shard, at: int = 1000) -> None:
        flip(self.path(shard), at)

    def sql(self, statement: str, *values: object) -> None:
        """Change the catalog behind everybody's back."""
        with closing(sqlite3.connect(self.cache_dir / "catalog.db")) as connection:
            connection.execute("PRAGMA foreign_keys = OFF")
            connection.execute(statement, values)
            connection.commit()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def row_digest(self, shard: Shard, name: str) -> bytes:
        """Return what the row of a shard would say of itself under another name."""
        return rows.row_digest(shard.save_id, name, shard.rank, shard.content)

    def damage_index(self, name: str) -> None:
        """Empty an index behind SQLite's back: its table goes on as if nothing had happened."""
        with closing(sqlite3.connect(self.cache_dir / "catalog.db")) as connection:
            sql = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
            (root,) = connection.execute(sql, (name,)).fetchone()
            (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        with (self.cache_dir / "catalog.db").open("r+b") as file:
            file.seek((root - 1) * page_bytes)
            empty_leaf = struct.pack(">BHHHB", 0x0A, 0, 0, page_bytes, 0)
            file.write(empty_leaf)

    def reads_everything(self) -> None:
        """Every shard that was acknowledged is given back, whatever happened to it."""
        with self.running() as node:
            for step in (1, 2):
                assert node.get("run", step, "rank-0") == f"save of {step}".encode()
                assert node.get("run", step, "rank-1") == LARGE

    def evicts(self) -> None:
        """Nothing is left here but what the remote does not have."""
        with self.running() as node:
            for row in node.rows():
                node.evict(row)

    def drains(self) -> None:
        """What is dirty gets to the remote, and step 2 is published."""
        with self.running() as node:
            node.drain.drain_all()
            assert node.checkpoints.step("run", 1)[0].state == str(SaveState.PUBLISHED)
            assert node.checkpoints.step("run", 2)[0].state == str(SaveState.PUBLISHED)
            judge_bytes(node)
            judge_rows(node)


def flip(path: Path, at: int) -> None:
    body = bytearray(path.read_bytes())
    body[at % len(body)] ^= 0x10
    path.write_bytes(body)
