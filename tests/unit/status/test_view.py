"""The view of a node leads with what losing it costs; every surface shows its words."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from cachetier.restore.pace import RestoreFigures
from cachetier.status import view
from cachetier.status.rates import Rates
from cachetier.status.view import TableCell
from cachetier.status.words import long_span
from tests.unit.cli.test_screen import answer, pending, remote, run
from tests.unit.cli.test_screen import node as watched


@pytest.mark.parametrize(
    ("seconds", "tone", "words"),
    [(720, "good", "12 minutes"), (1000, "near", "17 minutes"), (7200, "bad", "2 hours")],
)
def test_exposure_is_a_sentence_in_plain_words(seconds: float, tone: str, words: str) -> None:
    status = answer(exposure=[run("llama", seconds), run("vit", 3.0)], dirty_bytes=10**9)
    found = view.verdict(status)
    assert found.sentence == f"Losing this node now costs {words} of training."
    assert found.tone == tone
    assert "the most exposed is llama" in found.details
    assert "all sent in 3.4 min" in found.details


def test_while_nobody_can_tell_when_all_is_durable_it_says_so() -> None:
    found = view.verdict(answer(dirty_bytes=1, eta_seconds=None))
    assert "the time until all is sent is not known yet" in found.details


def test_writes_of_a_mount_are_no_training() -> None:
    mount = {"mount": "out", "objects": 3, "exposure_seconds": 40.0, "dirty_bytes": 1}
    status = answer(exposure=[run("llama", 3.0)], mounts=[{**mount, "conflicts": 0}])
    assert view.verdict(status).sentence == "Losing this node now costs 40 seconds of writes."


def test_a_job_that_died_does_not_hold_the_headline() -> None:
    died = {**run("died", 1320.0), "quiet_seconds": 1200.0}
    found = view.verdict(answer(exposure=[died, run("llama", 40.0)]))
    assert found.sentence == "Losing this node now costs 40 seconds of training."
    assert (
        "died put nothing for 20 min in the middle of a save; losing the node would cost 22 min"
        in found.details
    )
    alone = view.verdict(answer(exposure=[died, run("safe", 0.0)]))
    assert alone.sentence == "Losing this node now costs 22 minutes of training."


def test_a_node_where_all_is_durable_costs_nothing() -> None:
    status = answer(exposure=[run("llama", 0.0)])
    assert view.verdict(status).sentence == "Losing this node now costs nothing."


def test_a_run_without_a_whole_step_is_no_safety() -> None:
    status = answer(exposure=[run("llama", 0.0, step=None)])
    assert "No step is whole on this node yet" in view.verdict(status).sentence


def test_a_stuck_step_is_not_green() -> None:
    found = view.verdict(answer(incomplete={"steps": 1, "oldest_seconds": 7200.0}))
    assert found.tone == "near"
    page = "docs/runbooks/incomplete-checkpoint.md"
    assert f"1 step incomplete, the oldest since 2.0 h: {page}" in found.details


def test_tiles_say_rates_and_backlog() -> None:
    seen = watched(dirty_bytes=30 * 10**9)
    assert seen.status is not None
    tiles = {each.label: each for each in view.tiles(seen.status, seen.rates())}
    assert tiles["Acknowledged"].value == "400 MB/s"
    assert tiles["Backlog"].value == "30.0 GB"
    assert tiles["Restored"].note == "60.0 GB clean here"


def test_a_restore_says_how_far_it_is_and_where_it_reads() -> None:
    figures = RestoreFigures(6 * 10**9, 2 * 10**9, 16 * 10**9, 4 * 10**9, 12.0)
    status = answer(restore=asdict(figures))
    (tile,) = (each for each in view.tiles(status, Rates()) if each.label == "Restored")
    assert tile.note == "4.0 GB of 16.0 GB, done in 12 s, 75 % from peers"


def test_while_a_node_is_exposed_nothing_on_it_is_said_to_be_durable_now() -> None:
    exposed = answer(exposure=[run("llama", 1680.0)], dirty_bytes=0, eta_seconds=0.0)
    assert view.verdict(exposed).sentence == "Losing this node now costs 28 minutes of training."
    shown = {each.label: each.value for each in view.tiles(exposed, Rates())}
    assert shown["Sent in"] == "-"
    assert not [label for label, value in shown.items() if "urable" in label or value == "now"]


def test_a_throttled_remote_says_by_how_much() -> None:
    pace = {"writes_per_second": 25.0, "concurrency": 4, "bytes_per_second": None}
    (row,) = view.remotes(answer(remotes=[remote(state="throttled", pace=pace)]), Rates()).rows
    assert row[1] == TableCell("throttled", "near")
    assert row[-1] == TableCell("throttled to 25 writes/s, 4 at once", "near")


def test_puts_that_wait_and_a_drain_that_is_gone_are_bad() -> None:
    status = answer(waiting_bytes=10**9, drain={"pid": None, "drained_bytes": 0})
    tiles = {each.label: each for each in view.tiles(status, watched().rates())}
    assert (tiles["Acknowledged"].tone, tiles["Drained"].tone) == ("bad", "bad")
    assert tiles["Acknowledged"].note == "puts wait for 1.0 GB"


def test_a_remote_that_refuses_is_one_sentence_with_the_next_step_and_its_runbook() -> None:
    away = remote(state="refused", reason="403: access denied", since=40.0)
    status = answer(remotes=[away], warnings=[f"1 step of r {view.NOT_ANNOUNCED}: so"])
    last = {"at": 100.0, "message": "403: access denied", "code": "remote_refused"}
    status["drain"] = {**status["drain"], "last_error": last}
    (found,) = view.troubles(status, 160.0)
    assert found.startswith(
        "S3 refuses this node since 2.0 min: 403: access denied; nothing is lost"
    )
    assert found.endswith(
        "; `cachetier doctor` says what is wrong: docs/runbooks/remote-refused.md"
    )
    (row,) = view.remotes(status, Rates()).rows
    assert (row[1].tone, row[-1].text) == ("bad", "-")


@pytest.mark.parametrize(
    ("required", "costs"),
    [(True, "nothing is evicted here until it is back"), (False, "never get there")],
)
def test_a_replica_that_is_away_says_what_that_costs(required: bool, costs: str) -> None:
    near = remote("near", state="unreachable", reason="timed out", required=required, since=40.0)
    (found,) = view.troubles(answer(remotes=[remote(), near]), 100.0)
    assert found.startswith("replica near is unreachable since 1.0 min: timed out; ")
    assert costs in found
    assert found.endswith(": docs/runbooks/replica-away.md")


def test_runs_come_with_the_most_exposed_first_and_only_those_one_may_see() -> None:
    status = answer(exposure=[run("late", 7200.0), run("hidden", 60.0), run("fine", 0.0)])
    rows = view.runs(status, ["fine", "late", "old"]).rows
    assert [(row[0].text, row[1].text, row[1].tone) for row in rows] == [
        ("late", "2.0 h", "bad"),
        ("fine", "no", "good"),
        ("old", "-", ""),
    ]
    assert [row[0].text for row in view.runs(None, ["a"]).rows] == ["a"]


def test_steps_that_wait_say_how_far_they_are_and_how_many_more_there_are() -> None:
    waiting = [pending("llama", 10**10) for _ in range(20)]
    found = view.pending(answer(pending=waiting), 100.0).first(12)
    assert (len(found.rows), found.more) == (11, 9)
    assert found.rows[0][-2].share == pytest.approx(0.75)
    found = view.pending(answer(pending=[pending("llama", 1, eta=None)]), 100.0)
    assert found.rows[0][-1].text == "unknown"
    assert found.without("sent", "age").titles[-2:] == ("dirty", "durable in")


def test_codec_decisions_come_with_their_reason_the_newest_first() -> None:
    verdicts = {
        "old": {"compress": False, "why": "a sample shrank to 0.98 of its size only"},
        "new": {"compress": True, "why": "1 GB takes 9 s raw, 5 s compressed"},
    }
    drain = {"pid": 1, "compression": {"runs": verdicts}, "codecs": {}}
    found, _ = view.codecs(answer(drain=drain))
    assert [(run.text, how.text) for run, how, _ in found.rows] == [
        ("new", "compress"),
        ("old", "store"),
    ]
    assert found.rows[0][-1].text.endswith("compressed")


def test_several_nodes_come_with_the_worst_first_and_their_sums() -> None:
    calm = watched("http://calm:7070", dirty_bytes=10**9)
    late = watched("http://late:7070", dirty_bytes=10**9, exposure=[run("llama", 7200.0)])
    gone = watched("http://gone:7070", dirty_bytes=10**9)
    gone.failed("nobody listens there", 40.0)
    rows = view.fleet([calm, gone, late], 100.0).rows
    assert [row[0].text for row in rows] == ["gone:7070", "late:7070", "calm:7070"]
    assert [row[1].text for row in rows] == ["away 1.0 min", "ready", "ready"]
    assert [row[3].text for row in rows] == ["1.0 GB"] * 3
    assert [row[-1].text for row in rows] == ["nobody listens there", "llama", "-"]
    found = view.fleet_summary([calm, gone, late])
    assert found == "3 nodes, 2 ready, 3.0 GB dirty, 800 MB/s acknowledged, 0 B/s drained"


def test_what_is_wrong_is_what_top_says_is_wrong() -> None:
    last = {"at": 100.0, "message": "no route", "code": "transient"}
    status = answer(warnings=["a warning"], quarantined_shards=2)
    status["drain"] = {**status["drain"], "last_error": last, "conflicts": ["foreign object"]}
    assert view.troubles(status, 160.0) == [
        "2 damaged shards: `cachetier fsck`, docs/runbooks/damaged-shard.md",
        "a warning",
        "the drain's last error, 1.0 min ago: no route (transient): docs/runbooks/drain-stalled.md",
        "foreign object",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "less than a second"), (1, "1 second"), (60, "1 minute"), (90_000, "1 day")],
)
def test_a_long_span_is_words(seconds: float, words: str) -> None:
    assert long_span(seconds) == words
