"""``python -m tests.faults [--part NAME]``: run every fault, and write ``tests/faults/REPORT.md``.

Each part is a run of pytest with a time limit, and leaves what it found in ``.faults``: a part that
passed at this commit is not run again, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.branches import BRANCHES, Branches
from tests.faults.slices import EVERYTHING, VARIABLE

ROOT = Path(__file__).parents[2]
STATE = ROOT / ".faults"
REPORT = ROOT / "tests" / "faults" / "REPORT.md"


@dataclass(frozen=True)
class Part:
    """Tests that run together; ``goals`` says how many faults of a kind they owe.

    Those that owe branches take a tenth of the faults, as in ``make test``.
    """

    paths: tuple[str, ...]
    minutes: float
    goals: dict[str, int]


PARTS = {
    "power-loss": Part(
        (
            "tests/crash/test_power_loss.py",
            "tests/crash/test_object_power_loss.py",
            "tests/crash/test_power_loss_elsewhere.py",
            "tests/crash/test_strict_disk.py",
        ),
        15,
        {
            "states after a power cut": 20_000,
            "short lives that were cut": 500,
            "starts cut three deep": 200,
            "newer objects in danger after a power cut": 300,
        },
    ),
    "real-disks": Part(
        ("tests/crash/test_real_disks.py",),
        15,
        {"power cuts on ext4": 2_000, "power cuts on XFS": 500},
    ),
    "volatile-disks": Part(
        ("tests/crash/test_volatile_disks.py",),
        10,
        {"power cuts of a volatile disk": 1_000, "pieces that a disk forgot": 5_000},
    ),
    "failed-syncs": Part(("tests/crash/test_failed_syncs.py",), 6, {"failed syncs": 30}),
    "repairs": Part(("tests/crash/test_repair_sweep.py",), 5, {"repairs that were killed": 300}),
    "planted-bugs": Part(
        (
            "tests/crash/test_planted_bugs.py",
            "tests/stateful/test_planted_in_objects.py",
            "tests/stateful/test_planted_in_one_node.py",
            "tests/stateful/test_planted_in_shared_keys.py",
            "tests/stateful/test_planted_in_three_nodes.py",
            "tests/stateful/test_planted_in_two_nodes.py",
        ),
        6,
        {},
    ),
    "log-damage": Part(("tests/crash/test_log_damage.py",), 5, {"flipped bits of the log": 65_536}),
    "kill": Part(("tests/crash/test_kill9.py",), 10, {"kills that counted": 100}),
    "peers": Part(
        (
            "tests/integration/test_lost_processes.py",
            "tests/integration/test_peer_processes.py",
            "tests/integration/test_peers.py",
        ),
        30,
        {
            "fetchers that were killed": 5,
            "networks that were cut or slow": 3,
            "nodes that were lost for good": 60,
            "steps at replicated that outlived their node": 30,
        },
    ),
    "s3": Part(
        ("tests/integration/test_s3_fault_matrix.py",), 10, {"cells of the S3 fault matrix": 288}
    ),
    "s3-door": Part(
        ("tests/integration/test_object_fault_matrix.py", "tests/integration/test_s3_order.py"),
        20,
        {"cells of the object fault matrix": 288},
    ),
    "stateful": Part(
        ("tests/stateful",),
        25,
        {
            "lives of the state machine": 2_000,
            "lives of two nodes": 400,
            "lives of three peers": 1_000,
            "lives of shared keys": 200,
            "disks that went back": 50,
            "disks that were copied": 100,
            "logs that were lost": 200,
            "locks that were removed": 200,
            "locks from outside": 200,
            "full disks that refused": 200,
            "shards drained from a full disk": 50,
            "objects that others removed": 100,
            "writes: lose": 100,
            "writes: refuse": 100,
        },
    ),
    "outage": Part(
        (
            "tests/integration/test_drain_long_outage.py",
            "tests/integration/test_drain_outage.py",
            "tests/integration/test_drain_requests.py",
            "tests/integration/test_drain_chaos.py",
            "tests/integration/test_drain_packs_chaos.py",
        ),
        8,
        {
            # With each of two errors.
            "simulated seconds of outage": 2 * 6 * 3600,
            "simulated seconds of flapping": 1800,
        },
    ),
    "bit-flips": Part(
        (
            "tests/integration/test_bit_flips.py",
            "tests/integration/test_drain_damage.py",
            "tests/unit/restore/test_remote_shard.py",
        ),
        5,
        {"flipped bits of data": 2_000},
    ),
    "memory": Part(
        ("tests/integration/test_memory.py",),
        7,
        {"puts of 1 GiB": 64, "bombs that were read": 8},
    ),
    "hostile": Part(
        (
            "tests/integration/test_http_hostile.py",
            "tests/integration/test_unix_door_faults.py",
            "tests/unit/codec/test_hostile.py",
            "tests/conformance/test_access.py",
            "tests/integration/test_http_hostile_many.py",
            "tests/integration/test_http_unauthorized.py",
            "tests/integration/test_unix_door_hostile.py",
            "tests/integration/test_slow_connections.py",
        ),
        4,
        {
            "slow connections closed": 500,
            "unauthorized requests refused": 1_000,
            "hostile requests of HTTP": 500,
            "hostile frames of the socket": 500,
        },
    ),
    "fuzz": Part(
        ("tests/fuzz",),
        15,
        {
            "fuzzed requests of HTTP": 20_000,
            "fuzzed requests of the socket": 20_000,
            "contracts of parsers": 11,
        },
    ),
    "branches": Part(
        (
            "tests/unit",
            "tests/crash",
            "tests/stateful",
            "tests/conformance",
            "tests/integration",
        ),
        35,
        {BRANCHES: 95},
    ),
}


def main() -> int:
    """Return 0 if every part passed at this commit and met its goals."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="run this part alone")
    parser.add_argument("--workers", default="2", help="processes for each part")
    options = parser.parse_args()
    STATE.mkdir(exist_ok=True)
    commit = _commit()
    for name in options.part or PARTS:
        if options.part is None and _passed(name, _read(name), commit):
            print(f"{name}: passed at {commit[:12]} already")
            continue
        _run(name, commit, options.workers)
    found = {name: _read(name) for name in PARTS}
    REPORT.write_text(_page(found), encoding="utf-8")
    lacking = [name for name in options.part or PARTS if not _passed(name, found[name], commit)]
    print(f"{REPORT.relative_to(ROOT)} is written; lacking: {', '.join(lacking) or 'nothing'}")
    return 1 if lacking else 0


