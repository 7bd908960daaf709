"""``dcp.async_save`` of one rank with the default stager: copies, in memory that is used again."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from cachetier_client import Client
from cachetier_client.errors import DeadlineError, InvalidRequestError
from cachetier_client.torch import CachetierReader, CachetierWriter
from cachetier_client.torch.staging import HostStager
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItem

from tests.frameworks.conftest import Node

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
ELEMENTS = 3 << 20


@pytest.fixture
def stager() -> Iterator[HostStager]:
    stager = HostStager(timeout_seconds=0.05)
    yield stager
    stager.close()


def save_aside(state: dict[str, Any], step: int, writer: CachetierWriter, **options: Any) -> Any:
    address = f"cachetier://run/{step}"
    return dcp.async_save(state, checkpoint_id=address, storage_writer=writer, **options)


def loaded(client: Client, step: int) -> Tensor:
    into = {"x": torch.zeros(ELEMENTS)}
    reader = CachetierReader(f"cachetier://run/{step}", client=client)
    dcp.load(into, storage_reader=reader)
    return into["x"]


class Waiting(DefaultSavePlanner):
    """A save that waits at its first byte until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def resolve_data(self, write_item: WriteItem) -> Any:
        self.reached.set()
        assert self.go_on.wait(30)
        return super().resolve_data(write_item)


def test_two_saves_may_be_under_way_and_neither_sees_what_came_later(client: Client) -> None:
    writer, planner, x = CachetierWriter(client=client), Waiting(), torch.zeros(ELEMENTS)
    savings: list[Future[Any]] = [save_aside({"x": x}, 1, writer, planner=planner)]
    assert planner.reached.wait(30), "the first save is writing"
    x.fill_(1)
    savings.append(save_aside({"x": x}, 2, writer))
    savings[-1].result(60)
    assert not savings[0].done()
    x.fill_(2)
    planner.go_on.set()
    for saving in savings:
        saving.result(60)
    savings.append(save_aside({"x": x}, 3, writer))
    savings[-1].result(60)

    assert [set(loaded(client, step).tolist()) for step in (1, 2, 3)] == [{0}, {1}, {2}]
    writer.close()


def test_the_memory_is_used_again_once_nothing_refers_to_it(stager: HostStager) -> None:
    state = {"a": torch.ones(1000), "b": [torch.zeros(ELEMENTS), 3]}
    places = []
    for _ in range(4):
        staged = stager.stage(state)
        places.append(staged["b"][0].data_ptr())
        del staged

    assert len(set(places)) == 1


def test_a_third_save_waits_for_the_memory_of_an_earlier_one_and_says_so(
    stager: HostStager,
) -> None:
    held = [stager.stage({"x": torch.full((5,), float(i))}) for i in range(2)]

    with pytest.raises(DeadlineError, match="2 earlier saves") as failed:
        stager.stage({"x": torch.ones(5)})

    assert "future" in failed.value.hint
    assert [each["x"][0].item() for each in held] == [0, 1]
    held.pop()
    assert stager.stage({"x": torch.ones(5)})["x"].tolist() == [1] * 5


def test_a_view_of_what_is_staged_keeps_its_memory(stager: HostStager) -> None:
    view = stager.stage({"x": torch.arange(8)})["x"][3:5].view(torch.int32)
    for _ in range(3):
        stager.stage({"x": torch.zeros(8, dtype=torch.int64)})

    assert view.tolist() == [3, 0, 4, 0]


def test_a_state_that_has_grown_gets_more_memory(stager: HostStager) -> None:
    for elements in (10, 5_000_000, 7, 6_000_000):
        assert stager.stage({"x": torch.ones(elements)})["x"].sum() == elements


def test_all_that_is_not_a_plain_tensor_is_copied_deeply(stager: HostStager) -> None:
    tied = torch.ones(3)
    state: dict[str, Any] = {
        "tied": [tied, tied],
        "tuple": (torch.zeros(2), "x"),
        "columns": torch.arange(6).view(2, 3).t(),
        "sparse": torch.eye(2).to_sparse(),
        "number": torch.tensor(4, dtype=torch.int8),
        "empty": torch.empty(0, 3),
        "list": [1, {"k": {2}}],
    }
    staged = stager.stage(state)
    tied.zero_()
    state["list"][1]["k"].add(3)

    assert staged["tied"][0] is staged["tied"][1]
    assert staged["tied"][0].tolist() == [1] * 3
    assert torch.equal(staged["columns"], state["columns"])
    assert staged["sparse"].to_dense().tolist() == [[1, 0], [0, 1]]
    assert (staged["number"].item(), staged["number"].dtype) == (4, torch.int8)
    assert staged["empty"].shape == (0, 3)
    assert staged["list"] == [1, {"k": {2}}]


