"""What `top` draws fits its terminal, leads with what is exposed, and leaves nothing unsaid."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rich.console import Console

from cachetier.cli.screen import drawn
from cachetier.status.rates import Node, described
from tests.unit.cli.test_output import status as status_of

LONG = "a-run-with-a-name-that-is-as-long-as-a-name-may-be" * 2


def run(name: str, seconds: float, *, step: int | None = 1200) -> dict[str, Any]:
    return {
        "run": name,
        "durable_step": step,
        "durable_age_seconds": None if step is None else seconds + 60,
        "exposure_seconds": seconds,
        "dirty_bytes": 30 * 10**9,
    }


def pending(name: str, dirty_bytes: int, eta: float | None = 340.0) -> dict[str, Any]:
    sizes = {"size_bytes": 40 * 10**9, "dirty_bytes": dirty_bytes}
    return {
        "run": name,
        "step": 1300,
        "state": "sealed",
        "eta_seconds": eta,
        "started_at": 40.0,
        **sizes,
    }


def remote(name: str = "durable", **changes: Any) -> dict[str, Any]:
    return {
        **status_of()["remotes"][0],
        "name": name,
        "role": "durable" if name == "durable" else "replica",
        "pending_bytes": 30 * 10**9,
        "eta_seconds": 204.0,
        "last_progress_seconds": 0.0,
        **changes,
    }


def answer(**changes: Any) -> dict[str, Any]:
    return {
        **status_of(),
        "exposure": [],
        "exposure_objective_seconds": 1800.0,
        "eta_seconds": 204.0,
        "incomplete": {"steps": 0, "oldest_seconds": 0.0},
        "flow": {"put_bytes": 0, "restored_bytes": 0, "evicted_bytes": 0},
        "remotes": [remote()],
        "pending_steps": len(changes.get("pending", ())),
        **changes,
    }


def node(url: str = "unix:///nvme/cachetier/cachetier.sock", **changes: Any) -> Node:
    seen = Node(url)
    seen.answered(answer(uptime_seconds=100.0))
    flow = {"put_bytes": 4 * 10**9, "restored_bytes": 0, "evicted_bytes": 0}
    seen.answered(answer(**{"uptime_seconds": 110.0, "flow": flow, **changes}))
    return seen


def shown(*nodes: Node, width: int = 80, height: int = 24) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(drawn(nodes, width, height, 1.0))
    console.file.close()
    return console.export_text()


def fits(text: str, width: int, height: int) -> bool:
    lines = [line.rstrip() for line in text.splitlines()]
    return len(lines) <= height and max(map(len, lines)) <= width


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (60, 15)])
def test_the_worst_that_can_be_fits_the_terminal(width: int, height: int) -> None:
    many = node(
        "unix:///a/long/way/down" * 5,
        exposure=[run(LONG, 60.0 * each) for each in range(20, 0, -1)],
        pending=[pending(LONG, 10**9 * each) for each in range(50)],
        remotes=[remote(), remote("near", reason="403: access denied " * 20)],
        warnings=["a warning that is long " * 20] * 9,
        state="fenced",
        reason="syncing a data file failed: Input/output error " * 5,
        quarantined_shards=3,
        waiting_bytes=10**9,
    )
    text = shown(many, width=width, height=height)
    assert fits(text, width, height)
    for words in ("fenced", "costs 20 minutes of training", "q: end"):
        assert words in text


def test_a_node_says_first_what_losing_it_would_cost() -> None:
    text = shown(node(exposure=[run("llama", 720.0)], dirty_bytes=30 * 10**9))
    assert "Losing this node now costs 12 minutes of training." in text
    assert "the most exposed is llama, objective 30 min, all sent in 3.4 min" in text
    assert "acknowledged 400 MB/s" in text
    assert "llama   12 min          1200  13 min ago  30.0 GB" in text


def test_a_calm_node_is_at_no_risk() -> None:
    text = shown(node(dirty_bytes=0, eta_seconds=0.0, exposure=[run("r", 0.0)]))
    assert "Losing this node now costs nothing." in text
    unknown = shown(node(exposure=[run("new", 0.0, step=None)]))
    assert "No step is whole on this node yet" in unknown
    assert "!" not in text


def mount(name: str = "data", **changes: Any) -> dict[str, Any]:
    at_stake = {"objects": 12, "dirty_bytes": 10**9, "exposure_seconds": 90.0, "conflicts": 0}
    return {"mount": name, **at_stake, **changes}


def test_what_waits_in_a_mount_is_at_risk_as_a_run_is() -> None:
    text = shown(node(mounts=[mount(), mount("logs", objects=0, exposure_seconds=0.0)]))
    assert "the most exposed is s3:data" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["s3:data", "1.5", "min", "12", "1.0", "GB", "-"] in rows
    assert ["s3:logs", "no", "-", "1.0", "GB", "-"] in rows


def test_many_mounts_fit_too_and_those_in_conflict_say_so() -> None:
    many = [mount(LONG, conflicts=each, exposure_seconds=1.0 * each) for each in range(20)]
    text = shown(node(mounts=many, exposure=[run(LONG, 1.0)] * 9, pending=[pending(LONG, 1)] * 9))
    assert fits(text, 80, 24)
    assert "and 16 more" in text
    assert "q: end" in text


def test_a_run_without_a_durable_step_says_so() -> None:
    line = next(
        each
        for each in shown(node(exposure=[run("new", 5.0, step=None)])).splitlines()
        if each.startswith("new")
    )
    assert line.split() == ["new", "5.0", "s", "none", "-", "30.0", "GB"]


def test_steps_that_the_status_does_not_list_are_counted() -> None:
    listed = [pending("r", 10**9) for _ in range(3)]
    assert "and 1998 more" in shown(node(pending=listed, pending_steps=2000))
    assert described(node(pending=listed, pending_steps=2000))["pending_steps"] == 2000


def test_a_pending_step_shows_how_much_of_it_was_sent() -> None:
    text = shown(node(pending=[pending("r", 30 * 10**9), pending("q", 0, eta=None)]))
    assert "██░░░░░░░░     5.7 min" in text
    assert "██████████     unknown" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pace": {"writes_per_second": 12.5, "concurrency": 3}}, "throttled to 12.5 writes/s"),
        ({"pace": {"bytes_per_second": 2e9}}, "at most 2.0 GB/s"),
        ({"pace": {"bytes_per_second": 0.0}}, "paused by a window"),
        ({"last_progress_seconds": 700.0}, "no progress for 12 min"),
        ({"state": "refused", "reason": "403: access denied"}, "403: access denied"),
    ],
)
def test_a_remote_says_what_holds_it_back(changes: dict[str, Any], words: str) -> None:
    assert words in shown(node(remotes=[remote(**changes)]), width=100)


def test_a_long_reason_is_cut_and_leaves_the_other_columns_whole() -> None:
    reason = (
        'head_bucket: Could not connect to the endpoint URL: "http://127.0.0.1:8333/checkpoints"'
    )
    text = shown(node(remotes=[remote(state="unreachable", reason=reason, eta_seconds=None)]))
    assert "remote   state        " in text
    assert "durable  unreachable  " in text
    assert "! S3 is unreachable since 0.0 s: head_bucket: Could not connect to" in text


def test_a_long_address_is_cut_in_front_so_that_the_clock_stays() -> None:
    first = shown(node(f"unix:///home/somebody/{LONG}/cache/cachetier.sock")).splitlines()[0]
    assert re.search(r"up 1.8 min  ….*/cache/cachetier\.sock  \d\d:\d\d:\d\d$", first.rstrip())
    assert len(first.rstrip()) == 80


def test_a_node_that_is_away_says_so_and_keeps_what_was_last_known() -> None:
    gone = node(exposure=[run("llama", 720.0)])
    gone.failed("cannot connect to unix:///x", 0.0)
    text = shown(gone)
    assert "  away  " in text
    assert "cannot connect to unix:///x; asking on" in text
    assert "the most exposed is llama" in text
    never = Node("unix:///x")
    never.failed("cannot connect", 0.0)
    assert "cannot connect; asking on" in shown(never)


def test_several_nodes_are_a_table_with_the_worst_first() -> None:
    calm = node("http://node-1:7070", dirty_bytes=0, eta_seconds=0.0)
    risky = node("http://node-2:7070", exposure=[run("llama", 3600.0)], warnings=["look here"])
    gone = Node("http://node-3:7070")
    gone.failed("cannot connect", 0.0)
    text = shown(calm, risky, gone)
    assert fits(text, 80, 24)
    lines = [line for line in text.splitlines() if line.startswith("node-")]
    assert [line[:6] for line in lines] == ["node-3", "node-2", "node-1"]
    assert "3 nodes, 2 ready" in text
    assert "1.0 h" in lines[1]
    assert "! node-3:7070: cannot connect" in text
    assert "! node-2:7070: look here" in text


def test_a_table_of_many_nodes_fits_too() -> None:
    assert fits(shown(*(node(f"http://node-{i}:7070") for i in range(200))), 80, 24)
