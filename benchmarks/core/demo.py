"""What the demo says of training: how long a save held it up, beside a direct upload."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.measures import Result, at_most, ratios
from benchmarks.scratch import ROOT, Bench

REPORT = ROOT / ".demo" / "report.json"
FRESH_SECONDS = 86_400.0
MEASURE = "training blocked per checkpoint in the demo / direct boto3 PUT at 35 ms"


def measure(bench: Bench) -> list[Result]:
    """Read the demo's report; run the demo first if there is none of today."""
    if not _fresh(REPORT):
        if bench.quick:
            return [Result(MEASURE, None, "", at_most(0.12), note="no report of the demo")]
        bench.say("running the demo (it takes minutes)")
        subprocess.run([sys.executable, "-m", "examples.demo"], cwd=ROOT, check=True)
    return results_of(json.loads(REPORT.read_text()))


def results_of(report: dict[str, Any]) -> list[Result]:
    """Return the ratio of the medians, as the demo prints it, with each save's own as its runs."""
    pairs = [
        (save["blocked_seconds"], save["direct_put_seconds"])
        for save in report["checkpoints"]
        if save["blocked_seconds"] is not None and save["direct_put_seconds"]
    ]
    runs = ratios([blocked for blocked, _ in pairs], [direct for _, direct in pairs])
    return [Result(MEASURE, report["blocked"]["ratio"], "", at_most(0.12), tuple(runs))]


def _fresh(report: Path) -> bool:
    return report.exists() and time.time() - report.stat().st_mtime < FRESH_SECONDS
