"""In which order a mount's objects are shown, and what is sent ahead of that."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from cachetier_client.bucket_format.uploads import SINGLE_PUT_BYTES
from hypothesis import given
from hypothesis import strategies as st

from cachetier.drain.schedule.object_order import MountView, goes_in_parts, showable
from cachetier.drain.schedule.queue_state import Fairness, Situation
from cachetier.drain.schedule.scheduler import OVERDUE_SECONDS, SaveView, plan
from cachetier.drain.schedule.tasks import TaskKind, send_key
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import ObjectState, SaveState
from cachetier.model.objects import NO_HEAD, ObjectVersion

NOW = 10_000.0
LARGE_BYTES = SINGLE_PUT_BYTES + 1


def version_of(
    version: int,
    follows: int = 0,
    key: str = "",
    *,
    size_bytes: int = 1,
    part_sizes: tuple[int, ...] = (),
    save: int = 1,
) -> ObjectVersion:
    return ObjectVersion(
        version=version,
        save=save,
        run="s3:mount",
        key=key or f"key-{version}",
        deleted=False,
        size_bytes=sum(part_sizes) or size_bytes,
        digest=1,
        etag=f"etag-{version}",
        head=NO_HEAD,
        part_sizes=part_sizes,
        committed_at=NOW - 1,
        follows=follows,
    )


def view_of(
    *unshown: ObjectVersion,
    sent: frozenset[int] = frozenset(),
    held: bool = False,
    save: int = 1,
    run: str = "s3:mount",
) -> SaveView:
    of_mount = Save(save, run, 0, "objects", SaveState.OBJECTS, 1, False, NOW - 100)
    return SaveView(of_mount, mount=MountView(unshown, sent, held))


def planned(
    *views: SaveView, situation: Situation | None = None, count: int = 100
) -> list[tuple[TaskKind, int]]:
    work = plan(views, situation or Situation(NOW, 0.0), count).work
    return [(item.kind, item.version.version) for item in work if item.version is not None]


def test_what_was_acknowledged_before_a_put_ended_is_shown_before_it() -> None:
    assert planned(view_of(version_of(1), version_of(2, follows=1))) == [(TaskKind.SHOW, 1)]
    assert planned(view_of(version_of(2, follows=1))) == [(TaskKind.SHOW, 2)]


def test_puts_that_overlap_do_not_wait_for_each_other() -> None:
    view = view_of(version_of(1), version_of(2), version_of(3, follows=2))

    assert planned(view) == [(TaskKind.SHOW, 1), (TaskKind.SHOW, 2)]


def test_a_later_version_of_a_key_waits_for_the_earlier_one_even_where_their_puts_overlap() -> None:
    assert planned(view_of(version_of(1, key="k"), version_of(2, key="k"))) == [(TaskKind.SHOW, 1)]


def test_a_conflict_is_not_shown_and_holds_back_what_follows_it() -> None:
    conflict = replace(version_of(1, key="k"), state=ObjectState.CONFLICT)
    view = view_of(conflict, version_of(2), version_of(3, key="k"), version_of(4, follows=1))

    assert planned(view) == [(TaskKind.SHOW, 2)]


def test_what_has_to_wait_is_sent_ahead_unless_it_is_tiny_or_there() -> None:
    waiting = [
        version_of(2, 1, size_bytes=LARGE_BYTES),
        version_of(3, 1, part_sizes=(5, 5)),
        version_of(4, 1, size_bytes=SINGLE_PUT_BYTES),
        version_of(5, 1, size_bytes=LARGE_BYTES),
    ]

    assert planned(view_of(version_of(1), *waiting, sent=frozenset({5}))) == [
        (TaskKind.SHOW, 1),
        (TaskKind.SEND, 2),
        (TaskKind.SEND, 3),
    ]


def test_a_version_whose_parts_are_on_their_way_is_not_shown_beside_that() -> None:
    large = version_of(1, size_bytes=LARGE_BYTES)
    on_its_way = Situation(NOW, 0.0, in_flight=frozenset({send_key(large)}))

    assert planned(view_of(large), situation=on_its_way) == []


def test_a_marker_that_waits_for_other_nodes_holds_back_what_follows_it_alone() -> None:
    marker = replace(version_of(1), waits="other-7")
    view = view_of(marker, version_of(2), version_of(3, follows=1))

    assert planned(view) == [(TaskKind.SHOW, 2)]


def test_nothing_of_a_mount_is_shown_that_owes_a_note_and_another_goes_on() -> None:
    other = view_of(version_of(9, save=2), save=2, run="s3:other")

    assert planned(view_of(version_of(1), held=True), other) == [(TaskKind.SHOW, 9)]


def test_mounts_take_turns() -> None:
    views = [
        view_of(*(version_of(10 * n + k, save=n) for k in range(4)), save=n, run=f"s3:{n}")
        for n in (1, 2)
    ]
    assert [version // 10 for _, version in planned(*views, count=4)] == [1, 2, 1, 2]


@pytest.mark.parametrize("age_seconds", [1.0, OVERDUE_SECONDS + 1])
def test_objects_need_no_seal_to_be_drained(age_seconds: float) -> None:
    version = replace(version_of(1), committed_at=NOW - age_seconds)

    assert planned(view_of(version)) == [(TaskKind.SHOW, 1)]


def test_a_hurried_mount_goes_first() -> None:
    hurried = Situation(NOW, 0.0, hurried=lambda who: who.run == "s3:b")
    first = view_of(version_of(1), run="s3:a")
    second = view_of(version_of(2, save=2), save=2, run="s3:b")

    assert planned(first, second, situation=hurried) == [(TaskKind.SHOW, 2), (TaskKind.SHOW, 1)]


def test_what_was_sent_ahead_costs_its_mount_nothing_more() -> None:
    large = version_of(1, size_bytes=LARGE_BYTES)
    (work,) = plan([view_of(large, sent=frozenset({1}))], Situation(NOW, 0.0), 1).work

    assert (work.kind, work.size_bytes) == (TaskKind.SHOW, 0)
    assert plan([view_of(large)], Situation(NOW, 0.0), 1).fairness != Fairness()


@st.composite
def histories(draw: st.DrawFn) -> list[ObjectVersion]:
    """Versions as clients make them: each follows what was acknowledged before its last byte."""
    count = draw(st.integers(1, 8))
    return [
        version_of(
            version,
            draw(st.integers(0, version - 1)),
            draw(st.sampled_from("abc")),
            size_bytes=draw(st.sampled_from([1, LARGE_BYTES])),
        )
        for version in range(1, count + 1)
    ]


@given(histories(), st.randoms(use_true_random=False))
def test_every_order_that_is_allowed_shows_all_and_nothing_before_what_it_may_speak_of(
    history: list[ObjectVersion], random: Random
) -> None:
    unshown, shown = list(history), []
    while unshown:
        ready = showable(MountView(tuple(unshown)))
        assert ready, "nothing may go on"
        chosen = random.choice(ready)
        before = [each.version for each in unshown if each.version < chosen.version]
        assert all(number > chosen.follows for number in before)
        assert all(each.key != chosen.key for each in unshown if each.version < chosen.version)
        shown.append(chosen.version)
        unshown.remove(chosen)
    assert sorted(shown) == [each.version for each in history]


def test_only_what_is_tiny_goes_in_one_put() -> None:
    assert not goes_in_parts(version_of(1, size_bytes=SINGLE_PUT_BYTES))
    assert not goes_in_parts(version_of(1, part_sizes=(5,)))
    assert goes_in_parts(version_of(1, part_sizes=(5, 1)))
