"""Ranks agree on the newest step all of them can restore, and end together when one cannot."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from cachetier_client import Client
from cachetier_client.errors import (
    CachetierClientError,
    InvalidRequestError,
    RemoteError,
    RemoteUnavailableError,
    UnflushedStepsError,
)
from cachetier_client.results import StepInfo, UnflushedStep
from cachetier_client.torch.agreement import (
    AgreementError,
    agree,
    latest_common_step,
    wait_for_step,
)

from tests.frameworks.conftest import Node
from tests.frameworks.ranks import Failed, Job, run_ranks
from tests.integration.serving import running

pytestmark = pytest.mark.torch
RUN = "agreed"


class Listing:
    """A client that knows of steps what it is told to: whole ones, or parts of a save of many."""

    def __init__(
        self,
        local: dict[int, tuple[int, ...]],
        remote: tuple[int, ...] = (),
        world: int = 3,
        elsewhere: dict[int, tuple[int, ...]] | RemoteError | None = None,
    ) -> None:
        self._elsewhere = elsewhere or {}
        self._local = [info(step, ranks, world) for step, ranks in local.items()]
        self._remote = [info(step, tuple(range(world)), world) for step in remote]

    def steps(self, run: str, level: str, *, timeout_seconds: float) -> list[StepInfo]:
        return self._local if level in ("memory", "local") else self._remote

    def unflushed(self, run: str, *, timeout_seconds: float) -> list[UnflushedStep]:
        if isinstance(self._elsewhere, RemoteError):
            raise self._elsewhere
        return [
            UnflushedStep(run, step, f"save-{step}", 3, (0, 1, 2), ("other",), ("0f",), here)
            for step, here in self._elsewhere.items()
        ]


def info(step: int, ranks: tuple[int, ...], world: int) -> StepInfo:
    ids = {"run": RUN, "step": step, "save_id": f"save-{step}"}
    return StepInfo.from_reply({**ids, "ranks": ranks, "world_size": world})


def told(call: Callable[[], Any]) -> Any:
    """Return what a call returned, or what its AgreementError said, and whether it took long."""
    began = time.monotonic()
    try:
        return call()
    except AgreementError as error:
        return {
            "message": error.message,
            "failures": {str(rank): text for rank, text in error.failures.items()},
            "missing": list(error.missing),
            "in_time": time.monotonic() - began < 60,  # a collective would wait half an hour
        }


# --- three ranks, each with lists of its own -----------------------------------------------------


def common_of(local: list[dict[int, tuple[int, ...]]], remote: list[tuple[int, ...]]) -> Any:
    rank = dist.get_rank()
    client: Any = Listing(local[rank], remote[rank])
    return {
        level: latest_common_step(RUN, client=client, level=level)
        for level in ("any", "local", "durable")
    }


def different_lists() -> Any:
    whole, nothing = (0, 1, 2), ()
    return {
        "the newest that all have": common_of(
            [{1: whole, 2: whole, 3: whole}, {1: whole, 2: whole}, {2: whole, 3: whole}],
            [nothing] * 3,
        ),
        "some from the node, others from the remote": common_of(
            [{1: whole, 7: whole}, {}, {1: whole}], [(1,), (1, 7), (1, 7)]
        ),
        "each node has its own part alone": common_of(
            [{4: (0,)}, {4: (1,)}, {4: (2,)}], [(3,)] * 3
        ),
        "a part is on no node": common_of([{4: (0,)}, {4: (1,)}, {4: (1,)}], [(3,)] * 3),
        "nothing in common": common_of([{1: whole}, {2: whole}, {3: whole}], [nothing] * 3),
    }


def test_the_newest_common_step_of_different_lists() -> None:
    first, second, third = run_ranks(different_lists, 3)
    assert first == second == third
    assert first == {
        "the newest that all have": {"any": 2, "local": 2, "durable": None},
        "some from the node, others from the remote": {"any": 7, "local": None, "durable": 1},
        "each node has its own part alone": {"any": 3, "local": 4, "durable": 3},
        "a part is on no node": {"any": 3, "local": None, "durable": 3},
        "nothing in common": {"any": None, "local": None, "durable": None},
    }


# --- what other nodes hold -----------------------------------------------------------------------


Elsewhere = list[dict[int, tuple[int, ...]] | RemoteError | None]


def strict_among(elsewhere: Elsewhere, *, strict: bool = True) -> Any:
    listing: Any = Listing({1: (0, 1, 2)}, elsewhere=elsewhere[dist.get_rank()])
    try:
        return latest_common_step(RUN, client=listing, strict=strict)
    except UnflushedStepsError as error:
        return [error.code, error.step, error.message, error.hint]


def steps_elsewhere() -> Any:
    lost, nothing = RemoteUnavailableError("the bucket is away"), None
    mine, theirs, all_parts = (0, 1), (2,), (0, 1, 2)
    return {
        "on a node that is not in the job": strict_among([nothing, nothing, {7: ()}]),
        "not strict": strict_among([{7: ()}] * 3, strict=False),
        "older": strict_among([{1: ()}] * 3),
        "on the nodes of the job": strict_among([{7: mine}, {7: mine}, {7: theirs}]),
        "one node of the job is new": strict_among([{7: all_parts}, {7: all_parts}, {7: ()}]),
        "one node cannot read": strict_among([lost, {7: ()}, nothing]),
        "none can read": strict_among([lost] * 3),
    }


def test_all_ranks_refuse_alike_what_another_node_holds() -> None:
    first, second, third = run_ranks(steps_elsewhere, 3)
    assert first == second == third
    refused = first["on a node that is not in the job"]
    assert refused[:2] == ["unflushed_steps", 7]
    assert "step 7 of run agreed (all of it) is on other" in refused[2]
    assert "cachetier flush agreed 7" in refused[3]
    assert first == {
        "on a node that is not in the job": refused,
        "not strict": 1,
        "older": 1,
        "on the nodes of the job": 1,
        "one node of the job is new": refused,
        "one node cannot read": refused,
        "none can read": 1,
    }


def test_a_job_that_finds_nothing_does_not_start_anew_while_nobody_can_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = RemoteUnavailableError("the bucket is away")
    nothing: Any = Listing({}, elsewhere=lost)
    assert latest_common_step(RUN, client=nothing, level="local") is None
    with pytest.raises(RemoteUnavailableError, match="cannot be read"):
        latest_common_step(RUN, client=nothing, level="local", strict=True)
    monkeypatch.setenv("CACHETIER_IGNORE_UNFLUSHED", "1")
    assert latest_common_step(RUN, client=nothing, level="local", strict=True) is None


def test_at_level_local_a_node_that_has_steps_asks_nobody() -> None:
    has_one: Any = Listing({1: (0,)}, world=1, elsewhere={7: ()})
    assert latest_common_step(RUN, client=has_one, level="local", strict=True) == 1


# --- four ranks that fail in their own ways ------------------------------------------------------


class Refusing:
    """A client that cannot look."""

    def steps(self, *_: Any, **__: Any) -> list[StepInfo]:
        raise CachetierClientError("the node's disk is gone", hint="Replace it.")

    def unflushed(self, *_: Any, **__: Any) -> list[UnflushedStep]:
        return []


def troubles() -> Any:
    rank = dist.get_rank()
    fine: Any = Listing({5: (0, 1, 2)})
    bad: Any = Refusing()
    some = dist.new_group([0, 3])
    every = {
        "before": told(lambda: agree(lambda: rank)),
        "one raises": told(lambda: latest_common_step(RUN, client=bad if rank == 2 else fine)),
        "after": told(lambda: latest_common_step(RUN, client=fine)),
    }
    if rank in (0, 3):
        every["sub-group"] = told(lambda: agree(lambda: {"rank": rank}, process_group=some))
    else:
        with pytest.raises(InvalidRequestError):
            agree(lambda: rank, process_group=some)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    every["killed"] = told(lambda: agree(lambda: rank, timeout_seconds=1.5))
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)  # and with it the store
    every["store gone"] = told(lambda: agree(lambda: rank, timeout_seconds=1.5))
    return every


def test_one_rank_that_fails_or_is_killed_ends_it_for_all_in_time() -> None:
    zero, one, *others = Job(troubles, 4).results()
    assert zero == one == Failed("exit", "code -9")
    for each in others:
        assert each["before"] == [0, 1, 2, 3]
        assert each["one raises"] == others[0]["one raises"]
        assert list(each["one raises"]["failures"]) == ["2"]
        assert "the node's disk is gone" in each["one raises"]["message"]
        assert each["after"] == 5
        assert 1 in each["killed"]["missing"]  # and whoever was slower than the deadline
        assert each["killed"]["missing"] == others[0]["killed"]["missing"]
        assert each["killed"]["in_time"]
        assert each["store gone"]["missing"] == [0]
        assert each["store gone"]["in_time"]
    assert others[1]["sub-group"] == [{"rank": 0}, {"rank": 3}]


# --- a real node ---------------------------------------------------------------------------------


def saved_and_agreed() -> Any:
    rank = dist.get_rank()
    client = Client(run=RUN)
    found = [told(lambda: latest_common_step(RUN, client=client))]
    for step in (1, 2):
        if (rank, step) != (1, 2):
            with client.checkpoint(None, step, save_id=f"s{step}") as checkpoint:
                checkpoint.put(b"x" * 100, f"shard-{rank}")
    agree(lambda: True, name="both have saved")
    found.append(told(lambda: latest_common_step(RUN, client=client)))
    found.append(told(lambda: wait_for_step(RUN, 1, client=client)))
    found.append(told(lambda: latest_common_step(RUN, client=client, level="durable")))
    never = told(lambda: wait_for_step(RUN, 9, "local", client=client, timeout_seconds=1))
    client.close()
    return [*found, never]


def test_a_step_counts_once_all_ranks_of_the_node_have_sealed(node: Node) -> None:
    first, second = run_ranks(saved_and_agreed, 2, environment=node.environment)
    assert first == second
    none, one, waited, durable, never = first
    assert (none, one, waited, durable) == (None, 1, None, 1)
    assert never["failures"]
    assert never["in_time"]


def one_rank_on_each_node(urls: list[str]) -> Any:
    os.environ["LOCAL_WORLD_SIZE"] = "1"
    rank = dist.get_rank()
    with Client(urls[rank], run=RUN) as client:

        def newest() -> Any:
            return [
                told(lambda: latest_common_step(RUN, client=client, level="local")),
                told(lambda: latest_common_step(RUN, client=client)),
            ]

        checkpoint = client.checkpoint(None, 5, save_id="two-nodes")
        checkpoint.put(bytes(100), f"shard-{rank}")
        if rank == 0:
            checkpoint.seal()
        agree(lambda: None, name="rank 0 has sealed")
        half = newest()
        agree(lambda: None, name="both have looked")
        if rank == 1:
            checkpoint.seal()
        agree(lambda: None, name="both have sealed")
        local = told(lambda: latest_common_step(RUN, client=client, level="local"))
        wait_for_step(RUN, 5, client=client)
        return [half, local, newest()]


def test_on_two_nodes_a_step_counts_once_all_have_their_part_or_the_remote_has_it(
    node: Node, tmp_path: Path
) -> None:
    second = {**node.settings, "cache_dir": tmp_path / "second"}
    second["socket"] = node.settings["socket"].with_name("second")
    with running(second) as service:
        urls = [node.url, f"unix://{service.socket}"]
        results = run_ranks(one_rank_on_each_node, 2, urls=urls)
    assert results == [[[None, None], 5, [5, 5]]] * 2


# --- one process ---------------------------------------------------------------------------------


def test_a_process_alone_asks_its_client() -> None:
    alone: Any = Listing({3: (0,), 4: (0,)}, remote=(2,), world=1)
    assert latest_common_step(RUN, client=alone) == 4
    assert latest_common_step(RUN, client=alone, level="durable") == 2
    assert agree(lambda: "me") == ["me"]


def test_one_of_several_ranks_does_not_decide_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidRequestError, match="init_process_group"):
        agree(lambda: 1)


def test_a_level_that_there_is_not_is_refused() -> None:
    level: Any = "somewhere"
    with pytest.raises(InvalidRequestError, match="somewhere"):
        latest_common_step(RUN, level=level)
