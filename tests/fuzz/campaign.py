"""One campaign: a service is started, fuzzed at both doors beside an honest client, and judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cachetier.testing.s3_endpoint import S3Endpoint
from tests.fuzz.doors import Tally, fuzz
from tests.fuzz.honest import Account
from tests.fuzz.recording import DOORS, Exchange, record
from tests.fuzz.target import Figures, Target, assert_within_the_cap, fuzzed, honest_client

WARM_UP = range(-300, 0)  # mutants of every campaign: pools and caches fill before it is measured

Recorded = dict[str, Sequence[Exchange]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a campaign that found nothing."""

    tallies: dict[str, Tally]
    before: Figures
    after: Figures
    peak_bytes: int
    honest: Account

    @property
    def gained_bytes(self) -> int:
        return max(0, self.after.resident_bytes - self.before.resident_bytes)

    @property
    def gained_files(self) -> int:
        return max(0, self.after.files - self.before.files)

    def __str__(self) -> str:
        lines = [f"{door}: {tally}" for door, tally in self.tallies.items()]
        peak = f"{self.peak_bytes >> 20} MiB at its peak"
        lines.append(f"serve: {self.before} before, {self.after} after, {peak}")
        honest = f"{self.honest.puts} puts, {self.honest.reads} reads, nothing lost"
        worst = f"{self.honest.worst_seconds * 1000:.0f} ms at worst ({self.honest.worst})"
        lines.append(f"honest client: {honest}, {worst}")
        return "\n".join(lines)


def recorded() -> Recorded:
    """Return the traffic that mutants are made of."""
    return {door: record(door) for door in DOORS}


def campaign(root: Path, remote: S3Endpoint, traffic: Recorded, seed: int, number: int) -> Outcome:
    """Send ``number`` mutants of ``seed`` to each door of a service of its own.

    Raises:
        AssertionError: What was found; with how to replay it, where one request suffices.
    """
    # A mutant that has the node left is no defect, and the honest client could save no more.
    traffic = {
        door: [each for each in exchanges if "leave" not in each.name]
        for door, exchanges in traffic.items()
    }
    with fuzzed(root, remote) as target:
        with honest_client(target) as honest:
            warm = fuzz(target, traffic, 0, WARM_UP)
            before = target.figures()
            tallies = fuzz(target, traffic, seed, range(number))
            _assert_nothing_was_found((*warm.values(), *tallies.values()))
        after = target.calmed(before)
        outcome = Outcome(tallies, before, after, target.peak_bytes(), honest)
        _assert_nothing_stays(target, outcome)
    return outcome


def _assert_nothing_was_found(tallies: Sequence[Tally]) -> None:
    found = [failure for tally in tallies for failure in tally.failures]
    assert not found, "\n".join(found)


def _assert_nothing_stays(target: Target, outcome: Outcome) -> None:
    assert not outcome.honest.lost, outcome.honest.lost
    assert not outcome.after.has_grown(outcome.before), str(outcome)
    assert not (left := target.open_data_files()), f"staged, and nobody's: {left}"
    assert_within_the_cap(outcome.peak_bytes)
