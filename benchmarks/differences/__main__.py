"""``python -m benchmarks.differences DIRECTORY``: train, measure, print the tables of the note.

States that lie in ``DIRECTORY`` already are taken as they are.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.differences.encoding import MINUS, PRESENT, XOR, Stored, stored
from benchmarks.scratch import ROOT

TRAININGS = {"language": ("from scratch", "fine-tuned"), "digits": ("vision",)}
KINDS = ("fp32 weights", "bf16 weights", "exp_avg", "exp_avg_sq")
PAIRS = ((100, 101), (100, 110), (100, 200), (100, 600), (500, 501), (500, 510), (500, 600))
LINKS = {"50 MB/s": 50e6, "500 MB/s": 500e6}
RAW = Stored(1.0, 0.0)


@dataclass(frozen=True, slots=True)
class Shard:
    """One kind of one step, beside the step before it, in each way."""

    run: str
    kind: str
    before: int
    after: int
    size_bytes: int
    ways: dict[str, Stored]

    def ratio(self, names: Iterable[str]) -> float:
        """Return the least that any of ``names`` stores, raw bytes at most."""
        return min([1.0, *(self.ways[name].ratio for name in names)])

    def seconds(self, names: Iterable[str], link: float) -> float:
        """Return the least seconds a raw byte takes by any of ``names``, or raw."""
        return min([RAW.seconds(link), *(self.ways[name].seconds(link) for name in names)])


def main(directory: Path) -> None:
    for training, runs in TRAININGS.items():
        if not all((directory / run).exists() for run in runs):
            command = [sys.executable, "-m", "benchmarks.differences.training"]
            subprocess.run([*command, str(directory), training], cwd=ROOT, check=True)
    shards = [
        shard
        for runs in TRAININGS.values()
        for run in runs
        for before, after in PAIRS
        for shard in measured(directory / run, before, after)
    ]
    (directory / "found.json").write_text(json.dumps([asdict(shard) for shard in shards], indent=1))
    print_sizes(shards)
    print_savings(shards)
    print_steps(shards)
    print_speeds(shards)


def measured(directory: Path, before: int, after: int) -> list[Shard]:
    """Return all kinds of the step ``after``."""
    found = []
    for kind in KINDS:
        size = 2 if kind.startswith("bf16") else 4
        old, new = (directory / f"{kind},{step},{size}.state" for step in (before, after))
        data = new.read_bytes()
        ways = stored(data, old.read_bytes(), size)
        found.append(Shard(directory.name, kind, before, after, len(data), ways))
    return found


def print_sizes(shards: Sequence[Shard]) -> None:
    """Print what each way stores of each kind, by steps apart: the median of runs and pairs."""
    names = (*PRESENT, *XOR, *MINUS)
    print_head("kind", "steps apart", *names)
    by_distance: dict[tuple[str, int], list[Shard]] = defaultdict(list)
    for shard in shards:
        by_distance[shard.kind, shard.after - shard.before].append(shard)
    for (kind, apart), group in sorted(by_distance.items()):
        cells = [f"{median(one.ways[name].ratio for one in group):.3f}" for name in names]
        print(f"| {kind} | {apart} |", " | ".join(cells), "|")


def print_savings(shards: Sequence[Shard]) -> None:
    """Print what differences take off the best present mode: bytes, then time to durable."""
    print_head("run", "kind", "xor", "minus", "xor, far", "xor, 50 MB/s", "xor, 500 MB/s")
    runs = list(dict.fromkeys(shard.run for shard in shards))
    for run in [*runs, ""]:
        for kind in KINDS:
            group = [one for one in shards if run in ("", one.run) and one.kind == kind]
            far = [one for one in group if one.after - one.before >= 100]
            shares = [
                [1 - one.ratio(XOR) / one.ratio(PRESENT) for one in group],
                [1 - one.ratio(MINUS) / one.ratio(PRESENT) for one in group],
                [1 - one.ratio(XOR) / one.ratio(PRESENT) for one in far],
                *(
                    [1 - one.seconds(XOR, link) / one.seconds(PRESENT, link) for one in group]
                    for link in LINKS.values()
                ),
            ]
            print(
                f"| {run or 'all'} | {kind} |", " | ".join(f"{median(s):.0%}" for s in shares), "|"
            )


def print_steps(shards: Sequence[Shard]) -> None:
    """Print whole steps: present modes, XOR everywhere, XOR for the shards where it is smaller."""
    print_head(
        "run", "steps", "present", "xor", "xor where smaller", "saves", *LINKS, "minus saves"
    )
    steps: dict[tuple[str, int, int], list[Shard]] = defaultdict(list)
    for shard in shards:
        steps[shard.run, shard.before, shard.after].append(shard)
    all_saved: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for (run, before, after), kinds in steps.items():
        whole = sum(one.size_bytes for one in kinds)
        either = (*PRESENT, *XOR)
        ratios = [
            sum(one.ratio(names) * one.size_bytes for one in kinds) / whole
            for names in (PRESENT, XOR, either)
        ]
        saved = [1 - ratios[2] / ratios[0]]
        for link in LINKS.values():
            now, then = (
                sum(one.seconds(names, link) * one.size_bytes for one in kinds)
                for names in (PRESENT, either)
            )
            saved.append(1 - then / now)
        least = sum(one.ratio((*PRESENT, *MINUS)) * one.size_bytes for one in kinds) / whole
        saved.append(1 - least / ratios[0])
        for name in ("all", "far" if after - before >= 100 else "near", run):
            all_saved[name].append((*ratios, *saved))
        print_row(f"{run} | {before} to {after}", (*ratios, *saved))
    for name, rows in all_saved.items():
        print_row(
            f"{name} | median of {len(rows)}", [median(each) for each in zip(*rows, strict=True)]
        )


def print_head(*names: str) -> None:
    print("\n|", " | ".join(names), "|")
    print("|---" * len(names) + "|")


def print_row(head: str, figures: Sequence[float]) -> None:
    cells = [f"{each:.3f}" for each in figures[:3]] + [f"{each:.1%}" for each in figures[3:]]
    print(f"| {head} |", " | ".join(cells), "|")


def print_speeds(shards: Sequence[Shard]) -> None:
    """Print the seconds of one thread for each raw GiB."""
    names = [name for name in shards[0].ways if name != "block copies"]
    print_head("kind", *names)
    for kind in KINDS:
        group = [one for one in shards if one.kind == kind]
        cells = [median(one.ways[name].seconds_per_byte for one in group) * 2**30 for name in names]
        print(f"| {kind} |", " | ".join(f"{each:.1f}" for each in cells), "|")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
