"""SQLite cuts its log off at the first bad frame and says nothing; start-up must not go along.

Only the last transaction may be torn, as a crash can tear it and nothing tells the two apart.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.errors import CachetierError, CatalogDamagedError, NotFoundError
from cachetier.local.catalog import connection
from cachetier.local.recovery import lock_directory, open_store
from tests.crash.sweep import Remote
from tests.fakes.fake_clock import FakeClock
from tests.faults.counting import count
from tests.faults.slices import share_of
from tests.stateful.node import Node, content_of
from tests.stateful.unsynced import unsynced

SHARDS = 12
LOG_OFFSETS, PIECES = 64 << 10, 40
IDS = SaveIds("run", 1, "save")
HEADER_BYTES, FRAME_HEADER_BYTES, PAGE_BYTES = 32, 24, 4096
FRAME_BYTES = FRAME_HEADER_BYTES + PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Killed:
    """A cache directory as a kill left it: many commits in the log, and where each one ends."""

    cache_dir: Path
    log: bytes
    ends: tuple[int, ...]

    def acknowledged_in(self, size_bytes: int) -> int:
        """Return how many commits the first bytes of the log hold."""
        return sum(end <= size_bytes for end in self.ends)


def body(number: int) -> bytes:
    return random.Random(number).randbytes(200)


@pytest.fixture(scope="module")
def vfs() -> Iterator[str]:
    with unsynced() as name:
        yield name


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, vfs: str) -> Killed:
    cache_dir = tmp_path_factory.mktemp("killed") / "cache"
    node = Node(cache_dir, Remote(), FakeClock(), vfs=vfs)
    log = cache_dir / "catalog.db-wal"
    ends = []
    for number in range(SHARDS):
        node.put(IDS, f"s{number:02d}", body(number))
        ends.append(log.stat().st_size)
    node.die()
    return Killed(cache_dir, log.read_bytes(), tuple(ends))


def recovered(killed: Killed, log: bytes, place: Path, vfs: str) -> list[int]:
    """Start on a damaged log; return which shards are there, each with its right bytes.

    Raises:
        CatalogDamagedError: Start-up refuses.
    """
    place.mkdir(exist_ok=True)
    for name in ("catalog.db", "catalog.db-wal", "catalog.db-shm", "store-id", "running"):
        (place / name).unlink(missing_ok=True)
    shutil.copy(killed.cache_dir / "catalog.db", place)
    shutil.copy(killed.cache_dir / "store-id", place)
    (place / "catalog.db-wal").write_bytes(log)
    node = Node(place, Remote(), FakeClock(), vfs=vfs)
    try:
        return [n for n in range(SHARDS) if reads(node, n)]
    finally:
        node.die()


def reads(node: Node, number: int) -> bool:
    try:
        data = node.get("run", 1, f"s{number:02d}")
    except NotFoundError:
        return False
    assert data == body(number), "wrong bytes"
    return True


def flipped(log: bytes, offset: int, bit: int) -> bytes:
    return log[:offset] + bytes([log[offset] ^ (1 << bit)]) + log[offset + 1 :]


def telling_offsets(log: bytes) -> list[int]:
    """Return a byte of every field of every frame's header, and of every page."""
    dice = random.Random(1)
    offsets = list(range(0, HEADER_BYTES, 3))
    for frame in range(HEADER_BYTES, len(log), FRAME_BYTES):
        offsets += (frame + field + dice.randrange(4) for field in range(0, FRAME_HEADER_BYTES, 4))
        offsets.append(frame + FRAME_HEADER_BYTES + dice.randrange(PAGE_BYTES))
    return offsets


def test_a_flipped_bit_never_takes_an_acknowledged_commit_but_the_last(
    killed: Killed, tmp_path: Path, vfs: str
) -> None:
    dice, refused = random.Random(2), 0
    for offset in telling_offsets(killed.log):
        log = flipped(killed.log, offset, dice.randrange(8))
        try:
            wal_check(tmp_path, log)
        except CatalogDamagedError:
            refused += 1
            continue
        found = recovered(killed, log, tmp_path / "cache", vfs)
        assert found[: SHARDS - 1] == list(range(SHARDS - 1)), f"flip at {offset} lost a commit"

    assert refused > len(killed.log) // FRAME_BYTES, "hardly any damage was noticed"


