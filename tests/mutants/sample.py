"""The sample of mutants: how it is drawn, where each is now, and the file of their results.

The sample is drawn with a fixed seed, so many from each area, and written down once. From then on
the file is what counts: `find` looks each of its mutants up in the code of the day.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path

from tests.mutants.sites import Mutant, Site, mutants_of

SEED = 35
SAMPLE = Path(__file__).with_name("sample.json")
# What is drawn from each: an area has a share of its own, so that a small one is judged too.
AREAS: dict[str, tuple[int, tuple[str, ...]]] = {
    "drain": (
        80,
        (
            "cachetier/drain/upload",
            "cachetier/drain/publish",
            "cachetier/drain/serve",
            "cachetier/drain/schedule",
            "cachetier/drain/worker.py",
        ),
    ),
    "catalog": (
        80,
        ("cachetier/local/catalog", "cachetier/local/store.py", "cachetier/local/recovery.py"),
    ),
    "restore": (40, ("cachetier/restore",)),
    "ingest": (30, ("cachetier/ingest",)),
    "objects": (
        40,
        (
            "cachetier/objects",
            "cachetier/drain/upload/objects.py",
            "cachetier/model/superseding.py",
            "cachetier/model/objects.py",
            "cachetier/model/cluster_order.py",
        ),
    ),
    "steps": (30, ("cachetier/steps", "cachetier/model")),
}
# Pace and figures: a change there makes nothing wrong, only slower or shown otherwise.
LEFT_OUT = (
    "cachetier/drain/serve/eta.py",
    "cachetier/drain/serve/stats.py",
    "cachetier/drain/serve/stderr_relay.py",
    "cachetier/drain/upload/compression_",
    "cachetier/drain/upload/stopwatch.py",
    "cachetier/local/catalog/schema.py",  # migrations: fixed once they are released
    "cachetier/model/bandwidth.py",
    "cachetier/model/compression.py",
    "cachetier/model/concurrency.py",
    "cachetier/model/pace.py",
)
NOT_RUN, KILLED, SURVIVED, GONE = "not run", "killed", "survived", "gone"


@dataclass(frozen=True)
class Result:
    """A mutant of the sample and what came of it.

    `by` is the test that killed it, or why it survives: a word, then a reason.
    """

    site: Site
    change: str
    outcome: str = NOT_RUN
    by: str = ""


class Mutants:
    """Every mutant of the code of a tree, found by its site."""

    def __init__(self, root: Path) -> None:
        self.texts = {
            path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
            for path in sorted((root / "cachetier").rglob("*.py"))
        }
        self._at: dict[Site, Mutant] = {}
        self._in_scope: defaultdict[tuple[str, str, str], list[Mutant]] = defaultdict(list)
        self._anywhere: defaultdict[tuple[str, str], list[Mutant]] = defaultdict(list)
        for path, text in self.texts.items():
            for mutant in mutants_of(path, text):
                site = mutant.site
                self._at[site] = mutant
                self._in_scope[site.scope, site.statement, site.kind].append(mutant)
                self._anywhere[site.statement, site.kind].append(mutant)

    def __iter__(self) -> Iterator[Mutant]:
        return iter(self._at.values())

    def find(self, result: Result) -> Mutant | None:
        """Return the mutant of this site, wherever its statement is now; None if it is gone.

        The same place first, then a function of the same qualified name in any module, then the
        statement anywhere in its area. Among equal ones it has to be the same change, by number if
        it can be.
        """
        site, area = result.site, area_of(result.site.path)
        here = self._at.get(site)
        if here is not None and here.change == result.change:
            return here
        for found in (
            [each for each in self._in_scope_of(site) if each.site.path == site.path],
            self._in_scope_of(site),
            [each for each in self._anywhere_of(site) if area_of(each.site.path) == area],
        ):
            same = [each for each in found if each.change == result.change]
            if same:
                numbered = [each for each in same if each.site.number == site.number]
                return (numbered or same)[0]
        return None

    def heir(self, gone: Result, taken: Collection[Site]) -> Mutant | None:
        """Return the mutant of the same kind and area whose statement reads most like a gone one.

        Of the same function or module one wins over another, and so does the same change.
        """
        site, area = gone.site, area_of(gone.site.path)

        def likeness(mutant: Mutant) -> float:
            other = mutant.site
            same = SequenceMatcher(None, site.statement, other.statement, autojunk=False).ratio()
            nearer = 0.3 * (other.scope == site.scope) + 0.1 * (other.path == site.path)
            return same + nearer + 0.3 * (mutant.change == gone.change)

        candidates = [
            each
            for each in self
            if each.site.kind == site.kind
            and each.site not in taken
            and area_of(each.site.path) == area
        ]
        return max(candidates, key=likeness, default=None)

    def _anywhere_of(self, site: Site) -> list[Mutant]:
        return self._anywhere.get((site.statement, site.kind), [])

    def _in_scope_of(self, site: Site) -> list[Mutant]:
        return self._in_scope.get((site.scope, site.statement, site.kind), [])


def area_of(path: str) -> str | None:
    """Return the area that a module belongs to: the one that names it most exactly."""
    if path.startswith(LEFT_OUT):
        return None
    found = [
        (len(prefix), area)
        for area, (_, prefixes) in AREAS.items()
        for prefix in prefixes
        if path == prefix or path.startswith(f"{prefix}/")
    ]
    return max(found)[1] if found else None


def draw(mutants: Iterable[Mutant], seed: int = SEED) -> list[Result]:
    """Return the sample: of each area its number, at most one of a statement."""
    by_area: defaultdict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        area = area_of(mutant.site.path)
        if area:
            by_area[area].append(mutant)
    drawn = []
    for area, (count, _) in AREAS.items():
        chance = random.Random(f"{seed} {area}")
        statements: set[tuple[str, str, str]] = set()
        taken: list[Mutant] = []
        for mutant in chance.sample(by_area[area], len(by_area[area])):
            site = mutant.site
            statement = (site.path, site.scope, site.statement)
            if statement not in statements and len(taken) < count:
                statements.add(statement)
                taken.append(mutant)
        drawn += [Result(each.site, each.change) for each in taken]
    return sorted(drawn, key=lambda result: (result.site.path, result.site.scope))


def read(path: Path = SAMPLE) -> list[Result]:
    rows = json.loads(path.read_text(encoding="utf-8"))
    return [Result(Site(**row["site"]), row["change"], row["outcome"], row["by"]) for row in rows]


def write(results: Sequence[Result], path: Path = SAMPLE) -> None:
    text = json.dumps([asdict(result) for result in results], indent=1)
    path.write_text(f"{text}\n", encoding="utf-8")


def inherited(results: Iterable[Result], mutants: Mutants) -> list[Result]:
    """Return the sample with an heir for each mutant whose statement is gone.

    The heir of a killed one counts as killed until it is run: the share may not fall.
    """
    places = [(result, mutants.find(result)) for result in results]
    taken = {found.site for _, found in places if found is not None}
    sample = []
    for result, found in places:
        heir = mutants.heir(result, taken) if found is None else None
        if heir is None:
            sample.append(result)
            continue
        taken.add(heir.site)
        outcome, by = (KILLED, result.by) if result.outcome == KILLED else (NOT_RUN, "")
        sample.append(Result(heir.site, heir.change, outcome, by))
    return sample


def killed_share(results: Iterable[Result]) -> float:
    """Return the share of killed ones among those that ran and could have been noticed."""
    outcomes = [
        result.outcome
        for result in results
        if result.outcome in (KILLED, SURVIVED) and not result.by.startswith("equivalent")
    ]
    return outcomes.count(KILLED) / len(outcomes) if outcomes else 1.0


def kept(before: Result, now: Result, *, accept: bool = False) -> Result:
    """Return what to write down of a mutant: a killed one stays killed, unless `accept` is set."""
    if before.outcome == KILLED and now.outcome != KILLED and not accept:
        return before
    if before.outcome == SURVIVED and now.outcome == SURVIVED:
        return replace(now, by=before.by)  # the reason that somebody wrote
    return now
