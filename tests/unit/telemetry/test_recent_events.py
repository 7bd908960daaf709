"""The last events are kept, whatever the log is set to write, without secrets."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from cachetier.telemetry import events
from cachetier.telemetry.events import tell
from cachetier.telemetry.recent_events import KEPT, RecentEvents

log = logging.getLogger("cachetier.test")


@pytest.fixture
def recent() -> Iterator[RecentEvents]:
    found = RecentEvents()
    end = found.listen()
    yield found
    end()


def test_the_newest_come_first_with_what_they_are_about(recent: RecentEvents) -> None:
    tell(log, events.REMOTE_WELL, remote="durable")
    tell(log, events.SAVE_ENDED, run="r", step=3, state="refused", remote="durable")
    newest, before = recent.newest_first()
    assert (newest.run, newest.step, newest.name) == ("r", 3, "save.ended")
    assert newest.message == "r/3 is refused at durable"
    assert (before.run, before.level) == (None, "info")


def test_what_was_saved_by_path_is_called_by_its_path(recent: RecentEvents) -> None:
    save = {"run": "r~checkpoints~step-!~", "step": 10, "state": "refused", "remote": "durable"}
    tell(log, events.SAVE_ENDED, **save)
    tell(log, events.SAVE_ENDED, **{**save, "run": "r~last.ckpt", "step": 0})
    file, folder = recent.newest_first()
    assert folder.message == "r/checkpoints/step-10 is refused at durable"
    assert folder.run == "r~checkpoints~step-!~"
    assert file.message == "r/last.ckpt is refused at durable"


def test_a_log_that_says_less_does_not_make_them_fewer() -> None:
    ours = logging.getLogger("cachetier")
    before = ours.level
    ours.setLevel(logging.WARNING)
    recent = RecentEvents()
    end = recent.listen()
    try:
        tell(log, events.REMOTE_WELL, remote="durable")
        assert len(recent.newest_first()) == 1
    finally:
        end()
        assert ours.level == logging.WARNING
        ours.setLevel(before)


def test_there_are_never_more_than_so_many(recent: RecentEvents) -> None:
    for _ in range(KEPT + 10):
        tell(log, events.REMOTE_WELL, remote="durable")
    found = recent.newest_first()
    assert (len(found), found[0].number) == (KEPT, KEPT + 10)


def test_secrets_are_blotted_out(recent: RecentEvents) -> None:
    tell(log, events.DRAIN_NO_WORK, reason="Authorization: Bearer abcdefgh12345678")
    assert "abcdefgh" not in recent.newest_first()[0].message