@pytest.mark.parametrize("piece", share_of(range(PIECES)))
def test_a_flipped_bit_at_any_offset_is_refused_or_takes_back_the_last_commit_alone(
    killed: Killed, tmp_path: Path, vfs: str, piece: int, request: pytest.FixtureRequest
) -> None:
    """Every offset of 64 KiB of the log; what the check lets pass is started on."""
    dice, passed = random.Random(piece), 0
    offsets = range(piece, LOG_OFFSETS, PIECES)
    commits = killed.acknowledged_in(LOG_OFFSETS) + 3  # whole ones behind the last of the offsets
    for offset in offsets:
        log = flipped(killed.log[: killed.ends[commits - 1]], offset, dice.randrange(8))
        try:
            wal_check(tmp_path, log)
        except CatalogDamagedError:
            continue
        passed += 1
        found = recovered(killed, log, tmp_path / "cache", vfs)
        assert found[: commits - 1] == list(range(commits - 1)), f"flip at {offset} lost a commit"

    assert passed < len(offsets) / 10, "hardly any damage was noticed"
    count(request, "flipped bits of the log", len(offsets), seed=piece)


def wal_check(place: Path, log: bytes) -> None:
    path = place / "log"
    path.write_bytes(log)
    connection.check_frames(path)


def test_start_up_refuses_what_the_check_refuses(killed: Killed, tmp_path: Path, vfs: str) -> None:
    middle = HEADER_BYTES + FRAME_BYTES * 15 + FRAME_HEADER_BYTES + 100

    with pytest.raises(CatalogDamagedError, match="commits after it would be lost"):
        recovered(killed, flipped(killed.log, middle, 3), tmp_path / "cache", vfs)


