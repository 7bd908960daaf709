"""``python -m tests.fuzz --hours 1``: fuzz doors and parsers with new seeds until the time is over.

What is found is printed with how to replay it, and the search goes on; the end is 1 then. With
``--door unix --seed 7 --at 42`` one mutant is sent again, with ``--parser frames --seed 7`` the
examples of one parser are read again, and with ``--door s3 --seed 7`` the signed requests of S3.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.seaweed import seaweedfs
from tests.fuzz.campaign import Recorded, campaign, recorded
from tests.fuzz.contracts import CONTRACTS, check
from tests.fuzz.doors import SEND
from tests.fuzz.mutants import mutant_of
from tests.fuzz.recording import DOORS
from tests.fuzz.s3_requests import campaign as s3_campaign
from tests.fuzz.target import fuzzed, troubles

REQUESTS, EXAMPLES = 5_000, 1_000
S3 = "s3"
SHOWN_BYTES = 3_000


def main() -> int:
    """Return 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--hours", type=float, default=0.1)
    parser.add_argument("--seed", type=int, help="the first; a random one if not given")
    parser.add_argument("--door", choices=(*DOORS, S3), help="send again; needs --at, but of s3")
    parser.add_argument("--at", type=int, help="the number of the mutant")
    parser.add_argument("--parser", choices=CONTRACTS, help="check this parser alone, once")
    options = parser.parse_args()
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    if options.parser is not None:
        check(CONTRACTS[options.parser], seed, EXAMPLES)
        return 0
    top = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        if options.door == S3:
            print(s3_campaign(top / "node", seed, REQUESTS))
            return 0
        with seaweedfs(top / "seaweed") as remote:
            if options.door is not None:
                return replay(top / "node", remote, options.door, seed, options.at)
            return 1 if search(top, remote, seed, options.hours) else 0
    finally:
        shutil.rmtree(top)


def search(top: Path, remote: S3Endpoint, seed: int, hours: float) -> int:
    """Return how many rounds found something."""
    ends_at = time.monotonic() + hours * 3600
    traffic, failed, rounds = recorded(), 0, 0
    while rounds == 0 or time.monotonic() < ends_at:
        print(f"==> seed {seed}, {max(0, ends_at - time.monotonic()) / 60:.0f} minutes to go")
        root = top / f"node-{rounds}"
        failed += _found(lambda: print(_campaign(root, remote, traffic, seed)), f"--seed {seed}")  # noqa: B023
        shutil.rmtree(root, ignore_errors=True)
        signed = partial(s3_campaign, root, seed, REQUESTS)
        failed += _found(lambda: print(signed()), f"--door s3 --seed {seed}")  # noqa: B023
        shutil.rmtree(root, ignore_errors=True)
        for name, contract in CONTRACTS.items():
            examples = lambda: check(contract, seed, EXAMPLES)  # noqa: B023, E731
            failed += _found(examples, f"--parser '{name}' --seed {seed}")
        seed, rounds = seed + 1, rounds + 1
    print(f"{rounds} rounds of {REQUESTS} requests at each door; {failed} finds")
    return failed


def _campaign(root: Path, remote: S3Endpoint, traffic: Recorded, seed: int) -> str:
    return str(campaign(root, remote, traffic, seed, REQUESTS))


def _found(act: Callable[[], object], how: str) -> bool:
    """Do it; tell of what comes, and how to replay it."""
    try:
        act()
    except Exception:
        traceback.print_exc()
        print(f"found; to replay: python -m tests.fuzz {how}", flush=True)
        return True
    return False


def replay(root: Path, remote: S3Endpoint, door: str, seed: int, number: int) -> int:
    """Send one mutant to a service that has seen the recorded traffic; show what comes of it."""
    traffic = recorded()
    mutant = mutant_of(door, traffic[door], seed, number)
    print(mutant.name, *(each[:SHOWN_BYTES] for each in mutant.messages), sep="\n    ")
    with fuzzed(root, remote) as target:
        for each in traffic[door]:
            SEND[door](target.urls[door], mutant_of(door, [each], 0, 0))
        found = _found(
            lambda: print(SEND[door](target.urls[door], mutant)),
            f"--door {door} --seed {seed} --at {number}",
        )
        print(*troubles(target.cache_dir.with_name("cache.log")), sep="\n")
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
