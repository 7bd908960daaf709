"""How many files and functions run on a byte's way: no more than the limits say."""

from __future__ import annotations

import os
from unittest.mock import patch

import pytest

from tools.house import limits
from tools.house.byte_path import ROOT, passes_of

TRIES = 4  # threads race a little: what is met in every try is on the way


@pytest.mark.slow
def test_a_byte_meets_no_more_files_and_functions_than_the_limits_say() -> None:
    met: dict[str, set[tuple[str, int, str]]] = {}
    passed: list[str] = []
    for _ in range(TRIES):
        with patch.dict(os.environ):  # which it sets for its processes
            passes = passes_of(ROOT)
        for way, functions in passes.items():
            met[way] = met.get(way, functions) & functions
        counted = limits.ways(met)
        assert set(counted) == set(limits.WAYS)
        passed = limits.passed(counted)
        if not passed:
            break
    assert passed == []
