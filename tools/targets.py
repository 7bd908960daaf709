"""``make targets``: try every target of the Makefile in a fresh clone, and say how long each took.

The clone is of what is committed, and its ``.venv`` is new. What takes an hour is tried in its
short form; ``--long`` tries it as it is. What serves until it is ended is ended once it answers to
SIGTERM as it should. A target that needs what this machine has not (Docker, the network, another
Python) is to say so and fail: that is told apart from a target that is broken.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "build" / "targets.json"
_TARGET = re.compile(r"^([a-z0-9-]+):.*##", re.MULTILINE)

SHORT = {
    "bench": "ONLY=core ARGS=--quick",
    "faults": "PART=s3",
    "fuzz": "HOURS=0.02",
    "late": "TESTS=tests/client",
    "mutants": "ARGS=--sample=5",
    "paired": "BASE=HEAD ARGS='--pairs 6 --measure group_commit'",
    "scale": "ARGS='--quick --minutes 4'",
    "soak": "MINUTES=2",
}
LONG = {"paired": "BASE=HEAD"}
SERVING = {
    "serve": "ARGS='--cache-dir .serve --http 127.0.0.1:0 --remote s3://bucket/prefix "
    "--remote-endpoint http://127.0.0.1:1'",
    "dev": "ARGS='--http 127.0.0.1:0 --s3 127.0.0.1:0'",
}
SERVING_SECONDS = 15.0
KEYS = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}  # `serve` wants some
# What these need may not be here; they are to say so.
NEEDING = {
    "acceptance": "Docker and compose",
    "audit": "a service that knows vulnerabilities",
    "digests": "registries of images",
    "interpreters": "other Pythons",
}


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of one target; ``said`` is its last line."""

    target: str
    given: str
    outcome: str  # "passed", "not possible here", or "failed"
    seconds: float
    said: str


def targets() -> list[str]:
    """Return the Makefile's targets but this, in its order; what removes the rest is the last."""
    found = _TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8"))
    return [name for name in found if name != "targets"]


def tried(target: str, clone: Path, *, long: bool) -> Tried:
    """Run ``make`` for a target in a clone."""
    given = SERVING.get(target, (LONG if long else SHORT).get(target, ""))
    log, begun = clone.with_name(f"{target}.log"), time.monotonic()
    command = ["make", "--no-print-directory", target, *shlex.split(given)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=clone,
            env={**KEYS, **variables(os.environ), "PIP_NO_INPUT": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code = _served(process) if target in SERVING else process.wait()
    seconds = round(time.monotonic() - begun, 1)
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    said = next((line.strip() for line in reversed(lines) if _tells(line)), "")
    outcome = "passed" if not code else "not possible here" if target in NEEDING else "failed"
    return Tried(target, given, outcome, seconds, said)


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what make tells its children: what it was given itself."""
    flags = environment.get("MAKEFLAGS", "")
    given = {name for name in environment if re.search(rf"(^|\s){re.escape(name)}=", flags)}
    return {
        name: value
        for name, value in environment.items()
        if name not in given and not name.startswith("MAKE")
    }


def _served(process: subprocess.Popen[bytes]) -> int:
    """Let a server run for a while, end it, and return how it ended; an early end is a failure."""
    try:
        return process.wait(SERVING_SECONDS) or 1
    except subprocess.TimeoutExpired:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        for child in children.read_text(encoding="ascii").split():  # make tells how that ended
            os.kill(int(child), signal.SIGTERM)
    return process.wait(60.0)


def _tells(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("make: ")


@click.command()
@click.argument("only", nargs=-1, help="These alone, after setup.")
@click.option("--long", is_flag=True, help="As they are, which takes hours.")
def main(only: tuple[str, ...], long: bool) -> None:
    """Try targets, print what came of each, and leave it in ``build/targets.json``."""
    chosen = targets() if not only else [name for name in targets() if name in {"setup", *only}]
    if missing := set(only) - set(chosen):
        raise click.BadParameter(f"no target of the Makefile: {', '.join(sorted(missing))}")
    found: list[Tried] = []
    with tempfile.TemporaryDirectory(prefix="cachetier-targets-") as scratch:
        clone = Path(scratch) / "clone"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        for target in chosen:
            found.append(tried(target, clone, long=long))
            _show(found[-1], clone.with_name(f"{target}.log"))
            RESULTS.parent.mkdir(exist_ok=True)
            text = json.dumps([asdict(each) for each in found], indent=2)
            RESULTS.write_text(f"{text}\n", encoding="utf-8")
    if any(each.outcome == "failed" for each in found):
        raise click.exceptions.Exit(1)


def _show(each: Tried, log: Path) -> None:
    need = f" (needs {NEEDING[each.target]})" if each.outcome == "not possible here" else ""
    line = f"{each.target:<14} {each.outcome:<18} {each.seconds:>8.1f} s  {each.given}{need}"
    click.echo(line.rstrip())
    if each.outcome != "passed":
        click.echo(f"    {each.said}")
    if each.outcome == "failed":
        kept = RESULTS.parent / log.name
        kept.parent.mkdir(exist_ok=True)
        kept.write_bytes(log.read_bytes())
        click.echo(f"    all that it said: {kept.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.argv[0] = "make targets"
    main()
