"""Runs, commits and shards as a tree of folders and files.

A listing shows the commits that can be restored whole, from this node or a remote, and the folders
that this process has made. A commit's folder that is named outright shows the shards it has, whole
or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cachetier_client.errors import InvalidRequestError, NotFoundError
from cachetier_client.filesystem.commits import Commit, Commits
from cachetier_client.filesystem.files import Spool
from cachetier_client.filesystem.saves import FileSaves
from cachetier_client.identity.addresses import Address
from cachetier_client.identity.places import Place, folder_place
from cachetier_client.results import ShardInfo, StepInfo

Entry = dict[str, Any]


class MissingFileError(NotFoundError, FileNotFoundError):
    """No such run, folder or file, as file systems say it."""

    code = NotFoundError.code


@dataclass(frozen=True, slots=True)
class Tree:
    """Looks things up.

    Attributes:
        saves: What this process is writing.
        commits: What the service knows.
    """

    saves: FileSaves
    commits: Commits

    def info(self, address: Address) -> Entry:
        """Describe a folder or a file.

        Raises:
            MissingFileError: There is none.
        """
        if address.run is None:
            return _folder("")
        if (held := self.saves.held.get(_path(address))) is not None:
            return _held(address.text, held)
        asked = (self._file_at, self._folder_at)
        for ask in asked if _looks_like_a_file(address) else reversed(asked):
            if (found := ask(address)) is not None:
                return found
        raise missing(address.text)

    def entries(self, address: Address) -> list[Entry]:
        """Describe what lies in a folder, by name; a file is all that lies in itself.

        Raises:
            MissingFileError: There is no such folder or file.
        """
        if address.run is None:
            return [_folder(run) for run in self.commits.runs()]
        found: dict[str, Entry] = {}
        for commit in self.commits.touching(address):
            for entry in self._inside(commit, _path(address)):
                before = found.setdefault(entry["name"], entry)
                if before["type"] == "directory" and entry["type"] == "file":
                    found[entry["name"]] = entry
        for path, spool in list(self.saves.held.items()):
            if path[:-1] == _path(address):
                found["/".join(path)] = _held("/".join(path), spool)
        if not found:
            itself = self.info(address)
            return [itself] if itself["type"] == "file" else []
        return [found[name] for name in sorted(found, key=_by_number)]

    def shard(self, address: Address) -> tuple[Commit, ShardInfo]:
        """Return a stored file and its commit.

        Raises:
            MissingFileError: There is none.
        """
        found = self.commits.shard(address) if address.path else None
        if found is None:
            raise missing(address.text)
        return found

    def removable(self, addresses: Sequence[Address], *, recursive: bool) -> list[Place]:
        """Return the commits that go if some paths are removed: all files of each, or none.

        Raises:
            MissingFileError: There is no such thing.
            InvalidRequestError: One cannot be removed by itself.
        """
        found: dict[Place, Address] = {}
        for address in addresses:
            info = self.info(address)
            if info["type"] == "directory" and (not address.path or not recursive):
                raise InvalidRequestError(
                    f"cachetier://{address.text} cannot be removed as a whole",
                    hint="Remove folders below a run, one by one: fs.rm(path, recursive=True).",
                )
            commits = self.commits.touching(address)
            if info["type"] == "file" and "digest" in info:
                commits = [self.shard(address)[0]]
            found |= {commit.place: address for commit in commits}
        paths = [_path(address) for address in addresses]
        for place, address in found.items():
            if not self._is_covered(place, paths):
                raise InvalidRequestError(
                    f"cachetier://{address.text} cannot be removed without {place.path}, "
                    "which it was saved with",
                    hint=f"Remove all of it: fs.rm('cachetier://{place.path}', recursive=True).",
                )
        return list(found)

    def _is_covered(self, place: Place, paths: Sequence[tuple[str, ...]]) -> bool:
        """Return whether all files of a commit lie at one of ``paths``, or below."""
        if any(place.parts[: len(path)] == path for path in paths):
            return True
        info = self.commits.at(place)
        files = [(*place.folder, *shard.name.split("/")) for shard in info.shards] if info else []
        return all(any(file[: len(path)] == path for path in paths) for file in files)

    def _file_at(self, address: Address) -> Entry | None:
        found = self.commits.shard(address) if address.path else None
        return None if found is None else _file(address.text, found[0].info, found[1])

    def _folder_at(self, address: Address) -> Entry | None:
        """Describe a folder: of a commit, or that commits or names of shards are in."""
        assert address.run is not None
        if not address.path:
            known = self.saves.is_made((address.run,)) or address.run in self.commits.runs()
            return _folder(address.run) if known or self.commits.of_run(address.run) else None
        step_name = self.commits.rules.step_name
        if step_name.step_of(address.run, address.path[0]) is not None and len(address.path) == 1:
            info = self.commits.at(folder_place(address.run, address.path, step_name))
            if info is not None and (info.shards or info.levels):
                return _folder(address.text, info)
        path = _path(address)
        for commit in self.commits.touching(address):
            if commit.place.folder[: len(path)] == path or any(self._inside(commit, path)):
                return _folder(address.text, commit.info)
        return _folder(address.text) if self.saves.is_made(path) else None

    def _inside(self, commit: Commit, path: tuple[str, ...]) -> Iterator[Entry]:
        """Describe what of a commit shows in a folder."""
        place, depth = commit.place, len(path)
        if len(place.folder) > depth:
            yield _folder("/".join(place.folder[: depth + 1]), commit.info)
            return
        if place.folder == path and place.alone is not None:
            yield _alone(place.path, commit.info)
            return
        info = self.commits.at(place)
        for shard in info.shards if info else ():
            here = (*place.folder, *shard.name.split("/"))
            if here[:depth] == path and len(here) > depth and info is not None:
                text = "/".join(here[: depth + 1])
                yield _folder(text, info) if len(here) > depth + 1 else _file(text, info, shard)


def missing(path: str) -> MissingFileError:
    """Return the error for something that is not there."""
    return MissingFileError(f"cachetier://{path} is not there")


def checked_file(address: Address) -> Address:
    """Return a file's address; raise InvalidRequestError if it is none."""
    if not address.path:
        raise InvalidRequestError(
            f"cachetier://{address.text} is not the address of a file",
            hint="Name a file like this: cachetier://run/1000/name.",
        )
    return address


