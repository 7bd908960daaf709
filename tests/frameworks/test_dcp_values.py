"""``dcp.save`` and ``dcp.load`` of one rank: every kind of value comes back bit for bit."""

from __future__ import annotations

import pathlib
import warnings
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from cachetier_client import Client
from cachetier_client.errors import (
    IntegrityError,
    InvalidNameError,
    InvalidRequestError,
    NotFoundError,
    StepPublishedError,
)
from cachetier_client.torch import CachetierReader, CachetierWriter, metadata
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from tests.frameworks.conftest import Node

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.int64,
    torch.uint8,
    torch.bool,
)
MEBI = 1 << 20


def values(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    """Random bits, of any type that there is."""
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=seeded(seed), dtype=torch.uint8).bool()
    count = max(1, dtype.itemsize * torch.Size(shape).numel())
    bits = torch.randint(0, 256, (count,), generator=seeded(seed), dtype=torch.uint8)
    return bits.view(dtype)[: torch.Size(shape).numel()].view(shape)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bits(tensor: Tensor) -> bytes:
    """A tensor's bytes in C order: equality that takes no NaN for another."""
    from cachetier_client.io.buffers import bytes_of

    return bytes(bytes_of(tensor.detach().contiguous().resolve_conj()))


def state_of_all_kinds() -> dict[str, Any]:
    wide = values(torch.float32, 300, 200, seed=5)
    return {
        "types": {str(dtype): values(dtype, 7, 5, seed=i) for i, dtype in enumerate(DTYPES)},
        "number": torch.tensor(3.25),
        "empty": torch.empty(0, 4),
        "large": values(torch.float32, 3 * MEBI, seed=6),
        "larger, moved": values(torch.uint8, 17 * MEBI + 3, seed=7)[3:],
        "columns": wide.t(),
        "every other": wide[::2, 1::3],
        "expanded": torch.tensor([2.5]).expand(5, 3),
        "conjugate": values(torch.complex64, 4).conj(),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "epoch": 3,
        "nested": {"list": [torch.ones(2), {"x": torch.zeros(3)}], "name": "adam", "none": None},
    }


def empty_like(state: Any) -> Any:
    """The same state with other values."""
    if isinstance(state, Tensor):
        return torch.zeros_like(state, memory_format=torch.contiguous_format).detach()
    if isinstance(state, dict):
        return {key: empty_like(value) for key, value in state.items()}
    if isinstance(state, list):
        return [empty_like(value) for value in state]
    return None if isinstance(state, str | None) else 0


def leaves(state: Any, path: str = "") -> dict[str, Any]:
    if isinstance(state, dict):
        pairs = list(state.items())
    elif isinstance(state, list):
        pairs = list(enumerate(state))
    else:
        return {path: state}
    return {k: v for key, value in pairs for k, v in leaves(value, f"{path}/{key}").items()}


def assert_same(found: Any, expected: Any) -> None:
    found, expected = leaves(found), leaves(expected)
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        if isinstance(value, Tensor):
            assert (found[path].dtype, found[path].shape) == (value.dtype, value.shape), path
            assert bits(found[path]) == bits(value), path
        else:
            assert found[path] == value, path


def test_every_kind_of_value_comes_back_bit_for_bit(client: Client) -> None:
    state = state_of_all_kinds()
    dcp.save(state, storage_writer=CachetierWriter("cachetier://run/1", client=client))

    loaded = empty_like(state)
    dcp.load(loaded, storage_reader=CachetierReader("cachetier://run/1", client=client))

    assert_same(loaded, state)


def test_a_large_tensor_out_of_order_is_streamed_and_comes_back(client: Client) -> None:
    wide = values(torch.bfloat16, 4 * MEBI, 3, seed=1)
    state = {"columns": wide.t(), "plain": values(torch.float32, 3 * MEBI), "small": torch.ones(3)}
    dcp.save(state, storage_writer=CachetierWriter("cachetier://run/1", client=client))

    loaded = empty_like(state)
    dcp.load(loaded, storage_reader=CachetierReader("cachetier://run/1", client=client))

    assert_same(loaded, state)


def test_a_large_tensor_out_of_order_may_lie_at_any_address(client: Client) -> None:
    memory = values(torch.uint8, 20 * MEBI + 64).numpy()
    at = (2 - memory.ctypes.data) % 4
    odd = torch.frombuffer(memory, dtype=torch.float32, offset=at, count=5 * MEBI)
    state = {"x": odd.view(-1, 2).t()}
    dcp.save(state, storage_writer=CachetierWriter("cachetier://run/1", client=client))

    loaded = empty_like(state)
    dcp.load(loaded, storage_reader=CachetierReader("cachetier://run/1", client=client))

    assert odd.data_ptr() % 4 == 2
    assert_same(loaded, state)


