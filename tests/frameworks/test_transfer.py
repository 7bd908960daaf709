"""``cachetier get`` and ``cachetier put`` of a step: its files out, and those of others in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cachetier_client import (
    Client,
    IncompleteError,
    IntegrityError,
    InvalidNameError,
    InvalidRequestError,
)
from cachetier_client.io import digests
from cachetier_client.step_files import StepSourceFile, export_files, files_of, import_files, placed
from cachetier_client.torch import CachetierReader
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from cachetier.testing.s3_endpoint import S3Endpoint
from tests.fakes.bodies import noise
from tests.integration.serving import Served, serving
from tests.integration.test_cli import run

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]
MEBI = 1 << 20


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with Client(served.unix_url) as client:
        yield client


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def made(folder: Path) -> dict[str, bytes]:
    """Fill a folder as a trainer may."""
    files = {"model.pt": noise(17 * MEBI), "rank-0/optim.bin": noise(5), "empty": b""}
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return files


def test_a_folder_goes_in_and_comes_out_as_it_was(served: Served, tmp_path: Path) -> None:
    files = made(tmp_path / "step-1000")
    source, dest = str(tmp_path / "step-1000"), str(tmp_path / "out")

    imported = run(served, "put", source, "r", "--json")
    assert imported.code == 0, imported.err
    assert imported.json["step"] == 1000
    assert {each["name"]: each["size_bytes"] for each in imported.json["shards"]} == {
        name: len(content) for name, content in files.items()
    }
    exported = run(served, "get", "r", "1000", dest, "--format", "files", "--json")
    assert exported.code == 0, exported.err
    assert sorted(exported.json["names"]) == sorted(files)
    assert exported.json["size_bytes"] == sum(map(len, files.values()))
    assert tree(tmp_path / "out") == files
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "step-1000"]

    again = run(served, "get", "r", "1000", dest, "--format", "files")
    assert (again.code, "exists already" in again.err) == (2, True)
    one = run(served, "put", f"{source}/model.pt", "r", "3", "--seal")
    assert one.out.startswith("r/3/model.pt: 17.8 MB, ")
    assert run(served, "get", "r", "9", f"{dest}9", "--format", "files").code == 1
    assert not (tmp_path / "out9").exists()


def test_what_cannot_be_meant_is_refused(served: Served, tmp_path: Path) -> None:
    made(tmp_path / "final")
    unnumbered = run(served, "put", str(tmp_path / "final"), "r")
    assert (unnumbered.code, "RUN STEP" in unnumbered.err) == (2, True)
    assert run(served, "put", "step-1").code == 2
    missing = run(served, "put", str(tmp_path / "step-1"), "r")
    assert (missing.code, "No such file" in missing.err) == (2, True)
    assert (
        "--format 'onnx' is not one of" in run(served, "get", "r", "1", "x", "--format", "onnx").err
    )
    assert run(served, "ls", "--json").json["runs"] == []


def test_a_checkpoint_of_dcp_can_be_loaded_once_it_is_imported(
    served: Served, client: Client, tmp_path: Path
) -> None:
    state: dict[str, Any] = {"w": torch.arange(1000.0), "lr": 0.5}
    folder = tmp_path / "step_20"
    save(state, storage_writer=FileSystemWriter(folder), no_dist=True)

    assert run(served, "put", str(folder), "r").code == 0
    found: dict[str, Any] = {"w": torch.zeros(1000), "lr": 0.0}
    load(found, storage_reader=CachetierReader("cachetier://r/20", client=client), no_dist=True)
    assert found["w"].equal(state["w"])
    assert found["lr"] == 0.5
    exported = run(served, "get", "r", "20", str(tmp_path / "w.pt"), "--format", "torch")
    assert exported.out.endswith("2 items, verified\n")
    assert torch.load(tmp_path / "w.pt", weights_only=True)["w"].equal(state["w"])

    assert run(served, "put", str(folder), "r~a~step-!~").code == 0
    load(
        found,
        storage_reader=CachetierReader("cachetier://r/a/step-20", client=client),
        no_dist=True,
    )
    below = run(served, "get", "r~a~step-!~", "20", str(tmp_path / "below"), "--format", "dcp")
    assert below.code == 0, below.err
    assert tree(tmp_path / "below") == tree(folder)

    cut = folder / "__0_0.distcp"
    cut.write_bytes(cut.read_bytes()[:-100])
    torn = run(served, "put", str(folder), "r", "21")
    assert (torn.code, "__0_0.distcp lacks" in torn.err) == (5, True)
    assert [step.step for step in client.steps("r")] == [20]


def test_without_torch_files_go_and_the_rest_says_what_to_install(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "1"
    save({"w": torch.ones(4)}, storage_writer=FileSystemWriter(folder), no_dist=True)
    for name in [each for each in sys.modules if each.startswith("cachetier_client.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cachetier_client.torch", None)

    imported = run(served, "put", str(folder), "r")
    assert (imported.code, "not checked against .metadata" in imported.err) == (0, True)
    refused = run(served, "get", "r", "1", str(tmp_path / "x"), "--format", "safetensors")
    assert (refused.code, "extra `torch`" in refused.err) == (2, True)
    assert run(served, "get", "r", "1", str(tmp_path / "x"), "--format", "files").code == 0
    assert tree(tmp_path / "x") == tree(folder)


def test_objects_of_a_bucket_become_a_step(
    served: Served, moto_s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in moto_s3.environment().items():
        monkeypatch.setenv(name, value)
    store, large = moto_s3.store(), noise(17 * MEBI)
    for name, content in {
        "a/step-7/x/model": large,
        "a/step-7/none": b"",
        "a/step-77": b"7",
    }.items():
        store.put(name, content, digest=digests.digest_of(content))
    remote = ["r", "--remote-endpoint", moto_s3.url]
    prefix = f"s3://{moto_s3.bucket}/a"

    imported = run(served, "put", f"{prefix}/step-7", *remote, "--json")
    assert imported.code == 0, imported.err
    assert imported.json["step"] == 7
    assert {each["name"]: each["size_bytes"] for each in imported.json["shards"]} == {
        "none": 0,
        "x/model": len(large),
    }
    got = run(served, "get", "r", "7", "--name", "x/model")
    assert got.bytes == large
    one = run(served, "put", f"{prefix}/step-77", *remote, "--json").json
    assert (one["step"], [each["name"] for each in one["shards"]]) == (77, ["step-77"])
    nothing = run(served, "put", f"{prefix}/step-8", *remote)
    assert (nothing.code, "no object" in nothing.err) == (2, True)


def test_an_export_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    for one_file in (False, True):
        with pytest.raises(KeyboardInterrupt), placed(tmp_path / "x", one_file=one_file) as path:
            (path if one_file else path / "half").write_bytes(b"half")
            raise KeyboardInterrupt
        assert list(tmp_path.iterdir()) == []


def test_what_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    dest = tmp_path / "x"
    with (
        pytest.raises(InvalidRequestError, match="exists already"),
        placed(dest, one_file=True) as path,
    ):
        path.write_bytes(b"ours")
        dest.write_bytes(b"another's")
    assert tree(tmp_path) == {"x": b"another's"}


# --- what must not go in, or out -----------------------------------------------------------------


def test_a_file_that_changes_while_it_is_read_is_not_imported(
    client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(noise(20 * MEBI))
    (file,) = files_of(path)

    def rewritten() -> Iterator[bytes | memoryview]:
        for piece in file.pieces():
            yield piece
            with path.open("r+b") as other:
                other.write(b"x")

    changing = StepSourceFile(file.name, file.size_bytes, rewritten)
    with pytest.raises(IntegrityError, match="changed while it was read"):
        import_files(client, [changing], "r", 1)
    assert all(not step.levels for step in client.steps("r"))
    path.write_bytes(b"good")
    import_files(client, files_of(path), "r", 1)  # a save of its own
    assert bytes(client.get_shard("r", 1, "model.pt")) == b"good"


def test_bytes_that_are_not_what_their_source_says_are_not_imported(client: Client) -> None:
    lying = StepSourceFile("x", 3, lambda: [b"abc"], digest="0" * 16)
    with pytest.raises(IntegrityError, match="the digest of its source"):
        import_files(client, [lying], "r", 1)
    assert all(not step.levels for step in client.steps("r"))
    true = StepSourceFile("x", 3, lambda: [b"abc"], digests.to_hex(digests.digest_of(b"abc")))
    assert import_files(client, [true], "r", 1)["x"].size_bytes == 3


def test_names_that_no_shard_can_have_and_links_are_refused_before_a_byte(
    client: Client, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "fine").write_bytes(b"1")
    (tmp_path / "a" / "two words").write_bytes(b"2")
    with pytest.raises(InvalidNameError):
        import_files(client, files_of(tmp_path / "a"), "r", 1)
    assert client.runs() == []
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "linked").symlink_to(tmp_path / "a")
    with pytest.raises(InvalidRequestError, match="is no file"):
        files_of(tmp_path / "b")


def test_a_step_that_is_not_whole_is_not_exported(client: Client, tmp_path: Path) -> None:
    client.put_shard(b"x", run="r", step=1, name="x", rank=0, world_size=2, save_id="s")
    for _ in range(2):
        with pytest.raises(IncompleteError):
            export_files(client, "r", 1, tmp_path)
        client.seal("r", 1, rank=0, world_size=2, save_id="s")
    client.put_shard(b"y", run="r", step=1, name="y", rank=1, world_size=2, save_id="s")
    client.seal("r", 1, rank=1, world_size=2, save_id="s")
    assert export_files(client, "r", 1, tmp_path) == ["x", "y"]
    assert tree(tmp_path) == {"x": b"x", "y": b"y"}