def _path(address: Address) -> tuple[str, ...]:
    assert address.run is not None
    return address.run, *address.path


def _looks_like_a_file(address: Address) -> bool:
    """Guess what to ask for first: names with a dot are files more often than not."""
    return bool(address.path) and "." in address.path[-1]


def _by_number(name: str) -> str:
    """Order names so that 9 comes before 10."""
    last = name.rsplit("/", 1)[-1]
    return last.zfill(16) if last.isdecimal() else last


def _folder(path: str, step: StepInfo | None = None) -> Entry:
    return {"name": path, "size": 0, "type": "directory", **_instants(step)}


def _file(path: str, step: StepInfo, shard: ShardInfo) -> Entry:
    return {
        "name": path,
        "size": shard.size_bytes,
        "type": "file",
        "digest": shard.digest,
        "rank": shard.rank,
        "state": shard.state,
        "save_id": step.save_id,
        **_instants(step),
    }


def _alone(path: str, step: StepInfo) -> Entry:
    size = {"size": step.size_bytes, "type": "file"}
    return {"name": path, **size, "save_id": step.save_id, **_instants(step)}


def _held(path: str, spool: Spool) -> Entry:
    return {"name": path, "size": spool.size_bytes, "type": "file", "state": "held"}


def _instants(step: StepInfo | None) -> Entry:
    """Return when a step began, and when it was last added to as far as anybody noted it."""
    if step is None or step.started_at is None:
        return {}
    last = step.sealed_at or step.published_at or step.started_at
    return {"created": _instant(step.started_at), "modified": _instant(last)}


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
