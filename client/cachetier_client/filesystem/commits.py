"""The commits as the service knows them: those of a run, and which one has a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from cachetier_client.client import Client
from cachetier_client.errors import NotFoundError, RemoteError
from cachetier_client.filesystem.units import CommitRules
from cachetier_client.identity.addresses import Address
from cachetier_client.identity.places import Place, place_of
from cachetier_client.results import ShardInfo, StepInfo

Found = TypeVar("Found")
Level = Literal["replicated"] | None


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit as the service describes it."""

    place: Place
    info: StepInfo

    @property
    def is_whole(self) -> bool:
        """Whether it can be restored, from here or a remote."""
        return bool(self.info.levels)


@dataclass(frozen=True, slots=True)
class Commits:
    """Looks commits up, each once for one call of the file system, or one walk.

    Attributes:
        client: Who is asked.
        rules: How paths are understood.
        timeout_seconds: Of each call.
    """

    client: Client
    rules: CommitRules
    timeout_seconds: float
    _known: dict[tuple[str, int], StepInfo | None] = field(default_factory=dict)
    _listed: dict[tuple[str, str, Level], list[Commit]] = field(default_factory=dict)

    def runs(self) -> list[str]:
        """Return the runs that this node knows anything of, ascending."""
        names = self.client.runs(timeout_seconds=self.timeout_seconds)
        return sorted({name.partition("~")[0] for name in names})

    def of_run(self, run: str, path: tuple[str, ...] = ()) -> list[Commit]:
        """Return the commits of a run and its branches, of this node and the remotes.

        In the order in which readers see them: files alone, folders, what lies beside these. Of the
        run's own steps, each of which is a question to the bucket, those alone that have ``path``
        in them. While the remotes are away these are this node's; if it has none, the error is
        raised.
        """
        found: dict[Place, Commit] = {}
        failed: RemoteError | None = None
        for level in (None, "replicated"):
            for ask in (self._steps, self._branches):
                try:
                    listed = ask(run, level, path)
                except RemoteError as error:
                    failed = error
                    continue
                for commit in listed:
                    if commit.place not in found or not found[commit.place].is_whole:
                        found[commit.place] = commit
        if failed is not None and not found:
            raise failed
        return sorted(found.values(), key=lambda commit: commit.place.rank)

    def at(self, place: Place) -> StepInfo | None:
        """Return the commit that lies at a place, with its shards; None if there is none."""
        key = place.run, place.step
        if key not in self._known:
            try:
                self._known[key] = self.client.step(*key, timeout_seconds=self.timeout_seconds)
            except NotFoundError:
                self._known[key] = None
        return self._known[key]

    def with_file(self, address: Address) -> Iterator[tuple[Place, str]]:
        """Yield the places that may have a file, and what it is called there: likeliest first."""
        assert address.run is not None
        path = address.run, *address.path
        tried = self.rules.likely_places(address)
        for place in tried:
            name = place.name_of(path)
            if name is not None:
                yield place, name
        for commit in self.of_run(address.run, address.path):
            name = commit.place.name_of(path)
            if name is not None and commit.place not in tried:
                yield commit.place, name

    def first(self, address: Address, ask: Callable[[Place, str], Found | None]) -> Found | None:
        """Return what ``ask`` finds of a file at the first place that has it; None if none does.

        While the remotes are away what is here counts; if nothing is, the error is raised.
        """
        failed: RemoteError | None = None
        for place, name in self.with_file(address):
            try:
                found = ask(place, name)
            except RemoteError as error:
                failed = error
                continue
            if found is not None:
                return found
        if failed is not None:
            raise failed
        return None

    def shard(self, address: Address) -> tuple[Commit, ShardInfo] | None:
        """Return a stored file and its commit, or None if there is none."""

        def ask(place: Place, name: str) -> tuple[Commit, ShardInfo] | None:
            info = self.at(place)
            shards = info.shards if info is not None else ()
            shard = next((each for each in shards if each.name == name), None)
            return (Commit(place, info), shard) if info is not None and shard is not None else None

        return self.first(address, ask)

    def touching(self, address: Address) -> list[Commit]:
        """Return the commits that lie at a path or in it, or whose files do.

        A folder that is named outright shows what it has, whole or not.
        """
        assert address.run is not None
        path = address.run, *address.path
        depth = len(path)
        found = []
        for commit in self.of_run(address.run, address.path):
            parts = commit.place.parts
            shows = parts[:depth] == path and (commit.is_whole or len(parts) == depth)
            if shows or (path[: len(parts)] == parts and self._has_inside(commit, path)):
                found.append(commit)
        return found

    def _has_inside(self, commit: Commit, path: tuple[str, ...]) -> bool:
        info, name = self.at(commit.place), commit.place.name_of(path)
        shards = info.shards if info and name else ()
        return any(f"{shard.name}/".startswith(f"{name}/") for shard in shards)

    def _steps(self, run: str, level: Level, path: tuple[str, ...]) -> list[Commit]:
        if not path:
            return self._listed_by(self.client.steps, run, level)
        step = self.rules.step_name.step_of(run, path[0])
        if step is None or level is None:  # one that is named is asked for once
            return []
        place = Place(run, step, (run, path[0]))
        info = self.at(place)
        return [Commit(place, info)] if info is not None else []

    def _branches(self, run: str, level: Level, _path: tuple[str, ...]) -> list[Commit]:
        return self._listed_by(self.client.branches, run, level)

    def _listed_by(
        self, ask: Callable[..., list[StepInfo]], run: str, level: Level
    ) -> list[Commit]:
        key = ask.__name__, run, level
        if key not in self._listed:
            found = ask(run, level, timeout_seconds=self.timeout_seconds)
            self._listed[key] = [
                Commit(place_of(each.run, each.step, self.rules.step_name), each) for each in found
            ]
        return self._listed[key]
