"""Files over ``cachetier://`` in one process: written, listed, read, renamed, removed."""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import fsspec
import pytest
from cachetier_client import Client
from cachetier_client.errors import (
    BackgroundError,
    CachetierClientError,
    InvalidNameError,
    InvalidRequestError,
    SealedError,
)
from cachetier_client.filesystem.filesystem import CachetierFileSystem

from tests.frameworks.conftest import Node
from tests.integration.two_remotes import until

BLOCK = 4 << 20


Opener = Callable[..., CachetierFileSystem]


@pytest.fixture
def opened(node: Node) -> Iterator[Opener]:
    """Make file systems over the node, whose clients are closed at the end."""
    made: list[CachetierFileSystem] = []

    def opener(**options: Any) -> CachetierFileSystem:
        made.append(CachetierFileSystem(**{"service_url": node.url, "preset": "dcp", **options}))
        return made[-1]

    yield opener
    for each in made:
        each.client.close()


@pytest.fixture
def fs(opened: Opener) -> CachetierFileSystem:
    return opened()


def put(fs: CachetierFileSystem, path: str, data: bytes) -> None:
    with fs.open(path, "wb") as file:
        file.write(data)


def committed(fs: CachetierFileSystem, step: str, **files: bytes) -> None:
    fs.makedirs(step)
    for name, data in files.items():
        put(fs, f"{step}/{name}", data)
    put(fs, f"{step}/.metadata", b"m")


def test_the_protocol_is_registered(node: Node) -> None:
    found, path = fsspec.core.url_to_fs("cachetier://run/7/a", service_url=node.url)

    assert isinstance(found, CachetierFileSystem)
    assert path == "run/7/a"


def test_a_file_is_read_back_whole_in_parts_and_by_lines(fs: CachetierFileSystem) -> None:
    data = os.urandom(2 * BLOCK + 12_345)
    put(fs, "cachetier://run/7/a/b.bin", data)
    with fsspec.open(
        "cachetier://run/7/t", "w", service_url=fs.storage_options["service_url"]
    ) as text:
        text.write("first\nsecond\n")

    with fs.open("cachetier://run/7/a/b.bin") as file:
        assert file.read() == data
        assert file.seek(-10, os.SEEK_END) and file.read() == data[-10:]
        file.seek(BLOCK - 3)
        assert file.read(6) == data[BLOCK - 3 : BLOCK + 3]
    assert fs.cat_file("run/7/a/b.bin", 5, 50) == data[5:50]
    assert fs.cat_file("run/7/a/b.bin", -5) == data[-5:]
    assert fs.cat_ranges(["run/7/a/b.bin"] * 2, [0, 9], [4, 12]) == [data[:4], data[9:12]]
    found = fs.cat_ranges(["run/7/none", "run/8/a", "run/7/t"], None, -1)
    assert [type(each).__name__ for each in found] == ["MissingFileError"] * 2 + ["bytes"]
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(["run/7/none"], 0, 1, None, "raise")
    with fs.open("run/7/t", "r") as lines:
        assert list(lines) == ["first\n", "second\n"]


def test_a_step_is_listed_once_it_is_committed(fs: CachetierFileSystem, client: Client) -> None:
    put(fs, "run/7/a", b"1")

    assert fs.exists("run/7/a") and fs.isdir("run/7")
    with pytest.raises(FileNotFoundError):
        fs.ls("other")
    assert client.steps("run", "local") == []

    put(fs, "run/7/.metadata", b"m")

    assert fs.ls("run", detail=False) == ["run/7"]
    assert fs.ls("", detail=False) == ["run"]
    assert fs.find("run") == ["run/7/.metadata", "run/7/a"]


def test_names_with_slashes_are_folders(fs: CachetierFileSystem) -> None:
    committed(fs, "run/7", **{"x/one": b"1", "x/y/two": b"22", "z": b""})

    found = {entry["name"]: (entry["type"], entry["size"]) for entry in fs.ls("run/7")}
    assert found == {
        "run/7/.metadata": ("file", 1),
        "run/7/x": ("directory", 0),
        "run/7/z": ("file", 0),
    }
    assert fs.ls("run/7/x", detail=False) == ["run/7/x/one", "run/7/x/y"]
    assert fs.isdir("run/7/x/y") and fs.isfile("run/7/x/y/two")
    assert fs.glob("run/*/x/**/two") == ["run/7/x/y/two"]
    assert fs.du("run/7") == 4


def test_info_tells_times_and_digests(fs: CachetierFileSystem) -> None:
    committed(fs, "run/7", a=b"123456789")

    info = fs.info("cachetier://run/7/a")

    assert abs(fs.created("run/7/a").timestamp() - time.time()) < 60
    assert fs.modified("run/7") >= fs.created("run/7")
    assert fs.checksum("run/7/a") == 0xAE8B14860A799888  # CRC-64/NVME's check value
    assert info["digest"] in fs.ukey("run/7/a")
    assert pickle.loads(pickle.dumps(info)) == info


