"""What the service knows of commits: those of a run, and which one has a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cachetier_client.client import Client
from cachetier_client.errors import NotFoundError
from cachetier_client.filesystem.units import Rules
from cachetier_client.identity.addresses import Address
from cachetier_client.identity.places import Place, place_of
from cachetier_client.results import ShardInfo, StepInfo


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
    """Looks commits up, each once for one call of the file system.

    Attributes:
        client: Who is asked.
        rules: How paths are understood.
        timeout_seconds: Of each call.
    """

    client: Client
    rules: Rules
    timeout_seconds: float
    _known: dict[tuple[str, int], StepInfo | None] = field(default_factory=dict)
    _listed: dict[tuple[str, str | None], list[Commit]] = field(default_factory=dict)

    def runs(self) -> list[str]:
        """Return the runs that this node knows anything of, ascending."""
        names = self.client.runs(timeout_seconds=self.timeout_seconds)
        return sorted({name.partition("~")[0] for name in names})

    def of_run(self, run: str) -> list[Commit]:
        """Return the commits of a run and its branches, of this node and the remotes.

        While the remotes are away these are this node's; if it has none, the error is raised.
        """
        found = {commit.place: commit for commit in self._list(run, None)}
        for commit in self._list(run, "replicated"):
            if commit.place not in found or not found[commit.place].is_whole:
                found[commit.place] = commit
        return list(found.values())

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
        for commit in self.of_run(address.run):
            name = commit.place.name_of(path)
            if name is not None and commit.place not in tried:
                yield commit.place, name

    def shard(self, address: Address) -> tuple[Commit, ShardInfo] | None:
        """Return a stored file and its commit, or None if there is none."""
        for place, name in self.with_file(address):
            info = self.at(place)
            for shard in info.shards if info else ():
                if info and shard.name == name:
                    return Commit(place, info), shard
        return None

    def touching(self, address: Address) -> list[Commit]:
        """Return the commits that lie at a path or in it, or whose files do.

        A folder that is named outright shows what it has, whole or not.
        """
        assert address.run is not None
        path = address.run, *address.path
        depth = len(path)
        found = []
        for commit in self.of_run(address.run):
            parts = commit.place.parts
            shows = parts[:depth] == path and (commit.is_whole or len(parts) == depth)
            if shows or (path[: len(parts)] == parts and self._has_inside(commit, path)):
                found.append(commit)
        return found

    def _has_inside(self, commit: Commit, path: tuple[str, ...]) -> bool:
        info, name = self.at(commit.place), commit.place.name_of(path)
        shards = info.shards if info and name else ()
        return any(f"{shard.name}/".startswith(f"{name}/") for shard in shards)

    def _list(self, run: str, level: str | None) -> list[Commit]:
        if (run, level) not in self._listed:
            seconds = self.timeout_seconds
            found = self.client.steps(run, level, timeout_seconds=seconds)  # type: ignore[arg-type]
            found += self.client.branches(run, level, timeout_seconds=seconds)  # type: ignore[arg-type]
            self._listed[run, level] = [
                Commit(place_of(each.run, each.step, self.rules.step_name), each) for each in found
            ]
        return self._listed[run, level]
