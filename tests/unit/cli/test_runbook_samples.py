"""What a runbook shows of ``cachetier status`` is what today's program prints of such a node."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.operate.rules import RUNBOOKS
from tests.unit.cli.test_output import shown, status

NOW = 100.0  # of `shown`
SAMPLE = re.compile(r"^\$ cachetier status\n(.*?)(?=^\$ |^```)", re.DOTALL | re.MULTILINE)
LLAMA: dict[str, Any] = {
    "name": "durable",
    "url": "s3://checkpoints/llama",
    "state": "ok",
    "reason": "",
}
LLAMA |= {"endpoint": "https://s3.example.org", "since": NOW - 960}
DRAIN = {"pid": 8106, "in_flight": 0, "drained_bytes": 0, "failures": 1}
NEAR: dict[str, Any] = {
    **LLAMA,
    "name": "near",
    "role": "replica",
    "url": "s3://near/llama",
    "required": False,
}
OWED: dict[str, Any] = {
    "pending_bytes": 3 * 10**6,
    "pending_shards": 1,
    "given_up_steps": 0,
    "drain": DRAIN,
}
FULL: dict[str, Any] = {
    "capacity_bytes": 8 * 10**6,
    "used_bytes": 7 * 10**6,
    "dirty_bytes": 7 * 10**6,
}
FULL |= {"dirty_shards": 1, "oldest_dirty_seconds": 240.0, "clean_bytes": 0, "evictable_bytes": 0}
SMALL: dict[str, Any] = {"capacity_bytes": 10**9, "used_bytes": 3 * 10**6, "dirty_bytes": 3 * 10**6}
SMALL |= {"dirty_shards": 1, "clean_bytes": 0, "evictable_bytes": 0}
HALF: dict[str, Any] = {
    **SMALL,
    "used_bytes": 6 * 10**6,
    "clean_bytes": 3 * 10**6,
    "evictable_bytes": 3 * 10**6,
}
REFUSED = "head_bucket: Forbidden (403, 403)"
AWAY = "list_multipart_uploads: Could not connect to the endpoint URL"
FOREIGN = "p/run/1/model/rank-0 holds an object that is not of this save"
PENDING: dict[str, Any] = {
    "run": "run",
    "step": 1,
    "state": "sealed",
    "shards": 1,
    "size_bytes": 3 * 10**6,
}
PENDING |= {"dirty_bytes": 3 * 10**6, "started_at": NOW - 960, "eta_seconds": None}
LAST: dict[str, Any] = {
    "run": "run",
    "step": 1,
    "name": "model/rank-0",
    "code": "conflict",
    "at": NOW - 960,
}


def with_remote(**changes: Any) -> dict[str, Any]:
    return status(remotes=[{**LLAMA, **changes}], drain=DRAIN)


NODES: Mapping[str, dict[str, Any]] = {
    "damaged-copy": status(
        warnings=[
            "damaged copies at near, passed over since the start: p/run/1/model/rank-0",
        ]
    ),
    "drain-stalled": status(
        remotes=[LLAMA],
        pending=[PENDING],
        drain={**DRAIN, "conflicts": [FOREIGN], "last_error": {**LAST, "message": FOREIGN}},
    ),
    "exposure-over-objective": status(
        **HALF,
        eta_seconds=None,
        uptime_seconds=2400.0,
        oldest_dirty_seconds=2400.0,
        exposure=[
            {
                "run": "run",
                "durable_step": 1,
                "durable_age_seconds": 2460.0,
                "exposure_seconds": 2460.0,
                "dirty_bytes": 3 * 10**6,
            }
        ],
        remotes=[{**LLAMA, "state": "unreachable", "reason": AWAY}],
        drain={**DRAIN, "in_flight": 1, "drained_bytes": 3 * 10**6},
    ),
    "fenced": status(
        **SMALL,
        state="fenced",
        reason="fsync of data/3f/3f9c… failed: Input/output error",
        uptime_seconds=16.0,
        oldest_dirty_seconds=15.0,
    ),
    "nearly-full": status(**FULL),
    "puts-wait": status(**FULL, waiting_bytes=2 * 10**6),
    "remote-refused": with_remote(state="refused", reason=REFUSED, since=NOW - 2.1),
    "remote-unreachable": with_remote(state="unreachable", reason=AWAY),
    "replica-away": status(
        remotes=[LLAMA, {**NEAR, **OWED, "state": "unreachable", "reason": AWAY}]
    ),
    "throttled": with_remote(state="throttled", pace={"writes_per_second": 42.0, "concurrency": 8}),
}


def printed(name: str) -> list[str]:
    return [line.rstrip() for line in shown(NODES[name], width=1000).splitlines()]


def sample_of(name: str) -> list[str]:
    (sample,) = SAMPLE.findall((RUNBOOKS / f"{name}.md").read_text(encoding="utf-8"))
    return [line for line in str(sample).splitlines() if line not in ("...", "")]


@pytest.mark.parametrize("name", NODES)
def test_each_line_of_a_sample_is_one_that_is_printed(name: str) -> None:
    lines = printed(name)
    assert [line for line in sample_of(name) if line not in lines] == []


def test_no_sample_is_left_out() -> None:
    pages = {page.stem for page in RUNBOOKS.glob("*.md") if SAMPLE.search(page.read_text("utf-8"))}
    assert pages - {"figures-missing"} == NODES.keys()  # there it prints an error
