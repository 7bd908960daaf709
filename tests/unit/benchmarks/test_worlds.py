"""Which worlds a run of the bench takes, and that its links are as slow as they say."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.drain.link import Link, Shape
from benchmarks.link.matrix import (
    DRAWN,
    IN_TURN,
    OTHERS,
    WORST,
    Beside,
    Cell,
    Kept,
    Record,
    table,
)
from benchmarks.link.worlds import WORLDS
from tests.fakes.fake_clock import FakeClock

BESIDE = Beside(ratio=1.0, mb_per_second=100.0, peer="boto3", peer_mb_per_second=100.0)


def record(cell: Cell, day: int, ratio: float = 1.0) -> Record:
    return Record(cell, f"2026-01-{day:02}", replace(BESIDE, ratio=ratio), BESIDE)


def all_measured() -> Kept:
    """Return records of every world, each better than the one before, of one day."""
    cells = [Cell(name) for name in WORLDS]
    return Kept({cell: record(cell, 1, 0.5 + n / 100) for n, cell in enumerate(cells)})


def test_there_are_27_worlds_in_the_grid_and_seven_troubles() -> None:
    assert len(WORLDS) == 34


def test_a_run_takes_those_that_were_measured_longest_ago_and_some_that_are_drawn() -> None:
    random.seed(7)
    kept = all_measured()
    old = [Cell(name) for name in list(WORLDS)[-IN_TURN:]]
    for cell in kept.records:
        kept.records[cell] = replace(kept.records[cell], at="2026-01-02")
    for cell in old:
        kept.records[cell] = replace(kept.records[cell], at="2026-01-01")
    others = [cell for record in kept.records.values() for cell in others_of(record.cell)]
    for cell in others:
        kept.records[cell] = record(cell, 2)

    chosen = kept.chosen(full=False)
    assert set(chosen[:IN_TURN]) == set(old)
    assert len(set(chosen)) == IN_TURN + DRAWN


def others_of(cell: Cell) -> list[Cell]:
    return [Cell(cell.world, *other) for other in OTHERS]


def test_the_worst_worlds_are_measured_with_other_amounts_too() -> None:
    worst = list(WORLDS)[:WORST]
    chosen = all_measured().chosen(full=False)[:IN_TURN]

    assert all(cell.world in worst and not cell.is_base for cell in chosen)


def test_a_full_run_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
    kept = all_measured()
    everything = kept.chosen(full=True)
    assert len(everything) == len(WORLDS) + WORST * len(OTHERS)

    kept.add(replace(record(everything[0], 1), at="9999-01-01"))
    kept.write(tmp_path / "worlds.json")
    again = Kept.read(tmp_path / "worlds.json")
    assert again.records == kept.records
    assert set(again.chosen(full=True)) == set(everything[1:])


def test_a_world_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    kept = Kept({cell: record(cell, 1) for cell in (Cell("gone"), Cell("TLS"))})
    kept.write(tmp_path / "worlds.json")

    assert list(Kept.read(tmp_path / "worlds.json").records) == [Cell("TLS")]


def test_the_table_begins_with_the_worst() -> None:
    lines = table(reversed(all_measured().records.values())).splitlines()
    (head,) = (number for number, line in enumerate(lines) if line.startswith("|---"))

    assert lines[head + 1].startswith(f"| {next(iter(WORLDS))} | 2 GiB in 4 | 0.50 | 100, 100 |")


# --- links ----------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr("time.monotonic", clock.monotonic)
    monkeypatch.setattr("time.sleep", clock.advance)
    return clock


def seconds(clock: FakeClock, way: Link, *sizes: int, ahead: float = 0.0) -> float:
    began_at = clock.monotonic()
    for size in sizes:
        way.carry(size, ahead)
    return clock.monotonic() - began_at


def test_a_buffer_takes_bytes_ahead_and_the_answer_waits_for_them(clock: FakeClock) -> None:
    way = Link(100.0)

    assert seconds(clock, way, *[100] * 5, ahead=400.0) == pytest.approx(1.0)
    assert seconds(clock, way, 0) == pytest.approx(4.0)


def test_a_link_that_halves_is_half_as_fast_from_there_on(clock: FakeClock) -> None:
    way = Link(100.0, halves_after=500)

    assert seconds(clock, way, *[100] * 5) == pytest.approx(5.0)
    assert seconds(clock, way, *[100] * 5) == pytest.approx(10.0)


def test_beyond_the_knee_more_bodies_bring_less_in_all() -> None:
    shape = Shape(each=8e6, knee=24)
    total = {at_once: at_once / shape.slower(at_once) for at_once in (12, 24, 48, 96)}

    assert total[12] == 12
    assert total[24] == 24
    assert total[48] < 24
    assert total[96] == pytest.approx(12.0)
