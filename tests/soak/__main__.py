"""``python -m tests.soak --minutes 90 [--seed N]``: the long mixed soak, judged from outside.

Two thirds of the time are for a few nodes under faults of every class, and a third for ten services
whose jobs move.

Ends with 0 if every promise was kept; else it keeps the directory, says how to replay, and ends
with 1. A run in which a planned fault never took place proves nothing, and is void.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from cachetier_client.errors import CachetierClientError

from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.seaweed import seaweedfs
from cachetier.testing.troubles import Troubles
from tests.soak import faults, report
from tests.soak.moving import MovingSoak
from tests.soak.nodes import Figures
from tests.soak.rounds import BrokenPromiseError, Soak

NICENESS = 10
ROUND_SECONDS = 150.0  # of load; settling and judging come on top
LATENCY_SECONDS = 0.02
THIRDS = 6  # rounds, at the least, to tell whether memory grows
GROWN, GROWN_BYTES, GROWN_FILES = 1.2, 24 << 20, 8


def main() -> int:
    """Return 0 if every promise was kept and every fault took place."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="about how long; 2 is short")
    parser.add_argument("--seed", type=int, help="of everything; a random one if not given")
    parser.add_argument("--round", type=int, help="replay this round alone")
    parser.add_argument("--moving", action="store_true", help="only the jobs that move")
    options = parser.parse_args()
    os.nice(NICENESS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # tidies up
    commit = _commit()
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    top = Path(tempfile.mkdtemp(prefix="soak-"))
    began = time.monotonic()
    if options.moving:
        verdict, met = run_moving(top, options.minutes, seed, options.round)
        print(f"{verdict}; {dict(met)}")
    elif options.round is not None:
        verdict, soak = run(top, options.minutes, seed, options.round)
        print(f"{verdict}; {soak.tally}")
    else:
        verdict, soak = run(top, options.minutes * 2 / 3, seed)
        if verdict == "held":
            verdict, met = run_moving(top, options.minutes / 3, seed)
            soak.tally.faults |= {f"{name}, of ten": number for name, number in met.items()}
        _report(soak, commit, seed, (time.monotonic() - began) / 60, verdict)
        print(f"{verdict}; {soak.tally}")
    if verdict != "held":
        return 1
    shutil.rmtree(top)
    return 0


def run(top: Path, minutes: float, seed: int, only: int | None = None) -> tuple[str, Soak]:
    """Run a soak in ``top``; return its verdict, ``held`` if all is well, and its figures."""
    ends_at = time.monotonic() + minutes * 60
    seconds = min(ROUND_SECONDS, minutes * 60 / 3)
    with (
        seaweedfs(top / "seaweed") as endpoint,
        S3Proxy(endpoint.url, latency_seconds=LATENCY_SECONDS, troubles=Troubles(seed=seed)) as s3,
    ):
        soak = Soak(top, endpoint, s3, seed)
        number = only or 0
        try:
            soak.start()
            while soak.tally.rounds == 0 or (only is None and time.monotonic() < ends_at):
                print(f"round {number}, {(ends_at - time.monotonic()) / 60:.0f} minutes to go")
                soak.round(number, seconds)
                number += 1
            soak.end()
        except (BrokenPromiseError, RuntimeError, CachetierClientError) as error:
            print(f"{error}\nround {number} failed; everything is kept in {top}; to replay:")
            print(f"    python -m tests.soak --minutes {minutes:g} --seed {seed} --round {number}")
            return f"failed in round {number}", soak
        finally:
            soak.close()
    return _verdict(soak, whole=only is None and seconds == ROUND_SECONDS), soak


def run_moving(
    top: Path, minutes: float, seed: int, only: int | None = None
) -> tuple[str, Counter[str]]:
    """Let jobs move between ten services; return the verdict, and what they met."""
    ends_at = time.monotonic() + minutes * 60
    seconds, number = min(ROUND_SECONDS, minutes * 60 / 3), only or 0
    home = top / "moving"
    home.mkdir()
    with seaweedfs(home / "seaweed") as endpoint, S3Proxy(endpoint.url) as s3:
        soak = MovingSoak(home, endpoint, s3, seed)
        try:
            soak.fleet.start()
            failures: list[str] = []
            while not failures and (number == (only or 0) or time.monotonic() < ends_at):
                print(f"moving jobs, round {number}")
                failures = soak.round(number, seconds)
                number += 1
                if only is not None:
                    break
        finally:
            soak.close()
    if not failures:
        return "held" if soak.met["moves"] and soak.met["services killed"] else "void", soak.met
    print("\n".join(failures[:50]), f"\neverything is kept in {top}; to replay:")
    again = f"--minutes {minutes:g} --seed {seed} --round {number - 1}"
    print(f"    python -m tests.soak --moving {again}")
    return f"failed in round {number - 1} of moving jobs", soak.met


def _verdict(soak: Soak, *, whole: bool) -> str:
    tally = soak.tally
    planned = {*faults.NODE_FAULTS, *faults.S3_FAULTS} - set(soak.skipped)
    missed = sorted(name for name in planned if not tally.faults.get(name))
    if whole and missed:
        return f"void: no {', '.join(missed)}"
    if whole and not tally.crashes_with_dirty:
        return "void: nothing was dirty at a crash"
    return _memory(tally.figures)[1]


def _memory(figures: Sequence[Figures]) -> tuple[str, str]:
    """Return memory and descriptors of the second third and of the last, and the verdict.

    The first is for warming up: a service that reads shards from S3 keeps some 64 MB for the next.
    """
    third = max(1, len(figures) // 3)
    steady = figures[third:] or figures
    told, verdict = [], "held"
    for what in ("serve", "drain"):
        rss = [float(getattr(each, f"{what}_bytes")) for each in steady]
        files = [float(getattr(each, f"{what}_files")) for each in steady]
        early, late = mean(rss[:third]), mean(rss[-third:])
        early_files, late_files = mean(files[:third]), mean(files[-third:])
        told.append(
            f"{what} {early / 1e6:.0f} → {late / 1e6:.0f} MB, {early_files:.0f} → {late_files:.0f}"
        )
        grown = late > GROWN * early + GROWN_BYTES or late_files > early_files + GROWN_FILES
        if grown and len(figures) >= THIRDS:
            verdict = f"failed: {what} grows"
    return "; ".join(told), verdict


def _report(soak: Soak, commit: str, seed: int, minutes: float, verdict: str) -> None:
    tally = soak.tally
    report.add(
        report.Run(
            day=dt.datetime.now(dt.UTC).date().isoformat(),
            commit=commit,
            seed=seed,
            minutes=round(minutes, 1),
            rounds=tally.rounds,
            verdict=verdict,
            steps=tally.steps,
            acked_bytes=tally.acked_bytes,
            read_bytes=tally.read_bytes,
            crashes=tally.crashes,
            crashes_with_dirty=tally.crashes_with_dirty,
            settle_seconds=round(tally.settle_seconds, 1),
            calls=tally.calls,
            faults=tally.faults,
            troubles=tally.troubles,
            memory=_memory(tally.figures)[0] if tally.figures else "-",
            skipped=soak.skipped,
        )
    )


def _commit() -> str:
    command = ("git", "rev-parse", "--short=12", "HEAD")
    told = subprocess.run(command, cwd=report.ROOT, capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
