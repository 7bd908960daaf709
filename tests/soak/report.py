"""``tests/soak/REPORT.md``: a row for each run, and what they add up to.

The figures lie beside it in ``tests/soak/runs.jsonl``, one run a line; the page is made from them.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RUNS = Path(__file__).with_name("runs.jsonl")
PAGE = Path(__file__).with_name("REPORT.md")

HEAD = """\
# The soak

Several services, one SeaweedFS behind a proxy, ranks as processes, and faults of every class at
random, judged from outside: `make soak MINUTES=90`. `tests/soak/` says what is done and what is
judged. Every run adds a row, and one that failed keeps its row.
"""
COLUMNS = (
    *("day", "commit", "seed", "minutes", "rounds", "steps", "acknowledged", "read by the judge"),
    *("crashes (with dirty bytes)", "longest settling", "memory, descriptors", "verdict"),
)


@dataclass(frozen=True)
class Run:
    """The figures of one run."""

    day: str
    commit: str
    seed: int
    minutes: float
    rounds: int
    verdict: str
    steps: int
    acked_bytes: int
    read_bytes: int
    crashes: int
    crashes_with_dirty: int
    settle_seconds: float
    calls: dict[str, int]
    faults: dict[str, int]
    troubles: dict[str, int]
    memory: str
    skipped: list[str]


def add(run: Run) -> None:
    """Add a run to the figures, and make the page anew."""
    with RUNS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(run), sort_keys=True) + "\n")
    runs = [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()]
    PAGE.write_text(page(runs), encoding="utf-8")


def page(runs: list[dict[str, Any]]) -> str:
    lines = [
        HEAD,
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    for run in runs:
        cells = (
            run["day"],
            f"`{run['commit']}`",
            str(run["seed"]),
            f"{run['minutes']:.0f}",
            str(run["rounds"]),
            str(run["steps"]),
            f"{run['acked_bytes'] / 1e9:.1f} GB",
            f"{run['read_bytes'] / 1e9:.1f} GB",
            f"{run['crashes']} ({run['crashes_with_dirty']})",
            f"{run['settle_seconds']:.0f} s",
            run["memory"],
            run["verdict"] + (f"; skipped: {', '.join(run['skipped'])}" if run["skipped"] else ""),
        )
        lines.append(f"| {' | '.join(cells)} |")
    minutes, rounds = sum(run["minutes"] for run in runs), sum(run["rounds"] for run in runs)
    failed = sum(run["verdict"] != "held" for run in runs)
    together = f"{rounds} rounds in {minutes:.0f} minutes, of which {failed} ended with a failure"
    lines += ["", f"Together {together}:", ""]
    lines += _table("fault", "times", _sum(runs, "faults"))
    lines += ["", "Requests that the proxy struck in these windows:", ""]
    lines += _table("trouble", "requests", _sum(runs, "troubles"))
    lines += ["", "Calls of clients, by how they ended (*unknown*: the answer was lost):", ""]
    lines += _table("call", "times", _sum(runs, "calls"))
    return "\n".join(lines) + "\n"


def _sum(runs: list[dict[str, Any]], name: str) -> Counter[str]:
    total: Counter[str] = Counter()
    for run in runs:
        total.update(run[name])
    return total


def _table(name: str, number: str, counts: Counter[str]) -> list[str]:
    rows = [f"| {key} | {counts[key]} |" for key in sorted(counts)]
    return [f"| {name} | {number} |", "|---|---|", *rows]
