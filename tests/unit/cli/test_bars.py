"""Bars are seen on a terminal alone, on standard error, and look at what the work counts anyway."""

from __future__ import annotations

import io
import sys
import threading
from pathlib import Path

import pytest
from cachetier_client import ServiceUnavailableError

from cachetier.cli import output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Show what is written to standard error from here on; as a fixture, pytest would undo it."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(output, "LOOK_SECONDS", 0.001)
    monkeypatch.setenv("TERM", "xterm")
    return shown


def never() -> output.HowFar:
    raise AssertionError("nobody looks, so nobody asks")


def test_a_bar_shows_bytes_of_their_total_while_the_work_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = on_terminal(monkeypatch)
    looked = threading.Event()

    def how_far() -> output.HowFar:
        looked.set()
        return output.HowFar("export train/7", 3_000_000, 6_000_000)

    with output.bytes_shown(False, how_far):
        assert looked.wait(60)
    assert "export train/7" in terminal.getvalue()
    assert "/6.0 MB" in terminal.getvalue()


def test_a_line_follows_the_steps_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    steps, looked = [""], threading.Event()

    def text() -> str:
        if len(steps) > 1:
            looked.set()
        return f"measuring {steps[-1]}"

    with output.line_shown(False, text):
        steps.append("round 1 of 3")
        assert looked.wait(60)
    assert "measuring round 1 of 3" in terminal.getvalue()


def test_a_bar_outlasts_a_restart_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    answers, back = [True, False, True], threading.Event()  # whether the service is there

    def how_far() -> output.HowFar:
        if answers and not answers.pop(0):
            raise ServiceUnavailableError("it starts again")
        if not answers:
            back.set()
        return output.HowFar("flush", 3_000_000, 6_000_000)

    with output.bytes_shown(False, how_far):
        assert back.wait(60)
    assert not answers
    assert "/6.0 MB" in terminal.getvalue()


@pytest.mark.parametrize("as_json", [True, False])
def test_nothing_is_shown_and_nothing_asked_where_nobody_would_see_it(
    as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Terminal() if as_json else io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    before = threading.active_count()
    with output.bytes_shown(as_json, never), output.line_shown(as_json, lambda: ""):
        assert threading.active_count() == before
    assert shown.getvalue() == ""


def test_the_thread_ends_with_the_work_also_when_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = on_terminal(monkeypatch)
    with pytest.raises(ValueError), output.line_shown(False, lambda: "looking"):
        raise ValueError
    assert not [each for each in threading.enumerate() if each.name == "bar"]
    assert "\x1b[?25h" in terminal.getvalue()  # the cursor is back


def test_what_an_export_has_written_is_counted_beside_its_place(tmp_path: Path) -> None:
    assert output.written_bytes(str(tmp_path / "out")) == 0
    folder = tmp_path / ".out.0a1b2c3d"
    folder.mkdir()
    (folder / "shard").write_bytes(bytes(100_000))
    (tmp_path / ".other.0a1b2c3d").mkdir()
    assert 98_304 <= output.written_bytes(str(tmp_path / "out")) < 120_000
