"""What is committed when nobody says so: a file alone, a framework's folder, what ends together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cachetier_client import Client
from cachetier_client.errors import InvalidRequestError
from cachetier_client.filesystem.filesystem import CachetierFileSystem

from tests.frameworks.conftest import Node
from tests.integration.two_remotes import until


@pytest.fixture
def fs(node: Node) -> Iterator[CachetierFileSystem]:
    made = CachetierFileSystem(service_url=node.url)
    yield made
    made.client.close()


@pytest.fixture(params=["sealed", "published"])
def settled(request: pytest.FixtureRequest, client: Client) -> Any:
    """Wait until all that was committed is published, or not: no call may tell the difference."""

    def settle(run: str) -> None:
        if request.param == "published":
            for each in (*client.steps(run), *client.branches(run)):
                client.wait(each.run, each.step, "durable", timeout_seconds=60)

    return settle


def put(fs: CachetierFileSystem, path: str, data: bytes = b"1") -> None:
    with fs.open(path, "wb") as file:
        file.write(data)


def names(fs: CachetierFileSystem, path: str) -> list[str]:
    return sorted(fs.find(path))


LIGHTNING = "run/1/epoch={}-step={}.ckpt"


def test_each_of_several_files_in_one_folder_is_a_checkpoint_of_its_own(
    fs: CachetierFileSystem, settled: Any
) -> None:
    """As Lightning's ModelCheckpoint does with ``save_top_k=2`` and ``save_last``."""
    for epoch, step in ((0, 8), (1, 16), (2, 24)):
        with fs.transaction, fs.open(LIGHTNING.format(epoch, step), "wb") as file:
            file.write(b"%d" % step)
        with fs.transaction, fs.open("run/1/last.ckpt", "wb") as file:
            file.write(b"last %d" % step)
    settled("run")

    assert names(fs, "run/1") == [
        *(LIGHTNING.format(epoch, step) for epoch, step in ((0, 8), (1, 16), (2, 24))),
        "run/1/last.ckpt",
    ]
    assert fs.cat("run/1/last.ckpt") == b"last 24"

    fs.rm(LIGHTNING.format(0, 8))

    assert names(fs, "run/1") == [
        LIGHTNING.format(1, 16),
        LIGHTNING.format(2, 24),
        "run/1/last.ckpt",
    ]
    assert not fs.exists(LIGHTNING.format(0, 8))
    assert fs.cat(LIGHTNING.format(1, 16)) == b"16"
    with pytest.raises(FileNotFoundError):
        fs.rm(LIGHTNING.format(0, 8))


def test_a_pattern_removes_what_it_matches(fs: CachetierFileSystem, settled: Any) -> None:
    for epoch in (0, 1):
        put(fs, LIGHTNING.format(epoch, 8))
    put(fs, "run/1/last.ckpt")
    settled("run")

    fs.rm("run/1/epoch=*.ckpt")

    assert names(fs, "run") == ["run/1/last.ckpt"]
    with pytest.raises(FileNotFoundError, match="epoch=\\*"):
        fs.rm("run/1/epoch=*.ckpt")


@pytest.mark.parametrize(
    "path",
    [
        "run/checkpoints/step-10/model.ckpt",
        "run/epoch=1-step=16.ckpt",
        "run/last.ckpt",
        "run/checkpoint-500/pytorch_model.bin",
        "run/outputs/checkpoint/step-10/extra.json",
        "run/lightning_logs/version_0/checkpoints/epoch=0-step=8.ckpt",
        "run/lightning_logs/version_0/hparams.yaml",
        "run/1000/model.pt",
    ],
)
def test_a_file_is_there_under_the_path_that_it_was_written_to(
    fs: CachetierFileSystem, settled: Any, path: str
) -> None:
    put(fs, path, b"first")
    put(fs, path, b"second")
    settled("run")

    assert names(fs, "run") == [path]
    assert fs.cat(path) == b"second"
    assert fs.info(path)["size"] == 6
    folder = path.rsplit("/", 1)[0]
    while folder:
        assert fs.isdir(folder) and fs.exists(folder)
        folder = folder.rpartition("/")[0]


@pytest.mark.parametrize(
    "folder", ["run/1000", "run/step-10", "run/final", "run/checkpoints/step-10", "run/1000/model"]
)
def test_a_dcp_save_into_any_folder_is_one_commit(
    fs: CachetierFileSystem, client: Client, settled: Any, folder: str
) -> None:
    fs.makedirs(folder)
    put(fs, f"{folder}/__0_0.distcp")
    assert fs.exists(f"{folder}/__0_0.distcp")
    assert fs.find("run") == []
    put(fs, f"{folder}/.metadata")
    settled("run")

    assert names(fs, "run") == [f"{folder}/.metadata", f"{folder}/__0_0.distcp"]
    (commit,) = (*client.steps("run"), *client.branches("run"))
    assert (commit.shard_count, commit.world_size) == (2, 1)
    with pytest.raises(InvalidRequestError, match=f"without {folder}"):
        fs.rm(f"{folder}/__0_0.distcp")
    fs.rm(folder, recursive=True)
    assert not fs.exists(folder)
    assert fs.find("run") == []


