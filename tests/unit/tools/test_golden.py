"""What lives ask for is written down, kept and compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.oracle import golden
from tests.oracle.golden import Deed


@pytest.fixture(scope="module")
def life() -> list[Deed]:
    return golden.played(3)


def named(life: list[Deed]) -> golden.Lives:
    return {"a life": life}


def test_a_life_is_written_down_deed_by_deed_and_kept_as_it_is(life: list[Deed]) -> None:
    assert [deed.name for deed in life].count("settle") == 1
    assert sum(deed.statements for deed in life) > 1000
    assert sum(deed.syncs for deed in life) > 50
    put = [each for deed in life for each in deed.requests if each.startswith("put ")]
    assert any(each.endswith(" condition ok") for each in put), "conditions are part of it"
    assert golden.unpacked(golden.packed({"a": life, "b": life[:3]})) == {"a": life, "b": life[:3]}


def test_the_same_life_asks_for_the_same(life: list[Deed]) -> None:
    again = golden.compared(named(life), named(golden.played(3)))
    assert not again.differences
    assert again.deeds == len(life)
    assert not again.costs_more()


def test_a_request_that_is_gone_or_comes_sooner_is_a_difference_once_in_a_life(
    life: list[Deed],
) -> None:
    at, deed = max(enumerate(life), key=lambda each: len(each[1].requests))
    writes = [each for each in deed.requests if each.startswith("put ")]
    without = [each for each in deed.requests if each != writes[0]]
    told = ""
    for requests in (without, deed.requests[::-1]):
        changed = [*life[:at], replace(deed, requests=requests), *life[at + 1 :]]
        found = golden.compared(named(life), named(changed))
        (difference,) = found.differences
        assert (difference.deed, found.deeds) == (deed.name, at)
        assert found.unexplained([]) == [difference]
        told = str(difference)
        assert found.unexplained([told]) == []
    assert "another order" in told


def test_two_per_cent_more_statements_are_too_many(life: list[Deed]) -> None:
    dearer = [
        replace(deed, statements=deed.statements + 1 + deed.statements // 30) for deed in life
    ]
    assert golden.compared(named(life), named(dearer)).costs_more()
    assert not golden.compared(named(dearer), named(life)).costs_more()


def test_every_fault_of_the_matrix_strikes_and_the_step_is_published_all_the_same() -> None:
    matrix = golden.cells()
    ways = {(fault.operation, fault.moment) for fault in matrix.values()}
    assert {operation for operation, _ in ways} >= {"put", "head", "upload_part", "complete_upload"}
    for fault in list(matrix.values())[::9]:
        deeds = golden.struck(fault)
        assert "publish" in {deed.name for deed in deeds}
        assert [deed.name for deed in deeds].count("read") == 6