def _run(name: str, commit: str, workers: str) -> None:
    part, result = PARTS[name], STATE / f"{name}.found.json"
    result.unlink(missing_ok=True)
    pytest = (sys.executable, "-m", "pytest", "-q", "-n", workers, f"--faults-found={result}")
    print(f"==> {name} (at most {part.minutes} minutes)", flush=True)
    began = time.monotonic()
    environment = {**os.environ, VARIABLE: EVERYTHING}
    taken = Branches(STATE / name) if BRANCHES in part.goals else None
    if taken is not None:
        environment = {**os.environ, **taken.environment}
    process = subprocess.Popen((*pytest, *part.paths), cwd=ROOT, env=environment)
    try:
        process.wait(part.minutes * 60)
        ended = True
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # it still writes down what it found
        process.wait()
        ended = False
    found = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
    if taken is not None and ended:
        found["kinds"] = {BRANCHES: {"number": taken.percent(), "seeds": []}}
    found |= {
        "ended": ended,
        "commit": commit,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "seconds": round(time.monotonic() - began),
    }
    (STATE / f"{name}.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def _read(name: str) -> dict[str, Any]:
    path = STATE / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def _passed(name: str, found: dict[str, Any], commit: str) -> bool:
    return found.get("commit") == commit and _verdict(name, found) == "passed"


def _verdict(name: str, found: dict[str, Any]) -> str:
    if not found:
        return "not run"
    if not found["ended"]:
        return "took too long"
    if found.get("failed") or not found.get("passed"):
        return "failed: " + ", ".join(found.get("failed", ["nothing ran"]))
    for kind, goal in PARTS[name].goals.items():
        number = found["kinds"].get(kind, {"number": 0})["number"]
        if number < goal:
            return f"fell short: {number} {kind}"
    return "passed"


def _page(found: dict[str, dict[str, Any]]) -> str:
    lines = [
        "# Faults, all of them",
        "",
        "What `make faults` met when it ran last; `make test` takes a tenth of it, another one",
        "with each commit. `make faults PART=kill` runs one part again. To repeat one seed, run",
        "its test by name with `FAULT_SLICE=all`.",
        "",
        "| part | faults | seeds | tests | seconds | commit | day | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, part in found.items():
        kinds = part.get("kinds", {})
        goals = PARTS[name].goals
        met = [
            f"{each['number']} {kind}" + (f" (goal {goals[kind]})" if kind in goals else "")
            for kind, each in kinds.items()
        ]
        seeds = sorted({seed for each in kinds.values() for seed in each["seeds"]})
        cells = (
            name,
            "; ".join(met) or "-",
            _ranges(seeds) or "-",
            str(part.get("passed", "-")),
            str(part.get("seconds", "-")),
            f"`{part['commit'][:12]}`" if part else "-",
            part.get("date", "-"),
            re.sub(r"\|", "/", _verdict(name, part)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _ranges(numbers: list[int]) -> str:
    """Write 0, 1, 2, 5 as ``0-2, 5``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{a}-{b}" if a < b else str(a) for a, b in spans)


def _commit() -> str:
    commit = _git("rev-parse", "HEAD").strip()
    sources = ("cachetier", "client", "tests")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *sources)
    return commit + ("+changes" if changed else "")


def _git(*arguments: str) -> str:
    return subprocess.run(
        ("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


if __name__ == "__main__":
    sys.exit(main())