def test_several_dcp_saves_under_one_step_are_listed_together(
    fs: CachetierFileSystem, settled: Any
) -> None:
    for folder in ("model", "optim"):
        fs.makedirs(f"run/1000/{folder}")
        put(fs, f"run/1000/{folder}/__0_0.distcp")
        put(fs, f"run/1000/{folder}/.metadata")
    put(fs, "run/1000/loader.pt")
    settled("run")

    assert fs.ls("run/1000", detail=False) == [
        "run/1000/loader.pt",
        "run/1000/model",
        "run/1000/optim",
    ]
    assert fs.ls("run", detail=False) == ["run/1000"]

    fs.rm("run/1000/model", recursive=True)

    assert fs.ls("run/1000", detail=False) == ["run/1000/loader.pt", "run/1000/optim"]
    fs.rm("run/1000", recursive=True)
    assert not fs.exists("run/1000")
    with pytest.raises(FileNotFoundError):
        fs.ls("run/1000")


def test_a_transaction_is_one_commit_and_the_next_one_another(
    fs: CachetierFileSystem, client: Client, settled: Any
) -> None:
    with fs.transaction:
        put(fs, "run/1000/a", b"1")
        put(fs, "run/1000/deep/b", b"1")
        assert fs.find("run") == []
    with fs.transaction:
        put(fs, "run/1000/c", b"2")
        put(fs, "run/1000/d", b"2")
    settled("run")

    assert names(fs, "run") == [f"run/1000/{name}" for name in ("a", "c", "d", "deep/b")]
    assert client.step("run", 1000).shard_count == 2
    with pytest.raises(InvalidRequestError, match="without run/1000"):
        fs.rm("run/1000/deep", recursive=True)

    with fs.transaction:
        put(fs, "run/1000/c", b"3")  # that commit once more

    until(lambda: fs.cat("run/1000/c") == b"3")
    assert fs.cat("run/1000/a") == b"1"
    fs.rm("run/1000", recursive=True)
    assert fs.find("run") == []


def test_a_transaction_that_fails_takes_all_its_commits_back(fs: CachetierFileSystem) -> None:
    with pytest.raises(ValueError, match="no"):
        with fs.transaction:
            put(fs, "run/final/a")
            put(fs, "run/1/last.ckpt")
            raise ValueError("no")

    assert fs.find("run") == []
    assert not fs.exists("run/1/last.ckpt")


def test_a_folder_that_is_put_is_one_commit(
    fs: CachetierFileSystem, client: Client, tmp_path: Any
) -> None:
    (tmp_path / "checkpoint-500").mkdir()
    for name in ("model.safetensors", "optimizer.pt", "trainer_state.json"):
        (tmp_path / "checkpoint-500" / name).write_bytes(name.encode())

    fs.put(str(tmp_path / "checkpoint-500"), "run/", recursive=True)

    (commit,) = client.branches("run", "local")
    assert (commit.run, commit.step, commit.shard_count) == ("run~checkpoint-!~", 500, 3)
    fs.get("run/checkpoint-500", str(tmp_path / "back"), recursive=True)
    assert (tmp_path / "back" / "optimizer.pt").read_bytes() == b"optimizer.pt"


def test_files_are_copied_and_moved_by_reading_and_writing(
    fs: CachetierFileSystem, settled: Any
) -> None:
    put(fs, "run/best.ckpt", b"best")
    settled("run")

    fs.cp("run/best.ckpt", "run/kept/best.ckpt")
    fs.mv("run/best.ckpt", "run/old.ckpt")

    assert names(fs, "run") == ["run/kept/best.ckpt", "run/old.ckpt"]
    assert fs.cat("run/old.ckpt") == fs.cat("run/kept/best.ckpt") == b"best"


def test_what_is_appended_follows_what_was_there(fs: CachetierFileSystem) -> None:
    for line in ("step,loss\n", "1,0.5\n", "2,0.4\n"):
        with fs.open("run/logs/metrics.csv", "a") as file:
            file.write(line)

    assert fs.cat("run/logs/metrics.csv") == b"step,loss\n1,0.5\n2,0.4\n"


