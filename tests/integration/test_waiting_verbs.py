"""Verbs whose service is away, hangs, or is not the one that was meant: they say so, once."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cachetier_client import Client, DeadlineError

from cachetier.cli import connection, steps
from tests.integration.serving import serving
from tests.integration.test_cli import STEP, Outcome, run


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say after a moment what is otherwise said after seconds."""
    monkeypatch.setattr(connection, "SOON_SECONDS", 0.02)
    monkeypatch.setattr(connection, "SILENCE_SECONDS", 0.05)


def said(outcome: Outcome) -> list[str]:
    return [line for line in outcome.err.splitlines() if line.startswith("Waiting")]


@pytest.mark.parametrize(
    "words",
    [
        ["flush", "--timeout", "1s"],
        ["wait", "r", "1", "--timeout", "1s"],
        ["put", __file__, *STEP, "--name", "x", "--timeout", "1.5s"],
        ["get", *STEP, "--name", "x", "out", "--timeout", "1.5s"],
    ],
    ids=lambda words: words[0],
)
def test_a_verb_says_soon_that_there_is_no_such_socket(words: list[str], tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/none"
    outcome = run(None, *words, "--url", url)
    assert outcome.code == 4
    first, error, hint = outcome.err.splitlines()
    assert first.startswith("Waiting up to ")
    assert first.endswith(f" s for {url}: no such socket; see CACHETIER_URL.")
    assert error.startswith(f"Error: Cannot connect to {url}: no such socket")
    assert hint.startswith("Next: Check that `cachetier serve` runs")


def test_with_json_standard_output_is_the_document_alone(tmp_path: Path) -> None:
    outcome = run(None, "flush", "--timeout", "0.3s", "--json", "--url", f"unix://{tmp_path}/none")
    assert outcome.json["error"]["code"] == "unavailable"
    assert len(said(outcome)) == 1


def test_a_socket_that_nobody_listens_on_is_told_of_after_a_moment(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "s"))
    url = f"unix://{tmp_path}/s"
    outcome = run(None, "wait", "r", "1", "--timeout", "2s", "--url", url)
    assert outcome.code == 4
    assert said(outcome) == [
        f"Waiting up to 2 s for {url}: nobody listens there; see CACHETIER_URL."
    ]


@contextmanager
def hanging() -> Iterator[str]:
    """Yield the address of somebody who takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_service_that_hangs_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.05)
    with hanging() as url:
        outcome = run(None, "wait", "r", "1", "--timeout", "5s", "--url", url)
    assert outcome.code == 4
    assert said(outcome) == [f"Waiting up to 5 s for {url}: it does not answer; see CACHETIER_URL."]


def test_a_verb_that_does_not_wait_says_only_its_error(tmp_path: Path) -> None:
    outcome = run(None, "ls", "--url", f"unix://{tmp_path}/none")
    assert outcome.code == 4
    assert said(outcome) == []


def test_nothing_is_said_of_waiting_where_the_verb_fails_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SOON_SECONDS", 30.0)
    url = f"unix://{tmp_path}/none"
    outcome = run(None, "put", f"{tmp_path}/x", *STEP, "--name", "x", "--url", url)
    assert outcome.code == 2
    assert outcome.err.splitlines() == [
        f"Error: Cannot read {tmp_path}/x: No such file or directory (run=r step=1 rank=0 name=x).",
        "Next: Name a file that this user can read.",
    ]


def test_a_flush_of_a_run_or_step_that_nobody_knows_fails_and_names_the_nearest() -> None:
    with serving() as served:
        run(served, "seal", "llama-7b", "1")
        outcome = run(served, "flush", "lama-7b", "--json")
        step = run(served, "flush", "llama-7b", "2")
        well = run(served, "flush", "llama-7b", "--timeout", "0.1s")
    assert (outcome.code, outcome.json["error"]["code"]) == (1, "not_found")
    assert "Neither this node nor S3 knows run lama-7b: did you mean llama-7b?" in outcome.err
    assert (step.code, step.out) == (1, "")
    assert "Neither this node nor S3 knows step 2 of run llama-7b" in step.err
    assert "knows" not in well.err


@pytest.mark.parametrize(
    "words", [["flush", "--timeout", "1s"], ["wait", "r", "1", "--timeout", "1s"]]
)
def test_a_service_too_busy_to_answer_in_time_is_not_one_that_is_away(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_late(_self: Client, *_what: object, **_more: object) -> None:
        raise DeadlineError("the exchange did not end within 1 s")

    monkeypatch.setattr(Client, words[0], too_late)
    with serving() as served:
        outcome = run(served, *words)
    assert outcome.code == 3
    assert "No answer in time whether it is durable: " in outcome.err


def test_nothing_is_said_while_a_service_that_is_well_makes_a_verb_wait() -> None:
    with serving() as served:
        run(served, "put", "-", *STEP, "--name", "x", "--seal", stdin=b"x")
        outcome = run(served, "wait", "r", "1", "--timeout", "1.5s")
    assert outcome.code == 3
    assert said(outcome) == []


def test_a_shard_that_is_not_there_is_told_from_a_server_that_is_not_ours() -> None:
    with serving() as served:
        outcome = run(None, "get", *STEP, "--name", "x", "--url", str(served.service.url), "out")
    assert outcome.code == 1
    assert "Next: List what there is" in outcome.err


# --- a flush that somebody watches ---------------------------------------------------------------


def test_a_flush_with_a_bar_ends_at_its_deadline_while_nobody_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(steps, "is_seen", lambda _as_json: True)
    url = f"unix://{tmp_path}/none"
    outcome = run(None, "flush", "--timeout", "0.3s", "--url", url, "--json")
    assert json.loads(outcome.out)["error"]["code"] == "unavailable"
