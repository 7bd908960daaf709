"""What readers meet at a remote is told, and a remote that nobody asks is not called well."""

from __future__ import annotations

from typing import Any

import pytest
from cachetier_client.bucket_format.layout import Layout

from cachetier.drain.serve.stats import UNASKED_SECONDS, DrainStats
from cachetier.errors import (
    CachetierError,
    ClientPendingError,
    ObjectMissingError,
    RemoteRefusedError,
    ThrottledError,
    TransientError,
)
from cachetier.model.pace import PaceState
from cachetier.remote.answers import Answers, state_after
from cachetier.remote.bucket import Bucket
from cachetier.status.words import remote_state, worst_state
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore


class Dead(MemoryObjectStore):
    """A store whose lists and heads end with ``error``, if there is one."""

    error: CachetierError | None = None

    def head(self, key: str) -> Any:
        if self.error is not None:
            raise self.error
        return super().head(key)


class Seen:
    """A remote with its drain, that has nothing to do, and its readers."""

    def __init__(self, clock: FakeClock, *, shared: bool = False) -> None:
        self.clock = clock
        self.store = Dead()
        self.stats = DrainStats("durable", clock)
        self.answers = Answers(clock.now)
        self._bucket = self.answers.of(Bucket(self.store, Layout("ckpt")), shared=shared)

    def read(self, error: CachetierError | None = None) -> None:
        self.store.error = error
        if error is None:
            self._bucket.objects.head("x")
            return
        with pytest.raises(type(error)):
            self._bucket.objects.head("x")

    def drained(self) -> None:
        pace = PaceState(1, 0, None, None, None, 0)
        self.stats.traffic({"requests": 1}, pace)
        self.stats.progressed()

    @property
    def state(self) -> str:
        return str(self.snapshot.state)

    @property
    def snapshot(self) -> Any:
        found = self.stats.snapshot([]).remote
        return found.with_answers(self.answers.met, self.clock.now())


@pytest.fixture
def seen(clock: FakeClock) -> Seen:
    clock.advance(1.0)
    return Seen(clock)


def test_a_dead_store_that_only_readers_ask_is_not_called_well(
    seen: Seen, clock: FakeClock
) -> None:
    seen.drained()
    assert seen.state == "ok"
    clock.advance(5.0)
    seen.read(TransientError("connection refused"))
    assert (seen.state, seen.snapshot.since) == ("unreachable", clock.now())
    assert seen.snapshot.reason == "a reader met connection refused"
    clock.advance(1.0)
    seen.read(ThrottledError("slow down"))
    assert seen.state == "throttled"
    seen.read(RemoteRefusedError("who are you"))
    assert seen.state == "refused"
    clock.advance(1.0)
    seen.read()
    assert (seen.state, seen.snapshot.reason) == ("ok", "")


def test_what_the_drain_got_there_later_says_more_than_a_reader_that_failed(
    seen: Seen, clock: FakeClock
) -> None:
    seen.read(TransientError("reset"))
    clock.advance(1.0)
    seen.drained()
    assert seen.state == "ok"


def test_the_drain_that_probes_is_believed_before_a_reader(seen: Seen, clock: FakeClock) -> None:
    seen.stats.remote_health("refused", "no bucket")
    seen.read()
    clock.advance(2 * UNASKED_SECONDS)
    assert (seen.state, seen.snapshot.reason) == ("refused", "no bucket")


def test_an_answer_about_one_object_is_an_answer(seen: Seen) -> None:
    seen.read(ObjectMissingError("gone"))
    assert seen.state == "ok"


def test_a_refusal_in_a_bucket_that_others_share_says_nothing(clock: FakeClock) -> None:
    clock.advance(1.0)
    seen = Seen(clock, shared=True)
    seen.read()
    seen.read(RemoteRefusedError("not yours"))
    assert seen.state == "ok"
    clock.advance(1.0)
    seen.read(TransientError("reset"))
    assert seen.state == "unreachable"


@pytest.mark.parametrize("error", [None, TransientError("reset")])
def test_a_remote_that_nobody_asked_for_long_is_shown_as_that(
    seen: Seen, clock: FakeClock, error: CachetierError | None
) -> None:
    assert (seen.state, seen.snapshot.asked_at) == ("unasked", None)
    seen.read(error)
    asked_at = clock.now()
    clock.advance(UNASKED_SECONDS + 1.0)
    assert (seen.state, seen.snapshot.asked_at) == ("unasked", asked_at)
    assert ("reset" in seen.snapshot.reason) == (error is not None)


def test_people_read_for_how_long_it_was_not_asked() -> None:
    assert remote_state({"state": "unasked", "unasked_seconds": 720.0}) == "not asked for 12 min"
    assert remote_state({"state": "unasked", "unasked_seconds": None}) == "not asked yet"
    assert remote_state({"state": "refused", "unasked_seconds": 1.0}) == "refused"
    status = {"state": "ready", "remotes": [{"state": "unasked"}]}
    assert worst_state(status) == "ready", "nobody has to act"


def test_a_client_that_is_not_made_yet_says_nothing_of_the_remote(
    seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    busy = ClientPendingError("busy")
    seen.drained()
    seen.read(busy)
    assert seen.state == "ok"
    state = state_after(busy)
    assert state == "unasked"
    seen.stats.remote_health(state, busy.message)
    assert (seen.state, seen.snapshot.reason) == ("unasked", "busy")
    seen.stats.remote_health("ok", "")
    assert not caplog.records
    assert remote_state({"state": "unasked", "unasked_seconds": None, "reason": "busy"}) == (
        "not asked yet: busy"
    )
