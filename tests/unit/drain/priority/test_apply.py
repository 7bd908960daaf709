"""A control group for the drain, where one can be had; without one it goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cachetier.drain.priority import apply, cgroup
from cachetier.drain.priority.apply import GROUP_TRIES, pinned_to


class Group:
    """A group that refuses to be entered as often as it is told to."""

    def __init__(self, errors: list[OSError]) -> None:
        self._errors = errors
        self.entered = 0

    def enter(self) -> None:
        self.entered += 1
        if self._errors:
            raise self._errors.pop()


def entered(monkeypatch: pytest.MonkeyPatch, group: Group) -> object:
    monkeypatch.setattr(apply, "make_group", lambda _name: group)
    return apply._entered_group("drain")


def test_a_group_that_is_swept_away_before_it_is_entered_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group([FileNotFoundError()])

    assert entered(monkeypatch, group) is group
    assert group.entered == 2


def test_a_group_that_is_always_swept_away_is_done_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group([FileNotFoundError() for _ in range(10)])

    assert entered(monkeypatch, group) is None
    assert group.entered == GROUP_TRIES


def test_a_group_that_may_not_be_entered_is_done_without_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group([PermissionError() for _ in range(10)])

    assert entered(monkeypatch, group) is None
    assert group.entered == 1


def test_cpus_that_the_system_does_not_have_are_reported_as_refused() -> None:
    assert pinned_to([1_000_000]) is None


def test_a_group_that_systemd_delegates_may_be_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[str, bytes] = {}

    def attribute(_path: Path, name: str) -> bytes:
        try:
            return said[name]
        except KeyError:
            raise OSError(61, "No data available") from None

    monkeypatch.setattr(os, "getxattr", attribute)
    assert not cgroup._is_delegated(tmp_path)
    said["user.delegate"] = b"0"
    assert not cgroup._is_delegated(tmp_path)
    said["trusted.delegate"] = b"1"
    assert cgroup._is_delegated(tmp_path)
