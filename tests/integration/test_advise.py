"""``cachetier advise`` against a real service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.serving import Served, serving
from tests.integration.test_cli import STEP, run


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


def test_advise_says_how_often_to_save_and_what_decides(served: Served) -> None:
    nothing = run(served, "advise", "r", "--json")
    assert (nothing.code, nothing.json["error"]["code"]) == (2, "invalid_request")
    assert "Pass --blocked-seconds" in nothing.err

    run(served, "put", "-", *STEP, "--name", "x", "--seal", stdin=b"x")
    undrained = run(served, "advise", "r")
    assert undrained.code == 2
    assert "Pass --durable-seconds" in undrained.err

    given = ["--durable-seconds", "30", "--mtbf", "12h", "--blocked-seconds", "9"]
    advice = run(served, "advise", "r", *given, "--step-seconds", "2", "--json").json
    assert advice["bound"] == "young-daly"
    assert advice["interval_steps"] == 438
    assert advice["blocked"] == {"seconds": 9.0, "origin": "given", "about": ""}

    lines = run(served, "advise", "r", *given).out.splitlines()
    assert lines[0].startswith("r: a save every 15 min: more saves would cost more")
    assert lines[1].startswith("it blocks 1.02% of training; a failure costs 7.5 min on average")
    assert "  a failure every 12 h (given)" in lines

    assert run(served, "advise", "r", "--mtbf", "soon").code == 2
    assert run(served, "advise", "r", *given, "--overhead-cap", "3.5").code == 2
