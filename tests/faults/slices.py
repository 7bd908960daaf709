"""Which share of the faults a run takes: ``make test`` a rotating tenth, ``make faults`` all.

The tenth changes with every commit, so that ten commits in a row cover everything. The head of a
run names it, and ``FAULT_SLICE=3 make test`` (or ``all``) repeats it.
"""

from __future__ import annotations

import datetime as dt
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

VARIABLE = "FAULT_SLICE"
EVERYTHING = "all"
SLICES = 10

Case = TypeVar("Case")


def choose_slice() -> None:
    """Settle for this process and its children which share it is, unless somebody chose."""
    chosen = os.environ.setdefault(VARIABLE, str(_number_of_commits() % SLICES))
    if chosen != EVERYTHING and chosen not in map(str, range(SLICES)):
        raise ValueError(f"{VARIABLE}={chosen}: {EVERYTHING}, or 0 to {SLICES - 1}")


def share_of(cases: Sequence[Case]) -> Sequence[Case]:
    """Return the cases of the chosen slice: a tenth of them, and one at the least."""
    chosen = os.environ[VARIABLE]
    if chosen == EVERYTHING:
        return cases
    return cases[int(chosen) % min(SLICES, len(cases)) :: SLICES]


def everything() -> bool:
    """Return whether this run takes all faults: long ones last as long as they may then."""
    return os.environ[VARIABLE] == EVERYTHING


def described() -> str:
    """Return what the head of a run says."""
    chosen = os.environ[VARIABLE]
    if chosen == EVERYTHING:
        return "faults: all of them"
    return f"faults: slice {chosen} of {SLICES}; repeat it with {VARIABLE}={chosen}"


def _number_of_commits() -> int:
    """Return how many commits lead here; without git, the number of the day."""
    counted = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if counted.returncode:
        return dt.datetime.now(dt.UTC).date().toordinal()
    return int(counted.stdout)
