"""Steps written as others read them: equal values, names and types, there whole or not at all."""

from __future__ import annotations

import json
import random
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from cachetier_client import CachetierClientError, Client, InvalidRequestError, NotFoundError
from cachetier_client.torch import exports, step_tensors
from cachetier_client.torch.exports import export_step
from cachetier_client.torch.step_tensors import StepTensors
from cachetier_client.torch.torch_file import AbsentTensor, write_torch
from cachetier_client.torch.writer import CachetierWriter
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from tests.frameworks.conftest import Node
from tests.frameworks.ranks import run_ranks
from tests.frameworks.test_dcp_memory import MEBI, forget, memory
from tests.frameworks.test_step_tensors import ADDRESS, Named, sharded, state

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]
DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint64,
    torch.uint32,
    torch.uint16,
    torch.uint8,
    torch.bool,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
]


def equal(found: Tensor, expected: Tensor) -> bool:
    """Whether two tensors are of one type and shape, with the same bytes."""
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return False
    raw = [each.contiguous().reshape(-1).view(torch.uint8) for each in (found, expected)]
    return torch.equal(*raw)


def of_every_type() -> dict[str, Any]:
    noise = random.Random(1).randbytes(48)
    made = {
        str(dtype): torch.frombuffer(bytearray(noise), dtype=torch.uint8).view(dtype).clone()
        for dtype in DTYPES
        if dtype is not torch.bool
    }
    made["bool"] = torch.tensor([[True, False], [False, True]])
    return {**made, "scalar": torch.tensor(7, dtype=torch.int8), "none": torch.zeros(0, 4)}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where to export to; the cache of the node is beside it."""
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture
def saved(client: Client, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A step whose tensors pass in several pieces."""
    save(state(), storage_writer=CachetierWriter(ADDRESS, client=client), no_dist=True)
    monkeypatch.setattr(step_tensors, "PIECES_BYTES", 3 << 20)
    return client


def load_dcp(folder: Path, expected: dict[str, Any]) -> dict[str, Any]:
    found = {
        name: torch.zeros_like(value) if isinstance(value, Tensor) else value
        for name, value in expected.items()
    }
    found["group"] = {"lr": 0.0, "names": []}
    load(found, storage_reader=FileSystemReader(folder), no_dist=True)
    return found


def check_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        same = equal(found[name], value) if isinstance(value, Tensor) else found[name] == value
        assert same, name


