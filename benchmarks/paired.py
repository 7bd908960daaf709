"""``python -m benchmarks.paired --base REV``: the core benches of this tree against a commit's.

Both trees run their own benches and their own code, in turns A B B A, so that a machine that slows
down or warms up meanwhile does both sides the same harm. The figure of a measure is the median of
the ratios of its pairs; above 1 this tree is better. It falls short only if the 95 % interval of
that median, taken from the ordered ratios, lies wholly below the bar.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.scratch import ROOT, scratch

BAR = 0.95
CONFIDENCE = 0.95
MEASURES = ("large_shards", "small_shards", "group_commit", "http_put", "service_cpu")
FASTER_IS_MORE = {"GB/s", "puts/s"}
FASTER_IS_LESS = {"ms", "s"}
# A turn in a shape that allows many: shorter than `FULL`, and each tree has `FULL`.
TURN = """
import dataclasses, sys
from benchmarks import scratch
scratch.FULL = dataclasses.replace(
    scratch.FULL, large_bytes=512 << 20, large_runs=3, small_rounds=3, bursts=3, burst_seconds=0.8
)
from benchmarks.__main__ import main
sys.exit(main(sys.argv[1:]))
"""

Figures = dict[str, float]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 once all pairs were measured, 1 if a turn broke."""
    options = _options(arguments)
    console = Console()
    with scratch() as directory, _checked_out(options.base, directory / "base") as base:
        described = machine.describe(directory)
        trees = {"base": base, "new": ROOT}
        turns: list[tuple[str, Figures, dict[str, str]]] = []
        for pair in range(options.pairs):
            for side in ("base", "new") if pair % 2 == 0 else ("new", "base"):
                console.print(f"pair {pair + 1} of {options.pairs}: {side}", highlight=False)
                turns.append((side, *_turn(trees[side], options.measure, directory)))
    rows = [*_rows(turns)]
    _show(rows, console)
    commits = {"base": _commit(options.base), "new": _commit("HEAD")}
    document = {"commits": commits, "machine": described, "bar": BAR, "measures": rows}
    options.results.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def interval(ratios: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the narrowest interval of ordered ratios that covers the median so surely.

    It assumes nothing of how ratios are distributed: of ``n`` values, ``k`` lie below the median
    as often as a fair coin falls on heads. Too few values give the whole range.
    """
    ordered, count = sorted(ratios), len(ratios)
    allowed = (1 - confidence) * 2 ** (count - 1)
    ranks = range(1, count // 2 + 1)
    tails = {rank: sum(math.comb(count, below) for below in range(rank)) for rank in ranks}
    rank = max((rank for rank, tail in tails.items() if tail <= allowed), default=1)
    return ordered[rank - 1], ordered[count - rank]


@contextmanager
def _checked_out(revision: str, where: Path) -> Iterator[Path]:
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(where), revision], check=True)
    try:
        yield where
    finally:
        subprocess.run([*git, "remove", "--force", str(where)], check=True)


def _turn(tree: Path, measures: Sequence[str], directory: Path) -> tuple[Figures, dict[str, str]]:
    """Run the benches of a tree once; return its figures, and the unit of each."""
    results = directory / "turn.json"
    results.unlink(missing_ok=True)
    named = [word for measure in measures for word in ("--measure", measure)]
    subprocess.run(
        [sys.executable, "-c", TURN, "--only", "core", *named, "--results", str(results)],
        check=True,
        cwd=tree,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(tree), str(tree / "client"))),
            "CACHETIER_BENCH_DIR": str(directory),
        },
        stdout=subprocess.DEVNULL,
    )
    rows: list[dict[str, Any]] = json.loads(results.read_text(encoding="utf-8"))
    timed = [row for row in rows if row["unit"] in FASTER_IS_MORE | FASTER_IS_LESS]
    own = [row for row in timed if not row["measure"].startswith("raw ")]
    return (
        {row["measure"]: float(row["value"]) for row in own},
        {row["measure"]: str(row["unit"]) for row in own},
    )


def _rows(turns: Sequence[tuple[str, Figures, dict[str, str]]]) -> Iterator[dict[str, Any]]:
    """Yield one row for each measure: its pairs, their ratios, the median and its interval."""
    base = [figures for side, figures, _ in turns if side == "base"]
    new = [figures for side, figures, _ in turns if side == "new"]
    units = turns[0][2]
    for measure in base[0]:
        pairs = [(old[measure], ours[measure]) for old, ours in zip(base, new, strict=True)]
        faster_is_more = units[measure] in FASTER_IS_MORE
        ratios = [ours / old if faster_is_more else old / ours for old, ours in pairs]
        low, high = interval(ratios)
        yield {
            "measure": measure,
            "unit": units[measure],
            "median_ratio": round(statistics.median(ratios), 4),
            "interval": [round(low, 4), round(high, 4)],
            "holds": high >= BAR,
            "pairs": [{"base": old, "new": ours} for old, ours in pairs],
        }


def _show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    table = Table(title="This tree beside the commit: above 1 is faster", title_justify="left")
    for heading in ("measure", "median ratio", "95 % interval", "pairs", "holds"):
        table.add_column(heading)
    for row in rows:
        low, high = row["interval"]
        holds = "yes" if row["holds"] else "[bold red]NO[/]"
        shown = (f"{row['median_ratio']:.3f}", f"{low:.3f} to {high:.3f}", str(len(row["pairs"])))
        table.add_row(row["measure"], *shown, holds)
    console.print(table)


def _commit(revision: str) -> str:
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short", revision]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paired", description=__doc__)
    parser.add_argument("--base", required=True, metavar="REV", help="the commit to compare with")
    parser.add_argument("--pairs", type=int, default=12, help="at least 6 for an interval")
    parser.add_argument("--measure", action="append", choices=MEASURES, help="default: all")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "paired.json")
    options = parser.parse_args(arguments)
    if options.pairs < 6:
        parser.error("--pairs: fewer than 6 give no interval of 95 %")
    options.measure = options.measure or list(MEASURES)
    return options


if __name__ == "__main__":
    sys.exit(main())
