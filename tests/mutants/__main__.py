"""Repeats the mutants of the sample: ``python -m tests.mutants`` (`make mutants`).

A killed one meets its killer first, then the tests that run its statement; one that was not run
meets these, fastest first. It fails if a smaller share is killed than `sample.json` says. What is
new goes into that file; a mutant that was killed and is not any more only with ``--accept``.
"""

from __future__ import annotations

import argparse
import queue
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from tests.mutants import line_map
from tests.mutants.line_map import LineMap, batches
from tests.mutants.sample import (
    GONE,
    KILLED,
    NOT_RUN,
    SAMPLE,
    SURVIVED,
    Mutants,
    Result,
    draw,
    inherited,
    kept,
    killed_share,
    read,
    write,
)
from tests.mutants.sites import Mutant
from tests.mutants.worker import TIMEOUT, Worker

ROOT = Path(__file__).parents[2]
LIKELY_KILLS_SECONDS = 180.0
IMPORT_SECONDS = 60.0  # for what no test has a part in, on a machine that others use


class Run:
    """One repetition: mutants of the sample, shared among workers."""

    def __init__(self, results: list[Result], options: argparse.Namespace) -> None:
        self.results = results
        self.mutants = Mutants(ROOT)
        self.lines = LineMap()
        self.repeated: list[tuple[Result, Result]] = []  # as it was written down, as it is now
        self._accept: bool = options.accept
        self._most: float = options.seconds
        self._deadline = time.monotonic() + options.minutes * 60
        self._writing = threading.Lock()
        self._todo: queue.SimpleQueue[int] = queue.SimpleQueue()

    def over(self, numbers: Sequence[int], workers: int) -> None:
        """Run the mutants of these numbers; the file has each as soon as it is known."""
        for number in numbers:
            self._todo.put(number)
        threads = [threading.Thread(target=self._work) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self) -> None:
        worker = Worker(ROOT, line_map.FIXED)
        try:
            for test in list(self.lines.costs)[:1]:
                if worker.failures([test], IMPORT_SECONDS):
                    raise RuntimeError(f"{test} fails without a mutant")
            while time.monotonic() < self._deadline:
                try:
                    number = self._todo.get_nowait()
                except queue.Empty:
                    return
                self._keep(number, self._repeat(self.results[number], worker))
        finally:
            worker.close()

    def _repeat(self, result: Result, worker: Worker) -> Result:
        mutant = self.mutants.find(result)
        if mutant is None:
            return replace(result, outcome=GONE, by="")
        outcome, by = self._outcome(result, mutant, worker)
        return Result(mutant.site, mutant.change, outcome, by)

    def _outcome(self, result: Result, mutant: Mutant, worker: Worker) -> tuple[str, str]:
        with worker.mutated(mutant):
            if result.outcome == KILLED and result.by != TIMEOUT:
                by = worker.first_failure([result.by], LIKELY_KILLS_SECONDS)
                if by:
                    return KILLED, result.by
            tests = self.lines.tests_of(mutant.site, self.mutants.texts)
            if not tests and not self.lines:
                known = result.outcome == KILLED
                return (
                    (SURVIVED, "its killer passes, and there is no map") if known else (NOT_RUN, "")
                )
            if not tests:
                return SURVIVED, "no test runs it"
            for batch in batches(mutant.site.path, tests, self.lines.costs, self._most):
                seconds = IMPORT_SECONDS + 8 * sum(self.lines.costs[test] for test in batch)
                by = worker.first_failure(batch, seconds)
                if by:
                    return KILLED, by
        return SURVIVED, "gap"

    def _keep(self, number: int, now: Result) -> None:
        with self._writing:
            before = self.results[number]
            self.repeated.append((before, now))
            self.results[number] = kept(before, now, accept=self._accept)
            write(self.results)
            click.echo(f"{len(self.repeated):4} {now.outcome:9} {_named(now)}  {now.by}")

    def forget_false_kills(self, *, known: bool) -> None:
        """Take back what killers said that fail without a mutant, too; `known` ones or the new."""
        pairs = [(NOT_RUN, each) for each in self.results] if known else self._news()
        killers = sorted({now.by for was, now in pairs if KILLED == now.outcome != was} - {TIMEOUT})
        worker = Worker(ROOT, line_map.FIXED)
        try:
            false = worker.failures(killers, 1800.0)
        finally:
            worker.close()
        for number, result in enumerate(self.results):
            if result.outcome == KILLED and result.by in false:
                click.echo(f"fails without a mutant: {result.by}")
                self.results[number] = Result(result.site, result.change)
        write(self.results)

    def _news(self) -> list[tuple[str, Result]]:
        return [(before.outcome, now) for before, now in self.repeated]


