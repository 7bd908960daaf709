"""``python -m benchmarks [--only GROUP]``: measure, print a table, write ``results.json``."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import bytes as bytes_group
from benchmarks import console, core, drain, link, machine, peers, report, s3, truth
from benchmarks import torch as torch_group
from benchmarks.measures import Result
from benchmarks.scratch import FULL, QUICK, Bench, Sizes, scratch

HERE = Path(__file__).parent
GROUPS = {
    "core": core.BENCHES,
    "drain": drain.BENCHES,
    "link": link.BENCHES,
    "processor": link.PROCESSOR,
    "bytes": bytes_group.BENCHES,
    "torch": torch_group.BENCHES,
    "s3": s3.BENCHES,
    "console": console.BENCHES,
    "peers": peers.BENCHES,
    "truth": truth.BENCHES,
}

Measure = Callable[[Bench], list[Result]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 once everything was measured, whether or not the bars hold."""
    options = _options(arguments)
    screen = Console()
    if not screen.is_terminal:
        screen.width = 140  # a log has no width of its own
    results: dict[str, list[Result]] = {}
    broken = False
    with scratch() as directory:
        described = machine.describe(directory)
        for group in [options.only] if options.only else GROUPS:
            results[group] = []
            for name, measure in GROUPS[group].items():
                if options.measure and name not in options.measure:
                    continue
                sizes = QUICK if options.quick else FULL
                found, failed = _measured(measure, directory / name, sizes, options.quick, screen)
                results[group] += found
                broken |= failed
    report.show(results, described, screen)
    if options.results is not None:
        report.write(options.results, results, whole=not options.measure)
    if options.record and options.results is not None:
        report.record(HERE / "README.md", report.read(options.results), described)
    return 1 if broken else 0


def _measured(
    measure: Measure, directory: Path, sizes: Sizes, quick: bool, console: Console
) -> tuple[list[Result], bool]:
    """Run one benchmark; one that breaks must not cost the figures of the others."""
    directory.mkdir()
    began = time.monotonic()
    console.print(f"[bold]{directory.name}[/]")

    def say(line: str) -> None:
        console.print(f"  {time.monotonic() - began:5.1f} s  {line}", highlight=False)

    try:
        return measure(Bench(directory, sizes, quick, say)), False
    except Exception:
        console.print_exception()
        for log in sorted(directory.glob("*.log")):
            console.print(f"{log.name}:\n{log.read_text(errors='replace')[-2000:]}", markup=False)
        return [Result(directory.name, None, "", None, (), "it broke: see above")], True
    finally:
        shutil.rmtree(directory)
        os.sync()  # the next one finds the disk as this one did


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", choices=sorted(GROUPS), help="measure one group")
    parser.add_argument(
        "--measure", action="append", metavar="NAME", help="measure one benchmark of a group"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: proves that it works")
    parser.add_argument("--results", type=Path, metavar="FILE", help="instead of results.json")
    parser.add_argument("--record", action="store_true", help="put the figures into README.md")
    options = parser.parse_args(arguments)
    groups = [options.only] if options.only else list(GROUPS)
    known = sorted({name for group in groups for name in GROUPS[group]})
    for name in options.measure or ():
        if name not in known:  # else the table would be empty, and the exit status 0
            parser.error(f"argument --measure: no benchmark {name!r}; there are {', '.join(known)}")
    if options.results is None and not options.quick:  # quick figures are worth nothing
        options.results = HERE / "results.json"
    return options


if __name__ == "__main__":
    sys.exit(main())