def test_tensors_of_other_strides_and_types_are_filled_in_place(client: Client) -> None:
    state = {"a": torch.arange(24.0).view(4, 6), "b": values(torch.float32, 5 * MEBI, 2)}
    dcp.save(state, storage_writer=CachetierWriter("cachetier://run/1", client=client))

    turned, doubled = torch.zeros(6, 4), torch.zeros(2, 5 * MEBI, dtype=torch.float32)
    dcp.load(
        {"a": turned.t(), "b": doubled.t()},
        storage_reader=CachetierReader("cachetier://run/1", client=client),
    )
    wider = torch.zeros(4, 6, dtype=torch.float64)
    dcp.load({"a": wider}, storage_reader=CachetierReader("cachetier://run/1", client=client))

    assert torch.equal(turned.t(), state["a"])
    assert bits(doubled.t()) == bits(state["b"])
    assert torch.equal(wider, state["a"].double())


def test_one_writer_saves_step_after_step_and_a_reader_loads_them(client: Client) -> None:
    writer, reader = CachetierWriter(client=client), CachetierReader(client=client)
    for step in (1, 2):
        state = {"x": torch.full((3,), float(step))}
        dcp.save(state, checkpoint_id=f"cachetier://run/{step}", storage_writer=writer)
    for step in (1, 2):
        loaded = {"x": torch.zeros(3)}
        dcp.load(loaded, checkpoint_id=f"cachetier://run/{step}", storage_reader=reader)
        assert loaded["x"].tolist() == [step] * 3
    assert writer.checkpoint_id == "cachetier://run/2"


def test_a_step_is_replaced_as_dcp_does_unless_told_not_to(client: Client) -> None:
    def save(value: float, **options: Any) -> CachetierWriter:
        writer = CachetierWriter("cachetier://run/1", client=client, **options)
        dcp.save({"x": torch.tensor(value)}, storage_writer=writer)
        return writer

    def stored() -> float:
        loaded = {"x": torch.tensor(0.0)}
        dcp.load(loaded, storage_reader=CachetierReader("cachetier://run/1", client=client))
        return float(loaded["x"])

    save(1.0, overwrite=False)
    save(2.0).durable().result(60)
    save(3.0).durable().result(60)
    assert stored() == 3.0

    with pytest.raises(CheckpointException) as failed:
        save(4.0, overwrite=False)

    (error, _) = failed.value.failures[0]
    assert isinstance(error, StepPublishedError)
    assert (error.run, error.step) == ("run", 1)
    assert stored() == 3.0


def test_a_step_that_is_not_there_is_named(client: Client) -> None:
    with pytest.raises(CheckpointException, match=r"run=run step=7 .*\.metadata"):
        dcp.load(
            {"x": torch.zeros(1)},
            storage_reader=CachetierReader("cachetier://run/7", client=client),
        )
    with pytest.raises(NotFoundError):
        CachetierReader("cachetier://run/7", client=client).read_metadata()


def quantized() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch will drop them one day
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


def test_a_damaged_copy_is_not_loaded_but_the_remote_one(client: Client, node: Node) -> None:
    state = {"x": values(torch.float32, 5 * MEBI)}
    writer = CachetierWriter("cachetier://run/1", client=client)
    dcp.save(state, storage_writer=writer)
    writer.durable().result(60)
    data = node.settings["cache_dir"] / "data"
    largest = max((path for path in data.rglob("*") if path.is_file()), key=size_of)
    with largest.open("r+b") as file:
        file.seek(9 * MEBI)
        file.write(b"damage")

    loaded = empty_like(state)
    dcp.load(loaded, storage_reader=CachetierReader("cachetier://run/1", client=client))

    assert_same(loaded, state)


def size_of(path: pathlib.Path) -> int:
    return path.stat().st_size


def test_a_shard_that_the_metadata_names_and_nobody_has_is_an_error(client: Client) -> None:
    state = {"x": torch.ones(3)}
    dcp.save(state, storage_writer=CachetierWriter("cachetier://run/1", client=client))
    with client.checkpoint("run", 2) as checkpoint:
        checkpoint.put(client.get_shard("run", 1, ".metadata"), ".metadata")

    with pytest.raises(CheckpointException, match=r"run=run step=2 rank=0 shard=__0_0\.distcp"):
        dcp.load(state, storage_reader=CachetierReader("cachetier://run/2", client=client))


@pytest.mark.parametrize("kind", ["quantized", "sparse", "meta"])
def test_a_tensor_without_plain_bytes_is_refused_by_name(client: Client, kind: str) -> None:
    tensor = {
        "quantized": quantized(),
        "sparse": torch.ones(3).to_sparse(),
        "meta": torch.ones(3, device="meta"),
    }[kind]
    with pytest.raises(CheckpointException) as failed:
        dcp.save(
            {"good": torch.ones(2), "bad": tensor},
            storage_writer=CachetierWriter("cachetier://run/1", client=client),
        )

    (error, _) = failed.value.failures[0]
    assert isinstance(error, InvalidRequestError)
    assert "bad" in error.message