def test_what_is_not_there_is_told_as_file_systems_do(fs: CachetierFileSystem) -> None:
    put(fs, "run/7/a", b"1")

    for path in ("none", "run/8", "run/7/b", "run/8/a"):
        assert not fs.exists(path) and not fs.isfile(path) and not fs.isdir(path)
        with pytest.raises(FileNotFoundError, match="is not there"):
            fs.info(path)
    with pytest.raises(FileNotFoundError):
        fs.open("run/8/a")
    with pytest.raises(InvalidNameError):
        fs.exists("run/8/no spaces")


def test_a_service_that_is_away_is_not_an_answer(opened: Opener) -> None:
    away = opened(service_url="unix:///nowhere/s", timeout_seconds=0.2)

    with pytest.raises(CachetierClientError):
        away.exists("run/7/a")


def test_steps_are_called_as_the_step_name_says(opened: Opener, client: Client) -> None:
    fs = opened(step_name="step-{step}")
    committed(fs, "run/step-10", a=b"1")

    assert fs.ls("run", detail=False) == ["run/step-10"]
    assert client.step("run", 10).shard_count == 2


def test_tiny_and_huge_writes_make_one_shard(fs: CachetierFileSystem) -> None:
    tiny, huge = [bytes([at % 251]) * (at % 7) for at in range(500)], os.urandom(3 * BLOCK + 1)
    with fs.open("run/7/a", "wb") as file:
        for piece in tiny:
            file.write(piece)
        assert file.tell() == sum(map(len, tiny))
        assert not file.seekable()
        file.write(huge)

    assert fs.cat("run/7/a") == b"".join(tiny) + huge


@pytest.mark.parametrize("through", ["fs", "fsspec", "text", "close in finally"])
def test_an_exception_leaves_nothing(fs: CachetierFileSystem, node: Node, through: str) -> None:
    def write_and_fail() -> None:
        if through == "close in finally":
            file = fs.open("run/7/a", "wb")
            try:
                file.write(b"half")
                raise ValueError("not whole")
            finally:
                file.close()
        mode = "w" if through == "text" else "wb"
        opened: Any = (
            fsspec.open("cachetier://run/7/a", "wb", service_url=node.url)
            if through == "fsspec"
            else fs.open("run/7/a", mode)
        )
        with opened as file:
            file.write("half" if through == "text" else b"half")
            raise ValueError("not whole")

    with pytest.raises(ValueError, match="not whole"):
        write_and_fail()

    assert not fs.exists("run/7/a")
    put(fs, "run/7/.metadata", b"m")  # and no file is open any more, so this seals
    assert fs.find("run/7") == ["run/7/.metadata"]


def test_a_file_written_while_an_exception_is_handled_is_kept(fs: CachetierFileSystem) -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        put(fs, "run/7/a", b"in time")

    assert fs.cat("run/7/a") == b"in time"


def test_the_descriptor_can_be_synced_and_not_written_to(fs: CachetierFileSystem) -> None:
    with fs.open("run/7/a", "wb") as file:
        file.write(b"abc")
        descriptor = file.fileno()
        os.fsync(descriptor)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(descriptor, b"past us")
        assert file.fileno() == descriptor
        written = os.fstat(descriptor)
    with contextlib.suppress(OSError):  # another thread may have opened a file under its number
        assert not os.path.samestat(os.fstat(descriptor), written)
    assert fs.cat("run/7/a") == b"abc"


def test_a_temporary_file_is_held_until_it_is_renamed(fs: CachetierFileSystem) -> None:
    put(fs, "run/7/data", b"1")
    put(fs, "run/7/.metadata.tmp", b"meta")

    assert fs.info("run/7/.metadata.tmp")["size"] == 4
    assert fs.cat("run/7/.metadata.tmp") == b"meta"
    assert "run/7/.metadata.tmp" in fs.ls("run/7", detail=False)
    assert not fs.exists("run/7/.metadata")

    fs.rename("cachetier://run/7/.metadata.tmp", "cachetier://run/7/.metadata")

    assert fs.cat("run/7/.metadata") == b"meta"
    assert not fs.exists("run/7/.metadata.tmp")
    assert fs.ls("run", detail=False) == ["run/7"]


def test_what_is_part_of_a_commit_cannot_be_renamed(fs: CachetierFileSystem) -> None:
    committed(fs, "run/7", a=b"1")

    with pytest.raises(InvalidRequestError, match=r"without run/7.*recursive=True"):
        fs.mv("run/7/a", "run/7/b")
    with pytest.raises(FileNotFoundError):
        fs.mv("run/7/b.tmp", "run/7/b")


