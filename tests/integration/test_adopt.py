"""``client.adopt`` of a trainer's files, against a real service: whole, once, or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import (
    BackpressureError,
    Client,
    InvalidNameError,
    InvalidRequestError,
    OpenForWritingError,
    StepPublishedError,
)
from cachetier_client.io.digests import digest_of

from cachetier.errors import TransientError
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.fakes.bodies import noise
from tests.fakes.memory_store import MemoryObjectStore
from tests.integration.page_cache import drop_from_cache, resident_bytes
from tests.integration.serving import Served, client_by, node_settings, running, serving
from tests.integration.trainer import (
    MARKER,
    MIB,
    Reads,
    mapped_for_writing,
    on_disk,
    reads,
    save,
    stored,
)

__all__ = ["reads"]

LARGE = noise(9 * MIB)
OTHER = bytes(byte ^ 0xFF for byte in LARGE[:MIB]) + LARGE[MIB:]
FILES = {"model.safetensors": LARGE, "global_step500/zero.pt": b"zero", "empty": b""}


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with Client(served.unix_url, run="r") as client:
        yield client


# --- what is stored ------------------------------------------------------------------------------


@pytest.mark.parametrize("door", ["unix", "http"])
def test_a_folder_becomes_a_sealed_step_of_all_its_files(
    served: Served, tmp_path: Path, door: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHETIER_TOKEN", served.call.bearer["Authorization"].split()[1])
    folder = save(tmp_path / "checkpoint-500", FILES)
    with client_by(door, served) as client:
        receipts = client.adopt(folder, run="r")
        shown = client.step("r", 500)
        assert stored(client, "r", 500) == on_disk(folder) == {**FILES, MARKER: b"{}"}

    assert (shown.state, shown.ranks, shown.world_size) == ("sealed", (0,), 1)
    assert {each.name: each.digest for each in receipts} == {
        name: f"{digest_of(data):016x}" for name, data in on_disk(folder).items()
    }
    assert {each.level for each in receipts} == {"local"}


def test_a_single_file_becomes_a_step_of_one_shard(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "epoch=1-step=16.ckpt"
    path.write_bytes(LARGE)
    (receipt,) = client.adopt(path)
    assert (receipt.step, receipt.name, receipt.size_bytes) == (16, path.name, len(LARGE))
    assert stored(client, "r", 16) == {path.name: LARGE}


def test_the_step_is_asked_for_where_no_name_says_it(client: Client, tmp_path: Path) -> None:
    folder = save(tmp_path / "last", {"a": b"x"})
    with pytest.raises(InvalidNameError, match="Pass step="):
        client.adopt(folder)
    assert [each.step for each in client.adopt(folder, step=3)] == [3, 3]


@pytest.mark.parametrize(
    ("spoil", "code", "says"),
    [
        (lambda folder: (folder / "a b").touch(), InvalidNameError, "a b"),
        (lambda folder: (folder / "link").symlink_to("a"), InvalidRequestError, "symbolic link"),
        (lambda folder: (folder / "links").symlink_to("/etc"), InvalidRequestError, "symbolic"),
        (lambda folder: os.mkfifo(folder / "pipe"), InvalidRequestError, "not a file"),
    ],
)
def test_what_cannot_be_a_shard_is_refused_and_nothing_is_kept(
    served: Served,
    client: Client,
    tmp_path: Path,
    spoil: Callable[[Path], object],
    code: type[Exception],
    says: str,
) -> None:
    folder = save(tmp_path / "checkpoint-500", {"a": LARGE})
    spoil(folder)
    with pytest.raises(code, match=says):
        client.adopt(folder)
    assert served.holds_nothing()


def test_a_folder_that_is_not_there_or_empty_says_so(client: Client, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"cannot read .*checkpoint-500"):
        client.adopt(tmp_path / "checkpoint-500")
    (tmp_path / "checkpoint-500").mkdir()
    with pytest.raises(InvalidRequestError, match="is empty"):
        client.adopt(tmp_path / "checkpoint-500")


# --- a file that somebody writes -----------------------------------------------------------------


def test_a_file_that_is_open_for_writing_is_never_taken(
    served: Served, client: Client, tmp_path: Path
) -> None:
    folder = save(tmp_path / "checkpoint-500", {"a": LARGE})
    with (folder / "a").open("ab"), pytest.raises(OpenForWritingError, match="a is open"):
        client.adopt(folder)
    with mapped_for_writing(folder / "a"), pytest.raises(OpenForWritingError, match="a is open"):
        client.adopt(folder)
    assert served.holds_nothing()
    client.adopt(folder)
    assert stored(client, "r", 500) == on_disk(folder)


def rewritten_with_its_old_times(path: Path) -> None:
    before = path.stat()
    with path.open("r+b") as file:
        file.write(OTHER)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_file_rewritten_between_two_blocks_is_never_stored_mixed(
    client: Client, tmp_path: Path, reads: Reads
) -> None:
    """Only ctime tells: size and mtime are as before. So it is copied anew, in its new form."""
    path = tmp_path / "step-1.ckpt"
    path.write_bytes(LARGE)
    reads.before[2] = lambda: rewritten_with_its_old_times(path)
    client.adopt(path)

    assert not reads.before  # it happened
    assert reads.count >= 6  # three blocks, and all three again
    assert stored(client, "r", 1) == {path.name: OTHER}


def appended(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def replaced(path: Path) -> None:
    path.with_suffix(".new").write_bytes(OTHER)
    path.with_suffix(".new").rename(path)


@pytest.mark.parametrize(
    "change",
    [
        appended,
        replaced,
        lambda path: os.truncate(path, MIB),
        lambda path: path.with_name("another").write_bytes(b"late"),
        lambda path: path.unlink(),
    ],
    ids=["appended", "replaced", "cut", "another file", "deleted"],
)
def test_a_step_that_changes_while_it_is_copied_is_taken_back(
    served: Served,
    client: Client,
    tmp_path: Path,
    reads: Reads,
    change: Callable[[Path], object],
) -> None:
    folder = save(tmp_path / "checkpoint-500", {"model": LARGE})
    reads.before[2] = lambda: change(folder / "model")
    with pytest.raises((OpenForWritingError, InvalidRequestError)):
        client.adopt(folder)
    assert not reads.before
    assert client.latest("r", level="local") is None

    if (folder / "model").exists():
        client.adopt(folder)
        assert stored(client, "r", 500) == on_disk(folder)


def test_a_writer_that_opens_the_file_meanwhile_and_stays_is_noticed(
    served: Served, client: Client, tmp_path: Path, reads: Reads
) -> None:
    path = tmp_path / "step-1.ckpt"
    path.write_bytes(LARGE)
    held: list[Any] = []

    def reopen() -> None:
        file = path.open("r+b", buffering=0)
        file.write(OTHER)
        held.append(file)

    reads.before[2] = reopen
    with pytest.raises(OpenForWritingError, match="open for writing"):
        client.adopt(path)
    held.pop().close()
    assert served.holds_nothing()


def test_a_rotation_that_takes_the_name_away_costs_a_second_copy_at_most(
    client: Client, tmp_path: Path, reads: Reads
) -> None:
    path, link = tmp_path / "step-1.ckpt", tmp_path / "link"
    path.write_bytes(LARGE)
    os.link(path, link)
    reads.before[2] = path.unlink
    client.adopt(link, step=1)
    assert not reads.before
    assert stored(client, "r", 1) == {"link": LARGE}


# --- again ---------------------------------------------------------------------------------------


def test_the_same_files_are_read_and_sent_once_by_whatever_process(
    served: Served, tmp_path: Path, reads: Reads
) -> None:
    folder = save(tmp_path / "checkpoint-500", FILES)
    with Client(served.unix_url, run="r") as first:
        receipts = first.adopt(folder)
    count = reads.count
    with Client(served.unix_url, run="r") as second:
        assert second.adopt(folder) == receipts
    assert reads.count == count > 0


def test_an_adoption_that_found_no_room_goes_on_with_the_file_that_is_missing(
    client: Client, tmp_path: Path, reads: Reads
) -> None:
    folder = save(tmp_path / "checkpoint-500", {"a": LARGE, "b": LARGE})

    def full() -> None:
        raise BackpressureError("there is no room")

    reads.before[5] = full
    with pytest.raises(BackpressureError):
        client.adopt(folder)
    assert [each.name for each in client.step("r", 500).shards] == ["a"]
    assert client.latest("r", level="local") is None
    count = reads.count
    client.adopt(folder)
    assert reads.count - count == 4  # three blocks of b, and the marker
    assert stored(client, "r", 500) == on_disk(folder)


def test_a_file_with_a_new_time_and_the_same_bytes_is_read_and_not_sent(
    client: Client, tmp_path: Path
) -> None:
    folder = save(tmp_path / "checkpoint-500", FILES)
    client.adopt(folder)
    before = client.step("r", 500)
    os.utime(folder / "model.safetensors")
    client.adopt(folder)
    assert client.step("r", 500) == before


def test_what_a_rotation_has_left_of_a_step_never_takes_its_place(
    client: Client, tmp_path: Path
) -> None:
    """A trainer that is killed while it deletes a checkpoint leaves half of one."""
    folder = save(tmp_path / "checkpoint-500", FILES)
    whole = on_disk(folder)
    client.adopt(folder)
    (folder / "model.safetensors").unlink()
    client.adopt(folder)
    assert stored(client, "r", 500) == whole


@pytest.mark.slow
def test_a_step_that_is_saved_again_replaces_itself_even_when_published(
    tmp_path: Path, moto_s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = f"s3://{moto_s3.bucket}/adopted-twice"
    settings = node_settings(tmp_path, moto_s3, remote, monkeypatch)
    folder = save(tmp_path / "checkpoint-500", FILES)
    with running(settings), Client(f"unix://{tmp_path}/s", run="r") as client:
        for model in (LARGE, OTHER):
            (folder / "model.safetensors").write_bytes(model)
            client.adopt(folder)
            client.flush(timeout_seconds=60)  # a published save is shown until the next is
            assert stored(client, "r", 500) == on_disk(folder)
            assert {each.level for each in client.adopt(folder)} == {"durable"}


def test_two_folders_never_take_turns_in_one_step(client: Client, tmp_path: Path) -> None:
    one = save(tmp_path / "a" / "checkpoint-500", {"x": b"one"})
    two = save(tmp_path / "b" / "checkpoint-500", {"x": b"two"})
    client.adopt(one, origin="a/checkpoint-500")
    with pytest.raises(StepPublishedError, match="from another save"):
        client.adopt(two, origin="b/checkpoint-500")
    assert stored(client, "r", 500) == on_disk(one)
    client.adopt(two, origin="b/checkpoint-500", overwrite=True)
    assert stored(client, "r", 500) == on_disk(two)


def test_two_nodes_each_adopt_their_files_under_the_jobs_save(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: Reads
) -> None:
    monkeypatch.setenv("CACHETIER_SAVE_ID", "job-1")
    nodes = [
        save(tmp_path / f"n{rank}" / "step-1", {f"{rank}": LARGE}, f"m{rank}") for rank in (0, 1)
    ]
    for rank, folder in enumerate(nodes):
        client.adopt(folder, rank=rank, world_size=2)
    shown = client.step("r", 1)
    assert (shown.save_id, shown.ranks) == ("job-1", (0, 1))
    assert sorted(stored(client, "r", 1)) == ["0", "1", "m0", "m1"]
    client.adopt(nodes[1], rank=1, world_size=2)  # its digests are compared
    assert client.step("r", 1) == shown


def test_a_bucket_that_is_away_keeps_no_step_from_being_taken(
    served: Served, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def head(_store: MemoryObjectStore, key: str) -> None:
        asked.append(key)
        raise TransientError("it is away")

    monkeypatch.setattr(MemoryObjectStore, "head", head)
    folder = save(tmp_path / "checkpoint-500", FILES)
    receipts = client.adopt(folder)
    assert asked
    assert stored(client, "r", 500) == on_disk(folder)
    assert client.adopt(folder) == receipts


# --- what it costs -------------------------------------------------------------------------------


def test_the_page_cache_is_as_it_was(client: Client, tmp_path: Path) -> None:
    cold, warm = tmp_path / "step-1.ckpt", tmp_path / "step-2.ckpt"
    for path in (cold, warm):
        path.write_bytes(noise(32 * MIB))
    drop_from_cache(cold)
    assert resident_bytes(warm) == 32 * MIB
    for path in (cold, warm):
        client.adopt(path)
    assert resident_bytes(cold) == 0
    assert resident_bytes(warm) == 32 * MIB