@pytest.mark.parametrize("field", ["page", "size", "salt 1", "salt 2", "sum 1", "sum 2"])
def test_every_bit_of_a_frame_header_is_guarded(killed: Killed, tmp_path: Path, field: str) -> None:
    """The frame that ends the last commit but one is the hardest: only one commit follows it."""
    commit = killed.ends[-2] - FRAME_BYTES
    start = commit + 4 * ["page", "size", "salt 1", "salt 2", "sum 1", "sum 2"].index(field)
    assert struct.unpack_from(">I", killed.log, commit + 4)[0] > 0, "that frame ends no commit"
    for bit in range(32):
        log = flipped(killed.log, start + bit // 8, bit % 8)
        with pytest.raises(CatalogDamagedError):
            wal_check(tmp_path, log)


@pytest.mark.parametrize("offset", range(0, HEADER_BYTES, 3))
def test_a_damaged_header_of_the_log_is_refused(
    killed: Killed, tmp_path: Path, offset: int
) -> None:
    with pytest.raises(CatalogDamagedError):
        wal_check(tmp_path, flipped(killed.log, offset, offset % 8))


def test_a_log_cut_short_gives_exactly_the_commits_that_are_whole(
    killed: Killed, tmp_path: Path, vfs: str
) -> None:
    """Cut anywhere in the last two commits, and here and there before them."""
    dice = random.Random(3)
    cuts = [*range(killed.ends[-3], len(killed.log), 509), len(killed.log)]
    cuts += [dice.randrange(killed.ends[-3]) for _ in range(20)] + list(killed.ends)
    for cut in cuts:
        whole = killed.acknowledged_in(cut)
        try:
            found = recovered(killed, killed.log[:cut], tmp_path / "cache", vfs)
        except CatalogDamagedError:
            assert not whole, f"cut at {cut}"  # the store's id went too: refused
        else:
            assert found == list(range(whole)), f"cut at {cut}"


def test_a_torn_last_commit_is_taken_back_whatever_of_it_is_missing(
    killed: Killed, tmp_path: Path, vfs: str
) -> None:
    """Any sectors of the last commit may be missing: no crash may look like damage."""
    dice = random.Random(4)
    for _ in range(60):
        log = bytearray(killed.log)
        for sector in range(killed.ends[-2] // 512 + 1, len(log) // 512 + 1):
            if dice.random() < 0.4:
                log[sector * 512 : (sector + 1) * 512] = bytes(len(log[sector * 512 :][:512]))
        found = recovered(killed, bytes(log), tmp_path / "cache", vfs)
        assert found in (list(range(SHARDS)), list(range(SHARDS - 1)))


def test_frames_of_an_earlier_life_of_the_log_are_no_damage(tmp_path: Path, vfs: str) -> None:
    """SQLite starts the log over without emptying it: old frames follow the new ones."""
    node = Node(tmp_path / "cache", Remote(), FakeClock(), vfs=vfs)
    for number in range(12):
        node.put(IDS, f"s{number:02d}", body(number))
    node.store._committer._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
    for number in range(12, 15):
        node.put(IDS, f"s{number:02d}", body(number))
    node.die()

    again = Node(tmp_path / "cache", Remote(), FakeClock(), vfs=vfs)

    assert [n for n in range(15) if reads(again, n)] == list(range(15))
    again.die()


# --- catalog and data that do not belong together -----------------------------------------------


def a_used_directory(cache_dir: Path, vfs: str, *, inline: bool) -> None:
    node = Node(cache_dir, Remote(), FakeClock(), vfs=vfs)
    node.put(IDS, "s", bytes(100 if inline else 100_000))
    node.close()


@pytest.mark.parametrize("inline", [True, False], ids=["shards inside it", "data files"])
def test_a_catalog_that_is_gone_is_refused(tmp_path: Path, vfs: str, inline: bool) -> None:
    a_used_directory(tmp_path / "cache", vfs, inline=inline)
    (tmp_path / "cache" / "catalog.db").unlink()

    with pytest.raises(CatalogDamagedError, match="missing"):
        open_store(tmp_path / "cache", 1 << 20, FakeClock(), vfs=vfs)
    assert not (tmp_path / "cache" / "catalog.db").exists(), "a new catalog was made"


@pytest.mark.parametrize("inline", [True, False], ids=["shards inside it", "data files"])
def test_the_catalog_of_another_store_is_refused(tmp_path: Path, vfs: str, inline: bool) -> None:
    a_used_directory(tmp_path / "cache", vfs, inline=inline)
    a_used_directory(tmp_path / "other", vfs, inline=True)
    shutil.copy(tmp_path / "other" / "catalog.db", tmp_path / "cache" / "catalog.db")

    with pytest.raises(CatalogDamagedError, match="of store"):
        open_store(tmp_path / "cache", 1 << 20, FakeClock(), vfs=vfs)


def test_an_emptied_catalog_is_refused(tmp_path: Path, vfs: str) -> None:
    a_used_directory(tmp_path / "cache", vfs, inline=True)
    (tmp_path / "cache" / "catalog.db").write_bytes(b"")

    with pytest.raises(CatalogDamagedError):
        open_store(tmp_path / "cache", 1 << 20, FakeClock(), vfs=vfs)


def test_a_file_that_is_no_catalog_is_refused(tmp_path: Path, vfs: str) -> None:
    a_used_directory(tmp_path / "cache", vfs, inline=True)
    (tmp_path / "cache" / "catalog.db").write_bytes(b"not a database" * 1000)

    with pytest.raises(CatalogDamagedError):
        open_store(tmp_path / "cache", 1 << 20, FakeClock(), vfs=vfs)


def test_a_catalog_of_a_newer_cachetier_is_refused(tmp_path: Path, vfs: str) -> None:
    node = Node(tmp_path / "cache", Remote(), FakeClock(), vfs=vfs)
    node.store._committer._connection.pragma("user_version", 99)
    node.close()

    with pytest.raises(CatalogDamagedError, match="schema 99"):
        open_store(tmp_path / "cache", 1 << 20, FakeClock(), vfs=vfs)


def test_a_second_service_on_one_directory_is_refused(tmp_path: Path, vfs: str) -> None:
    node = Node(tmp_path / "cache", Remote(), FakeClock(), vfs=vfs)
    for path in (tmp_path / "cache").iterdir():
        if path.is_file() and not path.name.startswith("catalog.db"):
            path.unlink()  # no file that anybody may remove is the lock

    with pytest.raises(CachetierError) as refusal:
        lock_directory(tmp_path / "cache")

    assert refusal.value.code == "directory_in_use"
    node.close()
    Node(tmp_path / "cache", Remote(), FakeClock(), vfs=vfs).close()  # the lock went with it


def test_a_row_whose_bits_changed_is_not_believed(tmp_path: Path, vfs: str) -> None:
    """SQLite keeps no checksum of its pages: a row's own digest tells."""
    node = Node(tmp_path / "cache", Remote(), FakeClock(), vfs=vfs)
    node.put(IDS, "s", bytes(100))
    other = digest_of(b"other").to_bytes(8, "big")
    node.store._committer._connection.execute("UPDATE shards SET digest = ?", (other,))

    with pytest.raises(CatalogDamagedError, match="does not match its own digest"):
        node.get("run", 1, "s")
    node.die()


def test_the_bytes_of_a_catalogued_shard_are_checked_before_they_are_served(
    tmp_path: Path, vfs: str
) -> None:
    node = Node(tmp_path / "cache", Remote(), FakeClock(), vfs=vfs)
    node.put(IDS, "s", bytes(100))
    node.store._committer._connection.execute("UPDATE bodies SET body = ?", (bytes(99) + b"x",))

    with pytest.raises(CachetierError) as refusal:
        node.get("run", 1, "s")

    assert refusal.value.code == "integrity"
    assert content_of(bytes(100)) == node.rows()[0].content
    node.die()