def test_a_plain_directory_of_dcp_is_read_too(tmp_path: pathlib.Path) -> None:
    state = state_of_all_kinds()
    del state["conjugate"]
    dcp.save(state, checkpoint_id=tmp_path / "plain")

    for path in (tmp_path / "plain", str(tmp_path / "plain")):
        loaded = empty_like(state)
        dcp.load(loaded, storage_reader=CachetierReader(path))
        assert_same(loaded, state)


def test_a_step_whose_items_dcp_wrote_itself_is_read_too(
    client: Client, tmp_path: pathlib.Path
) -> None:
    state = state_of_all_kinds()
    del state["conjugate"]
    dcp.save(state, checkpoint_id=tmp_path / "plain")
    with client.checkpoint("run", 1) as checkpoint:
        for path in (tmp_path / "plain").iterdir():
            checkpoint.put(path, path.name)

    loaded = empty_like(state)
    dcp.load(loaded, storage_reader=CachetierReader("cachetier://run/1", client=client))

    assert_same(loaded, state)


def test_metadata_that_is_damaged_or_lacks_something_is_named(client: Client) -> None:
    state = {"x": torch.ones(3)}
    dcp.save(state, storage_writer=CachetierWriter("cachetier://run/1", client=client))
    lacking = metadata.load(client.get_shard("run", 1, ".metadata"))
    lacking.storage_data = {}
    for step, stored in ((2, b"junk"), (3, metadata.dump(lacking))):
        with client.checkpoint("run", step) as checkpoint:
            checkpoint.put(stored, ".metadata")

    with pytest.raises(IntegrityError, match=r"run=run step=2 shard=\.metadata"):
        CachetierReader("cachetier://run/2", client=client).read_metadata()
    with pytest.raises(CheckpointException, match=r"run=run step=3 rank=0: .*where x is"):
        dcp.load(state, storage_reader=CachetierReader("cachetier://run/3", client=client))


class Gone:
    """A class of the job that saved, which the one that loads has not."""


def test_an_object_that_cannot_be_unpickled_is_named(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"sampler": Gone()}
    dcp.save(state, storage_writer=CachetierWriter("cachetier://run/1", client=client))
    monkeypatch.delattr(f"{__name__}.Gone")

    with pytest.raises(CheckpointException, match=r"sampler of cachetier://run/1.*__0_0\.distcp"):
        dcp.load(state, storage_reader=CachetierReader("cachetier://run/1", client=client))


def test_an_address_is_asked_for(tmp_path: pathlib.Path) -> None:
    assert CachetierWriter.validate_checkpoint_id("cachetier://run/1")
    assert not CachetierWriter.validate_checkpoint_id(tmp_path)
    assert not CachetierReader.validate_checkpoint_id("cachetier://run")
    with pytest.raises(InvalidNameError, match="address of a step"):
        CachetierWriter(tmp_path)
    with pytest.raises(CheckpointException, match="no step was named"):
        dcp.save({"x": torch.ones(1)}, storage_writer=CachetierWriter())


def test_options_of_dcps_own_writer_are_taken_and_others_are_not(client: Client) -> None:
    taken = CachetierWriter(
        client=client,
        single_file_per_rank=True,
        sync_files=True,
        thread_count=4,
        per_thread_copy_ahead=0,
        cache_staged_state_dict=False,
    )
    dcp.save({"w": torch.ones(3)}, checkpoint_id="cachetier://run/70", storage_writer=taken)

    assert [each.step for each in client.steps("run")] == [70]
    with pytest.raises(TypeError, match="thread_cuont"):
        CachetierWriter(client=client, thread_cuont=4)


def test_a_step_that_is_not_there_is_logged_without_a_traceback(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(CheckpointException, match="run=run step=71"):
        dcp.load(
            {"w": torch.ones(3)},
            storage_reader=CachetierReader("cachetier://run/71", client=client),
        )

    told = [record for record in caplog.records if "is not found" in record.getMessage()]
    assert told != []
    assert [record.exc_info for record in told] == [None] * len(told)
    assert "step=71" in told[0].getMessage()


def test_a_step_of_the_writer_loaded_by_dcps_own_reader_says_which_reader_can(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHETIER_URL", client.url)
    dcp.save(
        {"w": torch.ones(3)},
        checkpoint_id="cachetier://run/72",
        storage_writer=CachetierWriter(client=client),
    )

    with pytest.raises(CheckpointException, match="storage_reader=CachetierReader"):
        dcp.load({"w": torch.zeros(3)}, checkpoint_id="cachetier://run/72")
