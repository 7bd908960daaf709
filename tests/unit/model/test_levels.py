"""How safe bytes are: each level covers those below."""

from __future__ import annotations

import pytest

from cachetier.model.levels import Level, covers


@pytest.mark.parametrize("wanted", Level)
@pytest.mark.parametrize("reached", Level)
def test_a_level_covers_itself_and_those_below(reached: Level, wanted: Level) -> None:
    order = [Level.MEMORY, Level.LOCAL, Level.REPLICATED, Level.DURABLE]
    assert covers(reached, wanted) is (order.index(reached) >= order.index(wanted))