def test_ranks_write_files_of_their_own(
    fs: CachetierFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in ("0", "1"):
        for name, value in (("RANK", rank), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")):
            monkeypatch.setenv(name, value)
        put(fs, f"run/1000/rng-{rank}.pth")

    assert names(fs, "run") == ["run/1000/rng-0.pth", "run/1000/rng-1.pth"]


def test_a_preset_says_what_ends_a_folder_of_any_files(node: Node, client: Client) -> None:
    fs = CachetierFileSystem(service_url=node.url, preset="transformers")
    folder = "run/outputs/checkpoint-500"
    put(fs, f"{folder}/model.safetensors")
    put(fs, f"{folder}/global_step500/zero.pt")
    assert fs.find("run") == []
    put(fs, f"{folder}/trainer_state.json")

    (commit,) = client.branches("run", "local")
    assert (commit.run, commit.step) == ("run~outputs~checkpoint-!~", 500)
    assert names(fs, "run")[0] == f"{folder}/global_step500/zero.pt"
    with pytest.raises(InvalidRequestError, match="transformers"):
        CachetierFileSystem(service_url=node.url, preset="huggingface")


def test_another_node_lists_and_reads_what_lies_in_branches(
    fs: CachetierFileSystem, node: Node, client: Client
) -> None:
    put(fs, "run/last.ckpt", b"last")
    fs.makedirs("run/checkpoints/step-10")
    put(fs, "run/checkpoints/step-10/.metadata")
    for each in client.branches("run"):
        client.wait(each.run, each.step, "durable", timeout_seconds=60)
    elsewhere = {**node.settings, "cache_dir": node.settings["cache_dir"].parent / "second"}
    elsewhere["socket"] = elsewhere["socket"].with_name("second")

    from tests.integration.serving import running

    with running(elsewhere) as service:
        other = CachetierFileSystem(service_url=f"unix://{service.socket}")
        assert names(other, "run") == ["run/checkpoints/step-10/.metadata", "run/last.ckpt"]
        assert other.cat("run/last.ckpt") == b"last"
        other.rm("run/last.ckpt")
        assert names(other, "run") == ["run/checkpoints/step-10/.metadata"]
        other.client.close()


def test_another_node_reads_what_was_written_again_once_it_is_published(
    fs: CachetierFileSystem, node: Node, client: Client
) -> None:
    def publish(data: bytes) -> None:
        put(fs, "run/last.ckpt", data)
        client.wait("run~last.ckpt", 0, "durable", timeout_seconds=60)

    publish(b"first")
    elsewhere = {**node.settings, "cache_dir": node.settings["cache_dir"].parent / "second"}
    elsewhere["socket"] = elsewhere["socket"].with_name("second")

    from tests.integration.serving import running

    with running(elsewhere) as service:
        other = CachetierFileSystem(service_url=f"unix://{service.socket}")
        assert other.cat("run/last.ckpt") == b"first"
        publish(b"second")
        until(lambda: other.cat("run/last.ckpt") == b"second")  # it looks five times a second
        other.client.close()


def test_a_flush_of_the_run_is_one_of_all_its_commits(
    fs: CachetierFileSystem, client: Client
) -> None:
    put(fs, "run/checkpoints/epoch=1-step=16.ckpt")
    put(fs, "runaway/last.ckpt")

    client.flush("run", timeout_seconds=60)

    (commit,) = client.branches("run")
    assert "durable" in commit.levels


def test_what_was_removed_can_be_written_again(
    fs: CachetierFileSystem, client: Client, settled: Any
) -> None:
    for data in (b"first", b"second", b"third"):
        put(fs, "run/last.ckpt", data)
        fs.makedirs("run/final")
        put(fs, "run/final/__0_0.distcp", data)
        put(fs, "run/final/.metadata", data)
        settled("run")
        assert fs.cat("run/last.ckpt") == fs.cat("run/final/__0_0.distcp") == data
        fs.rm("run/last.ckpt")
        fs.rm("run/final", recursive=True)
        assert fs.find("run") == []

    put(fs, "run/last.ckpt", b"fourth")
    client.wait("run~last.ckpt", 0, "durable", timeout_seconds=60)
    assert fs.cat("run/last.ckpt") == b"fourth"


def test_nothing_is_lost_by_a_move_to_where_it_is_already(
    fs: CachetierFileSystem, settled: Any
) -> None:
    put(fs, "run/a/last.ckpt")
    settled("run")

    fs.mv("run/a/last.ckpt", "cachetier://run/a/last.ckpt")
    with pytest.raises(InvalidRequestError, match="into itself"):
        fs.mv("run/a", "run/a/b", recursive=True)
    with pytest.raises(InvalidRequestError, match="lost when this process ends"):
        fs.mv("run/a/last.ckpt", "run/a/last.ckpt.tmp")

    assert names(fs, "run") == ["run/a/last.ckpt"]
    assert fs.cat("run/a/last.ckpt") == b"1"


def test_a_file_alone_does_not_use_up_that_its_folder_was_made(fs: CachetierFileSystem) -> None:
    for data in (b"1", b"2"):
        fs.makedirs("run/final")
        put(fs, "run/final/config.json", data)
        put(fs, "run/final/__0_0.distcp", data)
        put(fs, "run/final/.metadata", data)

    assert fs.cat("run/final/__0_0.distcp") == fs.cat("run/final/config.json") == b"2"
