"""What may not grow by itself, and that its limits bind."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pytest

from tools.house import limits

pytestmark = pytest.mark.xdist_group("sizes")


@cache
def counted() -> Mapping[str, int]:
    return limits.counts()  # reads all of the sources


def test_nothing_has_grown_past_its_limit() -> None:
    assert limits.passed(counted()) == [], "make it smaller, or say in the commit why it must grow"
    assert set(counted()) == set(limits.limits()) - {*limits.WAYS}


def test_a_limit_that_is_far_above_what_there_is_binds_nothing() -> None:
    loose = {
        name
        for name, count in counted().items()
        if count * limits.LEEWAY**2 < limits.limits()[name]
    }
    assert loose == set(), "lower these in pyproject.toml to what python -m tools.house.limits says"


def test_two_per_cent_more_is_told_with_name_and_limit() -> None:
    more = dict(limits.limits())
    assert limits.passed(more) == []
    more["classes"] = int(more["classes"] * 1.03)
    (told,) = limits.passed(more)
    assert told.startswith(f"classes: {more['classes']}, where {limits.limits()['classes']} is")