def test_what_cannot_be_copied_is_an_error_that_says_so(stager: HostStager) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be copied"):
        stager.stage({"x": torch.ones(3), "lock": threading.Lock()})


def test_a_closed_writer_stages_no_more(client: Client) -> None:
    writer = CachetierWriter("cachetier://run/1", client=client)
    writer.stage({"x": torch.ones(3)})
    stager = writer._own_stager
    writer.close()

    assert stager is not None
    with pytest.raises(InvalidRequestError, match="closed"):
        stager.stage({"x": torch.ones(3)})


def test_a_writer_that_is_closed_waits_for_the_save_under_way(client: Client, node: Node) -> None:
    writer, planner = CachetierWriter(url=node.url), Waiting()
    saving = save_aside({"x": torch.ones(ELEMENTS)}, 1, writer, planner=planner)
    assert planner.reached.wait(30), "the save is writing"
    closing = threading.Thread(target=writer.close)
    closing.start()
    closing.join(0.2)
    planner.go_on.set()

    saving.result(60)
    closing.join(60)

    assert not closing.is_alive()
    assert torch.equal(loaded(client, 1), torch.ones(ELEMENTS))


def test_a_writer_that_is_closed_waits_no_longer_than_a_save_may_take(client: Client) -> None:
    writer, planner = CachetierWriter(client=client, timeout_seconds=0.2), Waiting()
    saving = save_aside({"x": torch.ones(ELEMENTS)}, 1, writer, planner=planner)
    assert planner.reached.wait(30), "the save is writing"

    writer.close()
    planner.go_on.set()

    assert isinstance(saving.exception(60), CheckpointException)


def test_the_second_future_fails_with_the_save_it_was_to_follow(client: Client) -> None:
    writer = CachetierWriter(client=client)
    failing: Future[Any] = Future()
    failing.set_exception(RuntimeError("the save failed"))

    with pytest.raises(RuntimeError, match="the save failed"):
        writer.durable(failing).result(30)
    with pytest.raises(InvalidRequestError, match="no save"):
        writer.durable().result(30)


def test_nothing_collects_garbage_or_stops_a_device(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gc

    calls: list[str] = []
    for owner, name in (
        (gc, "collect"),
        (torch.cuda, "empty_cache"),
        (torch.cuda, "synchronize"),
        (torch.accelerator, "synchronize"),
    ):
        monkeypatch.setattr(owner, name, lambda *_args, name=name: calls.append(name))
    writer, x = CachetierWriter(client=client), torch.ones(ELEMENTS)
    save_aside({"x": x}, 1, writer).result(60)
    dcp.save({"x": x}, checkpoint_id="cachetier://run/2", storage_writer=writer)

    assert torch.equal(loaded(client, 1), x)
    assert calls == []
    writer.close()


def test_writers_that_come_to_another_process_save_after_save_share_a_client(node: Node) -> None:
    writer = CachetierWriter("cachetier://run/1", url=node.url)

    came = [pickle.loads(pickle.dumps(writer)) for _ in range(2)]

    assert came[0]._step.client is came[1]._step.client
    assert came[0]._step.client is not writer._step.client
    assert came[0]._step.client.url == node.url
    came[0]._step.client.close()
    writer.close()


def test_a_stager_that_is_closed_lets_nobody_wait() -> None:
    stager = HostStager(timeout_seconds=30)
    held = [stager.stage({"x": torch.ones(1)}) for _ in range(2)]
    failed: Future[Any] = Future()

    def stage() -> None:
        try:
            failed.set_result(stager.stage({"x": torch.ones(1)}))
        except InvalidRequestError as error:
            failed.set_result(error)

    third = threading.Thread(target=stage)
    third.start()
    stager.close()

    assert isinstance(failed.result(60), InvalidRequestError)
    third.join(60)
    del held
