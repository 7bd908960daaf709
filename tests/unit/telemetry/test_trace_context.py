"""The caller's span that a request brings along."""

from __future__ import annotations

from pathlib import Path

import pytest
from cachetier_client.trace_context import FIELD, brought_along, called_by

from cachetier.telemetry.spans import FirstCallers

SPAN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_the_caller_is_known_inside_of_the_request_alone() -> None:
    assert brought_along() == {}
    with called_by(SPAN):
        assert brought_along() == {FIELD: SPAN}
    assert brought_along() == {}


@pytest.mark.parametrize(
    "sent",
    [
        *(None, 7, "", "nonsense", SPAN.upper(), SPAN + "-more", f" {SPAN}"),
        SPAN.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
        SPAN.replace("b7ad6b7169203331", "0" * 16),
        "ff" + SPAN[2:],
    ],
)
def test_what_is_no_traceparent_counts_as_not_sent(sent: object) -> None:
    with called_by(sent):
        assert brought_along() == {}


def test_the_first_caller_of_a_save_counts_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "traces.json"
    callers = FirstCallers(path, 10)
    assert callers.first("r/1/s", SPAN) == SPAN
    assert callers.first("r/2/s", None) is None
    again = FirstCallers(path, 10)
    assert again.first("r/1/s", OTHER) == SPAN
    assert again.first("r/2/s", OTHER) is None


def test_the_oldest_saves_are_forgotten(tmp_path: Path) -> None:
    callers = FirstCallers(tmp_path / "traces.json", 2)
    for step in range(3):
        callers.first(f"r/{step}/s", SPAN)
    again = FirstCallers(tmp_path / "traces.json", 2)
    assert again.first("r/2/s", OTHER) == SPAN
    assert again.first("r/0/s", OTHER) == OTHER


@pytest.mark.parametrize("kept", ["", "[]", "{", '{"r/1/s": 7}'])
def test_a_file_that_is_not_ours_costs_no_more_than_the_memory(tmp_path: Path, kept: str) -> None:
    path = tmp_path / "traces.json"
    path.write_text(kept)
    assert FirstCallers(path, 2).first("r/5/s", SPAN) == SPAN


def test_a_disk_that_does_not_take_it_costs_no_more_either(tmp_path: Path) -> None:
    assert FirstCallers(tmp_path / "nowhere" / "traces.json", 2).first("r/5/s", SPAN) == SPAN
