"""The page of a node leads with what losing it costs, and says what `cachetier top` says."""

from __future__ import annotations

import pytest

from cachetier.console import node
from cachetier.status.words import long_span, troubles
from tests.unit.cli.test_screen import answer, pending, remote, run
from tests.unit.cli.test_screen import node as watched


@pytest.mark.parametrize(
    ("seconds", "tone", "words"),
    [(720, "good", "12 minutes"), (1000, "near", "17 minutes"), (7200, "bad", "2 hours")],
)
def test_exposure_is_a_sentence_in_plain_words(seconds: float, tone: str, words: str) -> None:
    status = answer(exposure=[run("llama", seconds), run("vit", 3.0)], dirty_bytes=10**9)
    found = node.exposure_of(status)
    assert found.sentence == f"Losing this node now costs {words} of training."
    assert found.tone == tone
    assert "the most exposed is llama" in found.details
    assert "all durable in 3.4 min" in found.details


def test_while_nobody_can_tell_when_all_is_durable_it_says_so() -> None:
    found = node.exposure_of(answer(dirty_bytes=1, eta_seconds=None))
    assert "nobody can tell yet when all is durable" in found.details


def test_writes_of_a_mount_are_no_training() -> None:
    mount = {"mount": "out", "objects": 3, "exposure_seconds": 40.0, "dirty_bytes": 1}
    status = answer(exposure=[run("llama", 3.0)], mounts=[{**mount, "conflicts": 0}])
    assert node.exposure_of(status).sentence == "Losing this node now costs 40 seconds of writes."


def test_a_node_where_all_is_durable_costs_nothing() -> None:
    status = answer(exposure=[run("llama", 0.0)])
    assert node.exposure_of(status).sentence == "Losing this node now costs nothing."


def test_a_run_without_a_whole_step_is_no_safety() -> None:
    status = answer(exposure=[run("llama", 0.0, step=None)])
    assert "no step is whole yet" in node.exposure_of(status).sentence


def test_a_stuck_step_is_not_green() -> None:
    found = node.exposure_of(answer(incomplete={"steps": 1, "oldest_seconds": 7200.0}))
    assert found.tone == "near"
    assert "1 step incomplete, the oldest since 2.0 h" in found.details


def test_tiles_say_rates_backlog_and_throttling() -> None:
    seen = watched(
        dirty_bytes=30 * 10**9,
        remotes=[
            remote(
                state="throttled",
                throttled=41,
                pace={"writes_per_second": 25.0, "concurrency": 4, "bytes_per_second": None},
            )
        ],
    )
    assert seen.status is not None
    tiles = {each.label: each for each in node.tiles_of(seen.status, seen.rates())}
    assert tiles["Acknowledged"].value == "400 MB/s"
    assert tiles["Backlog"].value == "30.0 GB"
    assert tiles["S3"].value == "throttled"
    assert tiles["S3"].note == "throttled to 25 writes/s, 4 at once"
    assert tiles["S3"].tone == "near"


def test_puts_that_wait_and_a_drain_that_is_gone_are_bad() -> None:
    status = answer(waiting_bytes=10**9, drain={"pid": None, "drained_bytes": 0})
    tiles = {each.label: each for each in node.tiles_of(status, watched().rates())}
    assert (tiles["Acknowledged"].tone, tiles["Drained"].tone) == ("bad", "bad")
    assert tiles["Acknowledged"].note == "puts wait for 1.0 GB"


def test_a_remote_that_refuses_says_why() -> None:
    status = answer(remotes=[remote(state="refused", reason="403: access denied")])
    (row,) = node.remotes_of(status, watched().rates())
    assert (row.tone, row.held_back) == ("bad", "403: access denied")


def test_runs_come_with_the_most_exposed_first_and_only_those_one_may_see() -> None:
    status = answer(exposure=[run("late", 7200.0), run("hidden", 60.0), run("fine", 0.0)])
    rows = node.runs_of(["fine", "late", "old"], status)
    assert [(row.run, row.exposed, row.tone) for row in rows] == [
        ("late", "2.0 h", "bad"),
        ("fine", "", "good"),
        ("old", "", ""),
    ]
    assert [row.run for row in node.runs_of(["a"], None)] == ["a"]


def test_steps_that_wait_say_how_far_they_are_and_how_many_more_there_are() -> None:
    waiting = [pending("llama", 10**10) for _ in range(20)]
    rows, more = node.pending_of(answer(pending=waiting))
    assert (len(rows), more) == (node.PENDING_ROWS, 8)
    assert rows[0].share == pytest.approx(0.75)
    rows, _ = node.pending_of(answer(pending=[pending("llama", 1, eta=None)]))
    assert rows[0].eta == "unknown"


def test_codec_decisions_come_with_their_reason_the_newest_first() -> None:
    verdicts = {
        "old": {"compress": False, "why": "a sample shrank to 0.98 of its size only"},
        "new": {"compress": True, "why": "1 GB takes 9 s raw, 5 s compressed"},
    }
    drain = {"pid": 1, "compression": {"runs": verdicts}, "codecs": {}}
    rows, _ = node.codecs_of(answer(drain=drain))
    assert [(row.run, row.decision) for row in rows] == [("new", "compress"), ("old", "store")]
    assert rows[0].why.endswith("compressed")


def test_what_is_wrong_is_what_top_says_is_wrong() -> None:
    last = {"at": 100.0, "message": "no route", "code": "transient"}
    status = answer(warnings=["a warning"], quarantined_shards=2)
    status["drain"] = {**status["drain"], "last_error": last, "conflicts": ["foreign object"]}
    assert troubles(status, 160.0) == [
        "2 damaged shards: see `cachetier status`",
        "a warning",
        "the drain's last error, 1.0 min ago: no route (transient)",
        "foreign object",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "less than a second"), (1, "1 second"), (60, "1 minute"), (90_000, "1 day")],
)
def test_a_long_span_is_words(seconds: float, words: str) -> None:
    assert long_span(seconds) == words
