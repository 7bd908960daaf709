"""The model of shared keys must report every bug that is planted here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cachetier.drain.upload import objects
from cachetier.drain.upload.deletions import MountDeletions
from cachetier.local.catalog import objects as object_rows
from cachetier.model.superseding import Stamp, Verdict, judge
from cachetier.remote.store_clock import StoreClock
from tests.stateful.invariants import ViolationError
from tests.stateful.test_shared_keys import played
from tests.stateful.unsynced import unsynced

LIVES = 60


@pytest.fixture(scope="module")
def vfs() -> Iterator[str]:
    with unsynced() as name:
        yield name


def replace_whatever_is_there(patch: pytest.MonkeyPatch) -> None:
    """As if nobody had ever looked."""
    patch.setattr(objects, "judge", lambda *_, **__: Verdict.NEWER)


def replace_what_is_of_this_node(patch: pytest.MonkeyPatch) -> None:
    """A higher version of its own shows that the directory went back in time."""

    def careless(ours: Stamp, there: Stamp, **how: Any) -> Verdict:
        return Verdict.NEWER if ours.is_of(there) else judge(ours, there, **how)

    patch.setattr(objects, "judge", careless)


def stop_for_a_person(patch: pytest.MonkeyPatch) -> None:
    def strict(ours: Stamp, there: Stamp, **how: Any) -> Verdict:
        found = judge(ours, there, **how)
        return Verdict.CONFLICT if found is Verdict.SUPERSEDED else found

    patch.setattr(objects, "judge", strict)


def trust_the_clock_of_the_node(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoreClock, "at", lambda _clock, own: own + 1_700_000_000)


def forget_what_was_deleted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MountDeletions, "covers", lambda *_: False)


def lose_in_silence(patch: pytest.MonkeyPatch) -> None:
    forget = object_rows.forget_version
    patch.setattr(object_rows, "record_superseded", lambda sql, version, *_: forget(sql, version))


PLANTED: dict[Callable[[pytest.MonkeyPatch], None], tuple[str, int, str]] = {
    replace_whatever_is_there: ("replaced", 0, ""),
    replace_what_is_of_this_node: ("replaced", 18, "put drain_all take_a_snapshot go_back"),
    stop_for_a_person: ("never drains", 0, ""),
    trust_the_clock_of_the_node: ("replaced", 0, "put delete drain_all drain_one time_passes"),
    forget_what_was_deleted: ("deletion", 6, "put delete drain_one time_passes"),
    lose_in_silence: ("nobody is told", 0, ""),
}


@pytest.mark.parametrize("plant", PLANTED)
def test_it_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None],
    tmp_path: Path,
    vfs: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    complaint, first, only = PLANTED[plant]

    def said(seed: int, name: str) -> str:
        try:
            played(tmp_path / f"{name}-{seed}", seed, vfs, frozenset(only.split()))
        except ViolationError as violation:
            return str(violation)
        return ""

    plant(monkeypatch)
    found = next((seed, told) for seed in range(first, LIVES) if (told := said(seed, "planted")))
    print(f"caught by life {found[0]}: {found[1]}")
    monkeypatch.undo()

    assert complaint in found[1]
    assert not said(found[0], "sound")
