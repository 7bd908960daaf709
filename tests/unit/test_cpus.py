"""CPUs by number, as people write them."""

from __future__ import annotations

import os

import pytest

from cachetier.cpus import default_carriers, default_threads, parsed_cpus
from cachetier.number_lists import shown_numbers

SIXTEEN = range(16)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", ()),
        ("  ", ()),
        ("0", (0,)),
        ("2-3,7", (2, 3, 7)),
        (" 7 , 2-3 ", (2, 3, 7)),
        ("1-3,2-4,3", (1, 2, 3, 4)),
        ("15-15", (15,)),
    ],
)
def test_numbers_and_ranges_are_read(text: str, numbers: tuple[int, ...]) -> None:
    assert parsed_cpus(text, SIXTEEN) == numbers


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("16", r"no CPU 16 for this service, only 0-15"),
        ("14-17,20", r"no CPU 16-17,20"),
        ("0-99999", r"no CPU 16-99999"),
        ("0-999999", "is not a list of CPUs"),
        ("3-2", "'3-2' is a range that ends before it begins"),
        ("all", "is not a list of CPUs such as '2-3,7'"),
        ("1,,2", "is not a list of CPUs"),
        ("-1", "is not a list of CPUs"),
        ("1-", "is not a list of CPUs"),
        ("\u0663", "is not a list of CPUs"),
    ],
)
def test_what_is_none_is_explained(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parsed_cpus(text, SIXTEEN)


def test_by_default_the_cpus_are_those_of_this_process() -> None:
    mine = os.sched_getaffinity(0)

    assert parsed_cpus(shown_numbers(mine)) == tuple(sorted(mine))


@pytest.mark.parametrize(
    ("cpus", "threads"), [(1, 1), (3, 1), (4, 1), (7, 1), (8, 2), (12, 2), (192, 2)]
)
def test_a_quarter_of_the_cpus_compute_and_at_most_two(cpus: int, threads: int) -> None:
    assert default_threads(cpus) == threads


@pytest.mark.parametrize(("cpus", "carriers"), [(1, 1), (2, 1), (5, 2), (8, 4), (192, 4)])
def test_half_of_the_cpus_may_carry_for_a_drain_up_to_four(cpus: int, carriers: int) -> None:
    assert default_carriers(range(cpus)) == carriers