def _named(result: Result) -> str:
    return f"{result.site.path}:{result.site.scope} [{result.site.kind}] {result.change}"


def _chosen(results: Sequence[Result], options: argparse.Namespace) -> list[int]:
    """Return the numbers of the mutants to run; those that were not run yet come first."""
    wanted = [KILLED, NOT_RUN, *([SURVIVED] if options.survivors else [])]
    if options.new:
        wanted = [NOT_RUN]
    numbers = [
        number
        for number, result in enumerate(results)
        if result.outcome in wanted and result.site.path.startswith(options.only)
    ]
    random.Random(options.seed).shuffle(numbers)
    if options.sample:
        numbers = numbers[: options.sample]
    return sorted(numbers, key=lambda number: results[number].outcome != NOT_RUN)


def _report(run: Run) -> int:
    """Say what came of it; 1 if a smaller share was killed than was written down."""
    for before, now in run.repeated:
        if before.outcome == KILLED and now.outcome != KILLED:
            click.echo(f"no longer killed ({now.outcome}): {_named(before)}, by {before.by}")
    counted = Counter(result.outcome for result in run.results)
    click.echo(", ".join(f"{count} {outcome}" for outcome, count in sorted(counted.items())))
    written = [before for before, _ in run.repeated if before.outcome != NOT_RUN]
    known = [now for before, now in run.repeated if before.outcome != NOT_RUN]
    share, was = killed_share(known), killed_share(written)
    click.echo(f"killed {share:.1%} of those that were known, {was:.1%} written down")
    click.echo(f"killed {killed_share(run.results):.1%} of all that ran and can be noticed")
    return 1 if share < was else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", metavar="PATH", help="mutants of modules below it")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of them, by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--new", action="store_true", help="only those that were not run yet")
    parser.add_argument("--survivors", action="store_true", help="those that survived, too")
    parser.add_argument("--accept", action="store_true", help="write down what survives now")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e6, help="begin none after this")
    parser.add_argument("--seconds", type=float, default=240.0, help="of tests for a survivor")
    parser.add_argument("--killers", action="store_true", help="try killers without a mutant")
    parser.add_argument("--map", nargs="*", metavar="PART", help="gather the map of lines anew")
    parser.add_argument("--draw", action="store_true", help="draw the sample anew")
    parser.add_argument("--heirs", action="store_true", help="replace those that are gone")
    options = parser.parse_args()
    if options.draw:
        write(draw(Mutants(ROOT)))
        return 0
    if options.map is not None:
        for part in options.map or line_map.PARTS:
            line_map.gather(part, options.workers)
        return 0
    if not SAMPLE.exists():
        click.echo("there is no sample: draw one with --draw", err=True)
        return 2
    if options.heirs:
        write(inherited(read(), Mutants(ROOT)))
        return 0
    run = Run(read(), options)
    if options.killers:
        run.forget_false_kills(known=True)
        return 0
    if not run.lines:
        click.echo("There is no map of lines: only known killers run. ARGS=--map gathers one.")
    run.over(_chosen(run.results, options), options.workers)
    run.forget_false_kills(known=False)
    return _report(run)


if __name__ == "__main__":
    sys.exit(main())