def test_files_after_the_commit_are_refused_with_a_way_out(fs: CachetierFileSystem) -> None:
    committed(fs, "run/7", a=b"1")

    with pytest.raises(SealedError, match="CACHETIER_COMMIT_ON"):
        fs.open("run/7/meta.pt", "wb")


def test_the_commit_file_can_be_another(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = opened(preset=None)
    monkeypatch.setenv("CACHETIER_COMMIT_ON", "meta.pt, done/*.flag")
    put(fs, "run/7/.metadata", b"m")
    put(fs, "run/7/meta.pt", b"last")
    put(fs, "run/8/done/here.flag", b"last")

    assert fs.ls("run", detail=False) == ["run/7", "run/8"]


def test_a_step_saved_again_replaces_the_first(fs: CachetierFileSystem, client: Client) -> None:
    committed(fs, "run/7", a=b"1", old=b"only in the first")
    first = client.step("run", 7).save_id
    client.wait("run", 7, "durable")
    fs.makedirs("run/7", exist_ok=True)
    put(fs, "run/7/a", b"2")
    assert fs.exists("run/7/.metadata")
    fs.rm_file("run/7/.metadata")  # as DCP does: it goes with the first save
    put(fs, "run/7/.metadata", b"m")

    until(lambda: client.step("run", 7).save_id != first)  # readers see the first until then
    assert fs.cat("run/7/a") == b"2"
    assert fs.find("run/7") == ["run/7/.metadata", "run/7/a"]


def test_a_save_that_failed_is_made_anew_with_the_folder(fs: CachetierFileSystem) -> None:
    fs.makedirs("run/7")
    put(fs, "run/7/a", b"1")
    put(fs, "run/7/left-over", b"1")

    committed(fs, "run/7", a=b"2")

    assert fs.find("run/7") == ["run/7/.metadata", "run/7/a"]


def test_making_the_folder_before_each_file_is_one_save(fs: CachetierFileSystem) -> None:
    for name in ("a", "b", ".metadata"):
        fs.makedirs("run/7", exist_ok=True)
        put(fs, f"run/7/{name}", b"1")

    assert fs.find("run/7") == ["run/7/.metadata", "run/7/a", "run/7/b"]


def test_a_folder_of_its_own_does_not_take_the_place_of_what_was_committed_before(
    fs: CachetierFileSystem,
) -> None:
    def save(folder: str, data: bytes) -> None:
        fs.makedirs(f"run/7/{folder}")
        put(fs, f"run/7/{folder}/a", data)
        put(fs, f"run/7/{folder}/.metadata", b"m")

    save("model", b"1")
    with pytest.raises(SealedError, match="CACHETIER_COMMIT_ON"):
        save("optim", b"2")
    assert fs.find("run/7") == ["run/7/model/.metadata", "run/7/model/a"]

    save("model", b"3")  # the step once more
    assert fs.cat("run/7/model/a") == b"3"


def test_overwriting_a_published_step_can_be_refused(opened: Opener, client: Client) -> None:
    fs = opened(overwrite=False)
    committed(fs, "run/7", a=b"1")
    client.wait("run", 7, "durable")
    fs.makedirs("run/7")

    with pytest.raises(CachetierClientError, match="published"):
        put(fs, "run/7/a", b"2")


def test_steps_are_removed_and_shards_are_not(fs: CachetierFileSystem) -> None:
    committed(fs, "run/7", a=b"1")

    for path, recursive in (("run/7/a", False), ("run/7", False), ("run", True)):
        with pytest.raises(InvalidRequestError, match="recursive=True"):
            fs.rm(path, recursive=recursive)
    fs.rm("cachetier://run/7", recursive=True)

    assert not fs.exists("run/7/a") and not fs.exists("run/7")
    with pytest.raises(FileNotFoundError):
        fs.rm("run/7", recursive=True)
    with pytest.raises(FileNotFoundError):
        fs.rm("run/7/b")


def test_removing_a_file_that_is_being_written_drops_it(fs: CachetierFileSystem) -> None:
    file = fs.open("run/7/a", "wb")
    file.write(b"half")
    fs.rm_file("run/7/a")
    put(fs, "run/7/b.tmp", b"held")
    fs.rm_file("run/7/b.tmp")

    assert file.closed
    assert not fs.exists("run/7/a") and not fs.exists("run/7/b.tmp")


def test_a_transaction_seals_or_leaves_nothing(fs: CachetierFileSystem) -> None:
    with fs.transaction:
        put(fs, "run/7/a", b"1")
        put(fs, "run/7/b", b"2")
    with pytest.raises(ValueError, match="no"):
        with fs.transaction:
            put(fs, "run/8/a", b"1")
            raise ValueError("no")

    assert fs.ls("run", detail=False) == ["run/7"]
    assert not fs.exists("run/8/a")
    fs.start_transaction()
    put(fs, "run/9/a", b"1")
    fs.end_transaction()
    assert fs.ls("run", detail=False) == ["run/7", "run/9"]
    put(fs, "run/8/a", b"2")
    fs.seal("run/8")
    assert fs.ls("run", detail=False) == ["run/7", "run/8", "run/9"]


def test_a_step_is_sealed_by_hand(fs: CachetierFileSystem) -> None:
    file = fs.open("run/7/model.pt", "wb")
    with pytest.raises(InvalidRequestError, match=r"model\.pt"):
        fs.seal("run/7")
    file.close()
    fs.seal("cachetier://run/7")

    assert fs.ls("run", detail=False) == ["run/7"]
    with pytest.raises(InvalidRequestError, match="not writing"):
        fs.seal("run/9")


def test_modes_that_there_are_not_are_refused(fs: CachetierFileSystem) -> None:
    put(fs, "run/7/a", b"1")

    with pytest.raises(InvalidRequestError, match="'rb'"):
        fs.open("run/7/a", "r+b")
    with pytest.raises(FileExistsError):
        fs.open("run/7/a", "xb")
    with pytest.raises(InvalidNameError, match="run/7/name"):
        fs.open("run/7", "wb")
    with pytest.raises(InvalidRequestError, match="run/1000/name"):
        fs.open("run", "wb")
    put(fs, "run/7/a", b"2")
    assert fs.cat("run/7/a") == b"2"


def test_local_files_are_copied_there_and_back(fs: CachetierFileSystem, tmp_path: Any) -> None:
    (tmp_path / "from" / "deep").mkdir(parents=True)
    (tmp_path / "from" / "a").write_bytes(b"1")
    (tmp_path / "from" / "deep" / "b").write_bytes(b"22")

    fs.put(str(tmp_path / "from") + "/", "run/7", recursive=True)
    fs.seal("run/7")
    fs.get("run/7/", str(tmp_path / "to"), recursive=True)

    assert (tmp_path / "to" / "a").read_bytes() == b"1"
    assert (tmp_path / "to" / "deep" / "b").read_bytes() == b"22"


def test_instances_share_one_client_whatever_their_options(opened: Opener) -> None:
    assert len({id(opened(save_id=f"save-{number}").client) for number in range(3)}) == 1


def test_an_instance_pickles_and_works_in_a_forked_child(fs: CachetierFileSystem) -> None:
    put(fs, "run/7/a", b"1")
    again = pickle.loads(pickle.dumps(fs))
    assert again.cat("run/7/a") == b"1"

    child = os.fork()
    if child == 0:
        try:
            put(again, "run/7/b", b"2")
            os._exit(0 if again.cat("run/7/a") == b"1" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert fs.cat("run/7/b") == b"2"


def test_a_step_known_only_remotely_is_listed_and_read(
    fs: CachetierFileSystem, node: Node, client: Client, opened: Opener
) -> None:
    committed(fs, "run/7", a=b"1" * 100_000)
    client.wait("run", 7, "durable")
    elsewhere = {**node.settings, "cache_dir": node.settings["cache_dir"].parent / "second"}
    elsewhere["socket"] = elsewhere["socket"].with_name("second")

    from tests.integration.serving import running

    with running(elsewhere) as service:
        other = opened(service_url=f"unix://{service.socket}")
        assert other.ls("run", detail=False) == ["run/7"]
        assert other.isfile("run/7/.metadata")
        assert other.cat("run/7/a") == b"1" * 100_000


def test_a_background_failure_is_told_at_the_commit_which_seals_all_the_same(
    fs: CachetierFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(fs, "run/7/a", b"1")
    seal, told = fs.client.seal, [BackgroundError("an older step is damaged")]

    def failing_once(*args: Any, **kwargs: Any) -> Any:
        if told:
            raise told.pop()
        return seal(*args, **kwargs)

    monkeypatch.setattr(fs.client, "seal", failing_once)
    with pytest.raises(BackgroundError, match="older step"):
        put(fs, "run/7/.metadata", b"m")

    assert not told
    assert fs.ls("run", detail=False) == ["run/7"]


def test_rank_0_can_save_alone_in_a_larger_world(
    opened: Opener, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "8")):
        monkeypatch.setenv(name, value)
    fs = opened(rank=0, world_size=1, commit_on="*.pt")

    put(fs, "run/7/model.pt", b"1")

    client.wait("run", 7, "durable")
    assert client.step("run", 7).world_size == 1
