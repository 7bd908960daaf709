"""What ``serve`` answers about saves: pages of a part, what is not whole yet, what was deleted."""

from __future__ import annotations

import logging

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.drain.messages import PartPage
from cachetier.drain.schedule.tasks import TaskKind
from cachetier.drain.serve import service
from cachetier.drain.serve.remote_state import RemoteState
from cachetier.drain.serve.service import PUBLISH_UNSEALED_SECONDS, UNDECIDED_SECONDS
from cachetier.errors import NotFoundError
from cachetier.local.catalog import copies, saves
from cachetier.model.lifecycle import SaveState
from tests.fakes.fake_clock import FakeClock
from tests.stateful.node import Node
from tests.unit.drain.serve.answering import Answering

IDS = SaveIds("run", 1, "save", 0, 2)
DATA = bytes(100_000)


@pytest.fixture
def serve(node: Node, clock: FakeClock) -> Answering:
    return Answering(node, clock)


def test_a_page_of_a_part_ends_where_its_digests_grow_too_many(
    serve: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        serve.node.put(IDS, name, DATA)
    monkeypatch.setattr(service, "PAGE_DIGESTS", 1)

    pages: list[PartPage] = []
    after = 0
    while not pages or pages[-1].more:
        pages.append(serve.service.read_part(1, 0, after))
        after = pages[-1].shards[-1][0]

    assert [[name for _, name, *_ in page.shards] for page in pages] == [["a", "b"], ["c"]]


@pytest.mark.parametrize("sealed", [False, True])
def test_a_step_whose_ranks_go_on_here_is_looked_at_again_only_after_a_while(
    serve: Answering, sealed: bool
) -> None:
    serve.node.put(IDS, "a", DATA)
    if sealed:
        serve.node.checkpoints.seal(IDS, 1)

    serve.service.save_not_ready(1, TaskKind.PUBLISH)

    situation = serve.queue.situation(wants_room=False)
    wait_seconds = situation.not_before[1, TaskKind.PUBLISH, ""] - situation.monotonic
    assert wait_seconds == (1.0 if sealed else PUBLISH_UNSEALED_SECONDS)


def test_a_replica_that_reports_a_removal_again_is_told_nothing_of_the_save(
    node: Node, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    node.store.write(copies.configure_replicas, {"near": False})
    near = Answering(node, clock, RemoteState(node.store, "near"))
    node.put(IDS, "a", DATA)
    near.service.save_located(1, "1")
    node.checkpoints.delete_step("run", 1)
    caplog.set_level(logging.INFO)

    for _ in range(2):
        near.service.save_removed(1, 1, "tier/run/1/foreign")

    assert len([each for each in caplog.records if "is deleted at near" in each.getMessage()]) == 2
    with pytest.raises(NotFoundError, match="no save 1"):
        near.service.part_written(1, 0, 1, len(DATA), 1.0)


def test_a_save_that_was_swept_is_not_swept_again(serve: Answering) -> None:
    serve.node.put(IDS, "a", DATA)
    serve.service.save_located(1, "1")
    again = SaveIds("run", 1, "again", 0, 2, True)
    serve.node.put(again, "a", DATA)

    (superseded,) = [
        save
        for save in serve.context.remote_state.unfinished()
        if save.state is SaveState.SUPERSEDED
    ]
    serve.service.save_swept(superseded.number)

    left = serve.context.remote_state.unfinished()
    assert superseded.number not in [save.number for save in left]


def test_a_part_that_a_replica_lost_is_written_there_again(node: Node, clock: FakeClock) -> None:
    node.store.write(copies.configure_replicas, {"near": False})
    near = Answering(node, clock, RemoteState(node.store, "near"))
    node.put(IDS, "a", DATA)
    node.checkpoints.seal(IDS, 1)
    near.service.save_located(1, "1")
    near.service.part_written(1, 0, 1, len(DATA), 1.0)
    assert [part.uploaded for part in near.context.remote_state.parts(1)] == [True]

    near.service.save_not_ready(1, TaskKind.PUBLISH, (1,))

    assert [part.uploaded for part in near.context.remote_state.parts(1)] == [False]


def test_a_part_that_waits_for_rank_0_is_released_by_a_replica_that_saw_it_seal(
    node: Node, clock: FakeClock
) -> None:
    node.store.write(copies.configure_replicas, {"near": False})
    near = Answering(node, clock, RemoteState(node.store, "near"))
    ids = SaveIds("run", 1, "save", 1, 2)
    node.put(ids, "a", DATA)
    node.checkpoints.seal(ids, 1, follows=True)
    assert [part.final for part in near.context.remote_state.parts(1)] == [False]

    near.service.save_followed(1)

    assert [part.final for part in near.context.remote_state.parts(1)] == [True]


@pytest.mark.parametrize("again_here", [True, False])
def test_a_save_that_was_superseded_is_an_incident_unless_the_step_was_saved_again_here(
    serve: Answering, again_here: bool
) -> None:
    alone = SaveIds("run", 1, "save", 0, 1)
    serve.node.put(alone, "a", DATA)
    serve.node.checkpoints.seal(alone, 1)
    again = SaveIds("run", 1, "again", 0, 1, overwrite=True)
    if again_here:
        serve.node.put(again, "a", DATA)
        serve.node.checkpoints.seal(again, 1)

    message = "save save of step 1 is superseded: the newer save again is published"
    serve.service.save_ended(1, SaveState.SUPERSEDED, message, 1.0)

    found = serve.node.store.read(saves.saves_of, "run", 1)
    assert found[0].state is SaveState.SUPERSEDED
    told = [each.message for each in serve.incidents()]
    assert told == ([] if again_here else [message])


def test_a_published_save_that_is_said_to_be_superseded_stays_so_and_is_not_asked_about_at_once(
    serve: Answering, caplog: pytest.LogCaptureFixture
) -> None:
    serve.node.put(IDS, "a", DATA)
    serve.service.save_ended(1, SaveState.PUBLISHED, "", 1.0)
    caplog.set_level(logging.INFO)

    serve.service.save_ended(1, SaveState.SUPERSEDED, "save other is published", 1.0)

    (save,) = serve.node.store.read(saves.saves_of, "run", 1)
    situation = serve.queue.situation(wants_room=False)
    wait_seconds = situation.not_before[1, TaskKind.PUBLISH, ""] - situation.monotonic
    assert (save.state, wait_seconds) == (SaveState.PUBLISHED, UNDECIDED_SECONDS)
    assert not [each for each in caplog.records if "superseded" in each.getMessage()]