def test_the_pieces_of_three_ranks_become_whole_tensors_in_every_format(
    node: Node, client: Client, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_ranks(sharded, 3, environment=node.environment)
    monkeypatch.setattr(step_tensors, "PIECES_BYTES", 3 << 20)
    dest = out / "step"
    names = export_step(ADDRESS, dest, "dcp", client=client)

    assert "group.lr" in names
    assert sorted(path.name for path in dest.iterdir()) == [
        ".metadata",
        "__0_0.distcp",
        "__1_0.distcp",
        "__2_0.distcp",
    ]
    check_same(load_dcp(dest, state()), state())
    assert [path.name for path in out.iterdir()] == ["step"]
    export_step(dest, out / "again", "dcp")  # a directory of DCP's own is exported too
    check_same(load_dcp(out / "again", state()), state())

    export_step(ADDRESS, out / "torch", "torch", client=client)
    check_same(torch.load(out / "torch", weights_only=True), state())
    export_step(ADDRESS, out / "safe", "safetensors", client=client)
    expected = {name: value for name, value in state().items() if isinstance(value, Tensor)}
    check_same(load_file(out / "safe" / "model.safetensors"), expected)


def test_safetensors_hold_the_tensors_and_a_file_beside_them_the_objects(
    saved: Client, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_step(ADDRESS, out / "one", "safetensors", client=saved)
    expected = {name: value for name, value in state().items() if isinstance(value, Tensor)}
    check_same(load_file(out / "one" / "model.safetensors"), expected)
    objects = torch.load(out / "one" / "objects.pt", weights_only=True)
    assert objects == {"group.lr": 0.125, "group.names": ["a", "b"]}

    monkeypatch.setattr(exports, "FILE_BYTES", 1000)
    export_step(ADDRESS, out / "many", "safetensors", client=saved)
    index = json.loads((out / "many" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(each.nbytes for each in expected.values())
    assert set(index["weight_map"].values()) == {
        f"model-0000{at}-of-00003.safetensors" for at in (1, 2, 3)
    }
    found: dict[str, Tensor] = {}
    for file in set(index["weight_map"].values()):
        held = load_file(out / "many" / file)
        assert all(index["weight_map"][name] == file for name in held)
        found |= held
    check_same(found, expected)


def test_torch_load_reads_the_state_as_it_was_nested(saved: Client, out: Path) -> None:
    dest = out / "step.pt"
    export_step(ADDRESS, dest, "torch", client=saved)

    check_same(torch.load(dest, weights_only=True), state())
    check_same(torch.load(dest, weights_only=True, mmap=True), state())
    with zipfile.ZipFile(dest) as archive:
        assert archive.testzip() is None
    assert [path.name for path in out.iterdir()] == ["step.pt"]


@pytest.mark.parametrize("to", ["dcp", "safetensors", "torch"])
def test_every_type_keeps_its_bytes(client: Client, out: Path, to: str) -> None:
    expected = of_every_type()
    save(expected, storage_writer=CachetierWriter(ADDRESS, client=client), no_dist=True)
    dest = out / "out"
    export_step(ADDRESS, dest, to, client=client)

    if to == "torch":
        found = torch.load(dest, weights_only=True)
    elif to == "safetensors":
        found = load_file(dest / "model.safetensors")
        assert not (dest / "objects.pt").exists()
    else:
        found = {name: torch.zeros_like(value) for name, value in expected.items()}
        load(found, storage_reader=FileSystemReader(dest), no_dist=True)
    check_same(found, expected)


def test_what_was_saved_through_fsspec_is_exported_too(
    node: Node, client: Client, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHETIER_URL", node.url)
    save(state(), storage_writer=FsspecWriter(ADDRESS, overwrite=True), no_dist=True)
    for to in ("dcp", "torch"):
        export_step(ADDRESS, out / to, to, client=client)

    check_same(load_dcp(out / "dcp", state()), state())
    check_same(torch.load(out / "torch", weights_only=True), state())
    stored = client.step("random-access", 7).shards
    sizes = {path.name: path.stat().st_size for path in (out / "dcp").iterdir()}
    assert sizes == {shard.name: shard.size_bytes for shard in stored}  # as they were


def test_objects_that_only_a_trusting_load_reads_need_trust(client: Client, out: Path) -> None:
    whole = {"device": Named("x"), "t": torch.ones(3)}
    save(whole, storage_writer=CachetierWriter(ADDRESS, client=client), no_dist=True)
    with pytest.raises(InvalidRequestError, match="trusted=True"):
        export_step(ADDRESS, out / "no", "torch", client=client)
    assert list(out.iterdir()) == []

    export_step(ADDRESS, out / "yes", "torch", client=client, trusted=True)
    found = torch.load(out / "yes", weights_only=False)
    assert found["device"] == Named("x")
    assert found["t"].equal(torch.ones(3))
    export_step(ADDRESS, out / "dcp", "dcp", client=client)  # nothing is unpickled for it


def test_tensors_inside_of_objects_go_along_and_stay_shared(out: Path) -> None:
    inner = torch.arange(6.0).view(2, 3)
    absent = AbsentTensor("late", torch.float8_e5m2, torch.Size([2, 2]))
    value = {"pair": (inner, inner[1]), "late": absent}
    late = torch.ones(2, 2).to(torch.float8_e5m2)
    write_torch(out / "f", value, [absent], [("late", late[:1]), ("late", late[1:])])

    found = torch.load(out / "f", weights_only=True)
    first, second = found["pair"]
    assert first.equal(inner)
    assert first[1].data_ptr() == second.data_ptr()
    assert equal(found["late"], late)


# --- whole or not at all -------------------------------------------------------------------------


def test_what_is_there_already_is_not_touched(client: Client, out: Path) -> None:
    save(state(), storage_writer=CachetierWriter(ADDRESS, client=client), no_dist=True)
    (out / "kept").mkdir()
    for to in ("dcp", "torch"):
        with pytest.raises(InvalidRequestError, match="exists already"):
            export_step(ADDRESS, out / "kept", to, client=client)
        with pytest.raises(InvalidRequestError, match="Create that directory first"):
            export_step(ADDRESS, out / "no" / "folder", to, client=client)
    with pytest.raises(InvalidRequestError, match="not one of dcp"):
        export_step(ADDRESS, out / "x", "onnx", client=client)
    assert [path.name for path in out.iterdir()] == ["kept"]
    assert list((out / "kept").iterdir()) == []


@pytest.mark.parametrize("to", ["dcp", "safetensors", "torch"])
def test_an_export_that_fails_half_way_leaves_nothing(
    saved: Client, out: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """The step is saved again while it is exported."""
    read = StepTensors._read_boxes
    done: list[Any] = []

    def replaced(self: StepTensors, batch: Any) -> Any:
        if len(done) == 3:
            other = CachetierWriter(ADDRESS, client=saved)
            save({"large": torch.zeros(4)}, storage_writer=other, no_dist=True)
        done.append(batch)
        return read(self, batch)

    monkeypatch.setattr(StepTensors, "_read_boxes", replaced)
    with pytest.raises(CachetierClientError):
        export_step(ADDRESS, out / "out", to, client=saved)
    assert len(done) == 4
    assert list(out.iterdir()) == []


def test_what_a_format_cannot_hold_is_said_by_name(client: Client, out: Path) -> None:
    odd = {"odd": torch.ones(2, dtype=torch.complex128)}
    save(odd, storage_writer=CachetierWriter(ADDRESS, client=client), no_dist=True)
    with pytest.raises(InvalidRequestError, match=r"odd is of torch\.complex128"):
        export_step(ADDRESS, out / "x", "safetensors", client=client)
    client.put_shard(b"plain", run="r", step=1, name="x", save_id="s")
    client.seal("r", 1, save_id="s")
    with pytest.raises(NotFoundError, match="exports as files"):
        export_step("cachetier://r/1", out / "x", "dcp", client=client)


# --- memory --------------------------------------------------------------------------------------

STATE_BYTES = 256 * MEBI


def export_much(folder: str) -> dict[str, int]:
    warnings.simplefilter("ignore", UserWarning)
    state = {
        "one": torch.ones(STATE_BYTES // 2 // 4),
        "wide": torch.ones(2, STATE_BYTES // 4 // 4),  # a row of it is more than one piece
    }
    save(state, storage_writer=CachetierWriter(ADDRESS), no_dist=True)
    state.clear()
    peaks = {}
    for to in ("dcp", "safetensors", "torch"):
        forget()
        before = memory("VmRSS")
        export_step(ADDRESS, f"{folder}/{to}", to)
        peaks[to] = memory("VmHWM") - before
    return peaks


def test_an_export_takes_a_fraction_of_the_step_in_memory(node: Node, out: Path) -> None:
    folder = {"folder": str(out)}
    (peaks,) = run_ranks(export_much, 1, environment=node.environment, gloo=False, **folder)

    assert peaks.keys() == {"dcp", "safetensors", "torch"}
    assert all(extra <= 96 * MEBI for extra in peaks.values()), peaks
