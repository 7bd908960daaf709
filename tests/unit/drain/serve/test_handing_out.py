"""What ``serve`` hands out to a drain, and what it makes of failures."""

from __future__ import annotations

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.drain.schedule.queue_state import Fairness, QueueState
from cachetier.drain.schedule.tasks import CONFLICT, Task
from cachetier.local.catalog import saves
from tests.fakes.fake_clock import FakeClock
from tests.stateful.node import Node
from tests.unit.drain.serve.answering import Answering

IDS = SaveIds("run", 1, "save", 0, 1)
LATER = SaveIds("run", 2, "save", 0, 1)
DATA = bytes(100_000)


class TakenMeanwhile(QueueState):
    """Has a put write to one object between the plan and the handout."""

    def __init__(self, clock: FakeClock, name: str) -> None:
        super().__init__(clock)
        self._name = name

    def handed_out(self, fairness: Fairness) -> None:
        super().handed_out(fairness)
        self.hold(1, self._name, 0.0)


def located(serve: Answering, *found: SaveIds) -> None:
    """Put ``a`` and ``b`` of each save, and say where its objects go."""
    store = serve.node.store
    for ids in found:
        for name in ("a", "b"):
            serve.node.put(ids, name, DATA)
        save = store.read(saves.save_named, ids.run, ids.step, ids.save_id)
        assert save is not None
        serve.service.save_located(save.number, str(ids.step))
    serve.queue.hurry(None, None)


def handed_out(serve: Answering) -> list[tuple[int, str]]:
    tasks: tuple[Task, ...] = serve.service.next_work(10).tasks
    return [(task.claimant.step, task.name) for task in tasks]


def test_an_object_that_a_put_writes_to_meanwhile_is_not_handed_out(
    node: Node, clock: FakeClock
) -> None:
    serve = Answering(node, clock, queue=TakenMeanwhile(clock, "a"))
    located(serve, IDS)

    assert handed_out(serve) == [(1, "b")]


def test_a_save_with_a_damaged_row_is_told_of_once_and_keeps_no_other_waiting(
    node: Node, clock: FakeClock
) -> None:
    serve = Answering(node, clock)
    located(serve, IDS, LATER)
    node.store.write(
        lambda sql: sql.execute("UPDATE shards SET rank = 1 WHERE save = 1 AND name = 'a'").get
    )

    assert handed_out(serve) == [(2, "a"), (2, "b")]
    assert handed_out(serve) == []

    (incident,) = serve.incidents()
    assert (incident.run, incident.step) == ("run", 1)
    assert "does not match its own digest" in incident.message
    assert serve.shown()["conflicts"] == [incident.message]


@pytest.mark.parametrize("code", [CONFLICT, "remote_transient"])
def test_a_failure_of_a_drain_that_is_gone_puts_nothing_off(
    node: Node, clock: FakeClock, code: str
) -> None:
    serve = Answering(node, clock)
    located(serve, IDS)
    first = serve.service.next_work(1).tasks[0]
    serve.queue.forget_tasks()

    serve.service.fail_task(first.number, code, "too late", 1.0)

    assert handed_out(serve) == [(1, "a"), (1, "b")]
    assert (serve.shown()["failures"], serve.shown()["conflicts"]) == (0, [])


def test_a_busy_drain_hears_how_to_go_on_without_a_look_at_the_catalog(
    node: Node, clock: FakeClock
) -> None:
    serve = Answering(node, clock)
    located(serve, IDS)
    serve.queue.rate_limit = 5e6

    busy, free = serve.service.next_work(0), serve.service.next_work(1)

    assert (busy.tasks, busy.hurried, busy.rate_limit) == ((), True, 5e6)
    assert (len(free.tasks), free.rate_limit) == (1, 5e6)


def test_a_busy_drain_hears_that_a_put_waits_for_room(
    node: Node, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = Answering(node, clock)
    assert not serve.service.next_work(0).hurried

    monkeypatch.setattr(type(node.store.space), "wanted_bytes", 1)

    assert serve.service.next_work(0).hurried


def test_a_claim_counts_what_was_here_at_the_start_until_the_next_one_is_written_down(
    node: Node, clock: FakeClock
) -> None:
    serve = Answering(node, clock)
    before = serve.service.read_claim().counter
    node.put(IDS, "a", DATA)
    assert serve.service.read_claim().counter == before

    serve.service.intend_claim("", "nonce", "")

    assert serve.service.read_claim().counter > before
