"""Objects of mounts under fsck: what is found of their rows, files and buckets, and mended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.bucket_format.uploads import ETAG_KEY
from cachetier_client.io.digests import digest_of

from cachetier.errors import TransientError
from cachetier.fsck.findings import FindingKind, FsckReport
from cachetier.fsck.run import FsckOptions, fsck
from cachetier.local.catalog import objects
from cachetier.model.lifecycle import ObjectState, ShardState
from cachetier.model.names import DURABLE
from cachetier.model.objects import Head, ObjectVersion
from cachetier.model.superseding import DeletionRecord, Stamp, Verdict, judge
from cachetier.remote.bucket import Bucket, Remote
from cachetier.remote.mounted import MountBuckets
from tests.fakes.bodies import noise
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node
from tests.unit.drain.mount_node import known_clock
from tests.unit.fsck.damage import CAPACITY_BYTES, Patient, flip
from tests.unit.objects.conftest import Putting
from tests.unit.objects.mounted_node import MOUNT, MountedNode

KEY = "in/a"
LARGE = noise(100_000)
PARTS = (noise(70_000), noise(90_000), noise(80_000))
HEAD = Head({"content-type": "text/plain"}, {"who": "me"})


@dataclass
class World:
    """A node that puts, and brings to its bucket; then it is closed, and looked at."""

    node: Node
    putting: Putting
    mounted: MountedNode

    def put(self, key: str, data: bytes) -> ObjectVersion:
        self.putting.put(key, data, HEAD)
        return self.current(key)

    def upload(self, key: str, *parts: bytes, left_out: bytes | None = None) -> ObjectVersion:
        upload_id = self.putting.uploads.create_upload(MOUNT, key, HEAD, "owner")
        stored = [
            self.putting.part(key, upload_id, number, part) for number, part in enumerate(parts, 3)
        ]
        if left_out is not None:
            self.putting.part(key, upload_id, 99, left_out)
        self.putting.complete(key, upload_id, stored)
        return self.current(key)

    def show(self, version: ObjectVersion) -> ObjectVersion:
        self.mounted.show(version)
        return self.current(version.key)

    def stamped(self, version: ObjectVersion) -> None:
        """Bring a version to the bucket, with its stamp; the catalog does not hear of it."""
        at = version.acknowledged_at or self.mounted.clock.now()
        stamp = Stamp(self.node.store.store_id, version.version, at)
        metadata = {**stamp.as_metadata(version.key), ETAG_KEY: version.etag}
        body = self.read(version.key) or b""
        self.mounted.memory.put(version.key, body, digest=digest_of(body), metadata=metadata)

    def current(self, key: str) -> ObjectVersion:
        found = self.putting.current(key)
        assert found is not None
        return found

    def read(self, key: str) -> bytes | None:
        return self.putting.read(key)


class ObjectPatient(Patient):
    """A cache directory with a mount, whose bucket is ``memory``."""

    def __init__(self, directory: Path, clock: FakeClock) -> None:
        super().__init__(directory, MemoryObjectStore(), clock)
        self.memory = MemoryObjectStore(minimum_part_bytes=1, clock=clock)
        self.bucket = FaultyObjectStore(self.memory)

    @contextmanager
    def world(self) -> Iterator[World]:
        with self.running() as node:
            mounted = MountedNode(node.store, self.clock, bucket_of_all=self.memory)
            try:
                yield World(node, Putting(node, MOUNT), mounted)
            finally:
                mounted.restore.close()

    def checked(self, **wanted: bool) -> FsckReport:
        self.said: list[str] = []
        there = Bucket(self.bucket, Layout())
        mounts = MountBuckets([MOUNT], lambda _name: there, known_clock(self.clock))
        return fsck(
            self.cache_dir,
            [Remote(DURABLE, Bucket(self.remote, Layout("tier")))],
            self.clock,
            FsckOptions(**wanted, mounts=mounts),  # type: ignore[arg-type]
            capacity_bytes=CAPACITY_BYTES,
            say=self.said.append,
            sleep=lambda _seconds: None,
        )


@pytest.fixture
def patient(tmp_path: Path, clock: FakeClock) -> ObjectPatient:
    return ObjectPatient(tmp_path, clock)


def identity(version: ObjectVersion) -> tuple[object, ...]:
    """Return what a client sees of a version."""
    return version.key, version.etag, version.head, version.size_bytes, version.part_sizes


# --- nothing wrong, and local damage -------------------------------------------------------------


def test_sound_objects_are_found_sound(patient: ObjectPatient) -> None:
    with patient.world() as world:
        world.show(world.put(KEY, LARGE))
        world.upload("in/parts", *PARTS)
        world.put("in/small", b"small")
        upload_id = world.putting.uploads.create_upload(MOUNT, "in/open", HEAD, "owner")
        world.putting.part("in/open", upload_id, 1, LARGE)
        world.putting.puts.delete(MOUNT, [KEY])

    report = patient.checked(data=True)

    assert report.findings == []
    assert report.unanswered == []


def test_a_damaged_piece_of_a_shown_object_is_fetched_from_its_bucket(
    patient: ObjectPatient,
) -> None:
    with patient.world() as world:
        version = world.show(world.upload(KEY, *PARTS))
        piece = world.mounted.pieces(version)[1]
    flip(patient.path(piece), 1000)

    report = patient.repaired(data=True)

    assert [finding.kind for finding in report.findings] == [FindingKind.BYTES_DAMAGED]
    assert report.findings[0].where.startswith("s3:m/")
    with patient.world() as world:
        assert world.read(KEY) == b"".join(PARTS)


def test_a_row_of_an_object_that_is_damaged_makes_way_and_comes_back_from_its_file(
    patient: ObjectPatient,
) -> None:
    with patient.world() as world:
        version = world.put(KEY, LARGE)
        behind = world.put("in/behind", LARGE[1:])
    patient.sql("UPDATE objects SET size_bytes = 5 WHERE version = ?", version.version)

    assert patient.found() == [FindingKind.OBJECT_ROW_DAMAGED]
    patient.repaired()
    report = patient.checked(adopt=True)

    assert [outcome.repaired for outcome in report.outcomes] == [True]
    with patient.world() as world:
        assert identity(world.current(KEY)) == identity(version)
        assert world.read(KEY) == LARGE
        assert identity(world.current("in/behind")) == identity(behind)


def test_a_damaged_row_whose_bytes_lie_in_the_catalog_is_left_to_a_person(
    patient: ObjectPatient,
) -> None:
    with patient.world() as world:
        version = world.put(KEY, b"small")
    patient.sql("UPDATE objects SET size_bytes = 5000 WHERE version = ?", version.version)

    report = patient.checked(repair=True)

    assert [finding.kind for finding in report.remaining()] == [FindingKind.OBJECT_ROW_DAMAGED]
    assert "catalog alone" in report.outcomes[0].what


def test_an_object_without_a_piece_and_a_piece_without_an_object_are_found(
    patient: ObjectPatient,
) -> None:
    with patient.world() as world:
        lacking, gone = world.upload(KEY, *PARTS), world.put("in/gone", LARGE)
        piece = world.mounted.pieces(lacking)[2]
    patient.sql("DELETE FROM shards WHERE version = ?", piece.version)
    patient.sql("DELETE FROM objects WHERE version = ?", gone.version)

    assert set(patient.found()) == {
        *(FindingKind.PIECES_MISSING, FindingKind.PIECE_UNNAMED),
        FindingKind.FILE_ORPHAN,
    }
    patient.repaired()
    patient.checked(adopt=True)
    with patient.world() as world:
        assert world.read(KEY) == b"".join(PARTS)
        assert world.read("in/gone") == LARGE


# --- the bucket ----------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [(b"small",), (LARGE,), PARTS])
def test_what_the_bucket_lost_is_brought_there_again_under_its_etag(
    patient: ObjectPatient, parts: tuple[bytes, ...]
) -> None:
    with patient.world() as world:
        put = world.upload(KEY, *parts) if len(parts) > 1 else world.put(KEY, parts[0])
        version = world.show(put)
    patient.memory.delete(KEY)

    report = patient.repaired()

    assert [finding.kind for finding in report.findings] == [FindingKind.OBJECT_MISSING]
    with patient.world() as world:
        again = world.current(KEY)
        assert (again.state, again.base) == (ObjectState.DIRTY, "")
        assert identity(again) == identity(version)
        assert {piece.state for piece in world.mounted.pieces(again)} == {ShardState.DIRTY}
        world.show(again)
    assert patient.checked(data=True).findings == []


def test_what_the_bucket_lost_and_this_node_has_not_is_lost(patient: ObjectPatient) -> None:
    with patient.world() as world:
        version = world.show(world.upload(KEY, *PARTS))
        assert world.mounted.evictor.evict(world.mounted.pieces(version)[1])
    patient.memory.delete(KEY)

    report = patient.checked(repair=True)

    assert [finding.kind for finding in report.remaining()] == [FindingKind.OBJECT_MISSING]
    assert "put it again" in report.outcomes[0].what


def test_what_somebody_else_replaced_is_told_and_left(patient: ObjectPatient) -> None:
    with patient.world() as world:
        world.show(world.put(KEY, LARGE))
    patient.memory.put(KEY, b"theirs", digest=digest_of(b"theirs"))

    report = patient.repaired()

    assert [finding.kind for finding in report.findings] == [FindingKind.GONE_ELSEWHERE]
    assert patient.memory.get(KEY) == b"theirs"


def test_a_bucket_that_does_not_answer_is_said(patient: ObjectPatient) -> None:
    with patient.world() as world:
        world.show(world.put(KEY, LARGE))
    patient.bucket.go_down(TransientError)

    report = patient.checked()

    assert report.findings == []
    assert [each.split(":")[:2] for each in report.unanswered] == [["s3", "m"]]
    assert patient.bucket.fired


# --- a lost catalog ------------------------------------------------------------------------------


def lose_catalog(patient: ObjectPatient) -> None:
    for path in patient.cache_dir.glob("catalog.db*"):
        path.unlink()


def test_a_lost_catalog_is_rebuilt_from_what_the_files_say(patient: ObjectPatient) -> None:
    with patient.world() as world:
        put = [world.put(KEY, LARGE)]
        patient.clock.advance(1)
        put.append(world.upload("in/parts", *PARTS, left_out=noise(66_000)))
        patient.clock.advance(1)
        put.append(world.put("in/last", LARGE[1:]))
    lose_catalog(patient)

    report = patient.checked(rebuild=True)

    adopted = [outcome for outcome in report.outcomes if outcome.finding.key is not None]
    assert [(each.finding.key, each.repaired) for each in adopted] == [
        *((KEY, True), ("in/parts", True), ("in/last", True))
    ]
    with patient.world() as world:
        again = [world.current(version.key) for version in put]
        assert list(map(identity, again)) == list(map(identity, put))
        assert [version.version for version in again] == sorted(v.version for v in again)
        assert all(b.follows >= a.version for a, b in pairwise(again))
        assert {version.state for version in again} == {ObjectState.DIRTY}
        assert world.read("in/parts") == b"".join(PARTS)
        world.show(again[1])
    assert [f for f in patient.checked(data=True).findings if f.is_problem] == []


def test_what_the_bucket_shows_or_came_later_is_not_taken_back(patient: ObjectPatient) -> None:
    with patient.world() as world:
        world.show(world.put(KEY, LARGE))
    lose_catalog(patient)

    report = patient.checked(rebuild=True)

    assert "its bucket shows it" in [outcome.what for outcome in report.outcomes]
    with patient.world() as world:
        assert world.putting.current(KEY) is None
        assert world.mounted.reads.head(MOUNT, KEY).size_bytes == len(LARGE)


def test_what_somebody_else_put_meanwhile_is_no_victim_of_a_rebuild(
    patient: ObjectPatient,
) -> None:
    with patient.world() as world:
        world.put(KEY, LARGE)
    patient.memory.put(KEY, b"theirs", digest=digest_of(b"theirs"))
    lose_catalog(patient)

    patient.checked(rebuild=True)

    with patient.world() as world:
        assert world.node.store.read(objects.mount_saves) == {}
    assert patient.memory.get(KEY) == b"theirs"


def test_an_upload_that_lacks_a_piece_or_was_never_complete_stays_in_lost_and_found(
    patient: ObjectPatient,
) -> None:
    with patient.world() as world:
        version = world.upload(KEY, PARTS[0], PARTS[1], b"tail" * 100)
        upload_id = world.putting.uploads.create_upload(MOUNT, "in/open", HEAD, "owner")
        world.putting.part("in/open", upload_id, 1, LARGE)
        assert world.mounted.pieces(version)[2].inline
    lose_catalog(patient)

    report = patient.checked(rebuild=True)

    said = [outcome.what for outcome in report.outcomes if outcome.finding.key == KEY]
    assert said == ["it stays in lost+found: 2 of its 3 pieces are there"]
    with patient.world() as world:
        assert world.node.store.read(objects.mount_saves) == {}
    assert len(list((patient.cache_dir / "lost+found").iterdir())) == 3


def test_damaged_files_are_not_taken_back(patient: ObjectPatient) -> None:
    with patient.world() as world:
        piece = world.mounted.pieces(world.put(KEY, LARGE))[0]
    flip(patient.path(piece), 1000)
    lose_catalog(patient)

    report = patient.checked(rebuild=True)

    assert "its bytes fail their digest" in str([outcome.what for outcome in report.outcomes])


def test_without_its_bucket_it_is_taken_back_and_the_drain_looks_whether_it_is_needed(
    patient: ObjectPatient,
) -> None:
    with patient.world() as world:
        world.put(KEY, LARGE)
    lose_catalog(patient)
    patient.bucket.go_down(TransientError)

    report = patient.checked(rebuild=True)

    (said,) = [outcome.what for outcome in report.outcomes if outcome.finding.key == KEY]
    assert "did not answer" in said
    patient.bucket.mend()
    with patient.world() as world:
        assert world.current(KEY).base is None  # nobody looked
        assert world.read(KEY) == LARGE


# --- what came since -----------------------------------------------------------------------------


def leftovers(patient: ObjectPatient) -> list[Path]:
    return sorted(path for path in (patient.cache_dir / "data").rglob("*") if path.is_file())


@contextmanager
def left_behind(patient: ObjectPatient) -> Iterator[None]:
    """Have files that go meanwhile be there in the end all the same, as a crash leaves them."""
    before = leftovers(patient)
    for path in before:
        os.link(path, patient.cache_dir / path.name)
    yield
    for path in before:
        kept = patient.cache_dir / path.name
        if path.exists():
            kept.unlink()
        else:
            kept.rename(path)


@pytest.mark.parametrize("since", ["overwritten here", "deleted here", "deleted there", "nothing"])
def test_a_leftover_file_is_no_current_object(patient: ObjectPatient, since: str) -> None:
    with patient.world() as world:
        first = world.put(KEY, LARGE)
        world.put("in/other", LARGE[1:])
        if since == "overwritten here":
            world.stamped(first)
        with left_behind(patient):
            patient.clock.advance(60)
            if since == "overwritten here":
                world.stamped(world.put(KEY, LARGE[2:]))
            elif since != "nothing":
                store_id = world.node.store.store_id if since == "deleted here" else "other"
                deletion = DeletionRecord(store_id, patient.clock.now(), {KEY: first.version + 8})
                body = deletion.as_bytes()
                patient.memory.put(deletion.name("in/"), body, digest=digest_of(body))
                world.putting.puts.delete(MOUNT, [KEY])
            patient.clock.advance(60)
    lose_catalog(patient)

    report = patient.checked(rebuild=True)

    said = "; ".join(each.what for each in report.outcomes if each.finding.key == KEY)
    with patient.world() as world:
        found = world.putting.current(KEY)
        if since == "nothing":
            assert found is not None and world.read(KEY) == LARGE
        else:
            assert found is None
            assert ("newer" in said) == (since == "overwritten here")
            assert ("deleted since" in said) == (since != "overwritten here")
        assert world.read("in/other") == LARGE[1:]


def test_a_rebuilt_object_replaces_what_came_before_it_and_nothing_else_of_this_node(
    patient: ObjectPatient,
) -> None:
    with patient.world() as world:
        world.stamped(world.put(KEY, b"first"))
        world.put(KEY, LARGE)  # at once: only versions tell which is newer
        for number in range(5):
            world.put(f"in/{number}", b"small")
    lose_catalog(patient)

    patient.checked(rebuild=True)

    with patient.world() as world:
        found = world.current(KEY)
        there = patient.memory.head(KEY)
        assert there is not None and found.stamped is not None
        ours = Stamp(world.node.store.store_id, found.stamped)
        assert judge(ours, Stamp.of(there), replaces=False) is Verdict.NEWER
        later = Stamp(world.node.store.store_id, found.stamped + 1)
        assert judge(ours, later, replaces=False) is Verdict.SUPERSEDED
        assert world.put("in/next", b"small").version > found.stamped
