"""Runs, steps and shards as a tree of folders and files.

A run's listing shows the steps that can be restored whole, from this node or a remote, and those
this process is writing. A step that is named outright shows the shards it has, whole or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cachetier_client.client import Client
from cachetier_client.errors import InvalidRequestError, NotFoundError
from cachetier_client.filesystem.files import Spool
from cachetier_client.filesystem.saves import FileSaves
from cachetier_client.identity.addresses import Address, StepName
from cachetier_client.results import ShardInfo, StepInfo

Entry = dict[str, Any]


class MissingFileError(NotFoundError, FileNotFoundError):
    """No such run, step or shard, as file systems say it."""

    code = NotFoundError.code


@dataclass(frozen=True, slots=True)
class Tree:
    """Looks things up.

    Attributes:
        saves: What this process is writing.
        step_name: How folders of steps are called.
        timeout_seconds: Of each call.
    """

    saves: FileSaves
    step_name: StepName
    timeout_seconds: float

    @property
    def _client(self) -> Client:
        return self.saves.client

    def path_of(self, address: Address) -> str:
        """Return the path of what ``address`` is about."""
        step = None if address.step is None else self.step_name.of(address.step)
        return "/".join(each for each in (address.run, step, address.name) if each is not None)

    def info(self, address: Address) -> Entry:
        """Describe a folder or a file.

        Raises:
            MissingFileError: There is none.
        """
        if address.run is None:
            return _folder("")
        if address.step is None:
            return self._run(address.run)
        if address.name is None:
            return self._step(address)
        return self._named(address)

    def entries(self, address: Address) -> list[Entry]:
        """Describe what lies in a folder, by name; a file is all that lies in itself.

        Raises:
            MissingFileError: There is no such folder or file.
        """
        if address.run is None:
            runs = self._client.runs(timeout_seconds=self.timeout_seconds)
            return [_folder(run) for run in sorted(runs)]
        if address.step is None:
            steps = self._steps(address.run)
            if not steps and not self.saves.is_made(address.run):
                raise missing(self.path_of(address))
            return list(steps.values())
        info = self.info(address)
        if info["type"] == "file":
            return [info]
        return self._inside(address)

    def shard(self, address: Address) -> tuple[StepInfo, ShardInfo]:
        """Return a stored shard and its step.

        Raises:
            MissingFileError: There is none.
        """
        found = self._found(address)
        for shard in found.shards if found else ():
            if found and shard.name == address.name:
                return found, shard
        raise missing(self.path_of(address))

    def sizes(self, address: Address) -> dict[str, int]:
        """Return the sizes of the shards of a step, by name; none where there is no step."""
        found = self._found(address) if address.step is not None else None
        return {shard.name: shard.size_bytes for shard in found.shards} if found else {}

    # --- runs and steps --------------------------------------------------------------------------

    def _run(self, run: str) -> Entry:
        if self.saves.is_made(run) or run in self._client.runs(
            timeout_seconds=self.timeout_seconds
        ):
            return _folder(run)
        if self._steps(run):
            return _folder(run)
        raise missing(run)

    def _steps(self, run: str) -> dict[int, Entry]:
        """Describe the steps that can be restored whole, ascending.

        While the remote is away these are this node's; without any, its error is raised.
        """
        here = self._client.steps(run, timeout_seconds=self.timeout_seconds)
        known = {each.step: each for each in here if each.levels}
        for each in self._client.steps(run, "replicated", timeout_seconds=self.timeout_seconds):
            known.setdefault(each.step, each)
        return {
            step: _folder(self.path_of(Address(run, step)), info)
            for step, info in sorted(known.items())
        }

    def _step(self, address: Address) -> Entry:
        assert address.run is not None and address.step is not None
        path, found = self.path_of(address), self._found(address)
        if found is not None and (found.shards or found.levels):
            return _folder(path, found)
        if self.saves.is_made(address.run, address.step):
            return _folder(path)
        raise missing(path)

    def _found(self, address: Address) -> StepInfo | None:
        assert address.run is not None and address.step is not None
        try:
            seconds = self.timeout_seconds
            return self._client.step(address.run, address.step, timeout_seconds=seconds)
        except NotFoundError:
            return None

    # --- shards ----------------------------------------------------------------------------------

    def _named(self, address: Address) -> Entry:
        """Describe a shard, a held file, or a folder that names of shards are in."""
        path = self.path_of(address)
        held = self.saves.held.get(_key(address))
        if held is not None:
            return _held(path, held)
        found = self._found(address)
        for shard in found.shards if found else ():
            if found and shard.name == address.name:
                return _file(path, found, shard)
        inside = f"{address.name}/"
        if found and any(shard.name.startswith(inside) for shard in found.shards):
            return _folder(path, found)
        raise missing(path)

    def _inside(self, address: Address) -> list[Entry]:
        found, step = self._found(address), Address(address.run, address.step)
        before = f"{address.name}/" if address.name else ""
        entries: dict[str, Entry] = {}
        for shard in found.shards if found else ():
            if not shard.name.startswith(before):
                continue
            here, _, deeper = shard.name.removeprefix(before).partition("/")
            path = f"{self.path_of(step)}/{before}{here}"
            assert found is not None
            entries[here] = _folder(path, found) if deeper else _file(path, found, shard)
        for name, spool in self._held_inside(address, before):
            entries[name] = _held(f"{self.path_of(step)}/{before}{name}", spool)
        return [entries[name] for name in sorted(entries)]

    def _held_inside(self, address: Address, before: str) -> Iterable[tuple[str, Spool]]:
        for (run, step, name), spool in list(self.saves.held.items()):
            rest = name.removeprefix(before)
            inside = (run, step) == (address.run, address.step) and name.startswith(before)
            if inside and "/" not in rest:
                yield rest, spool


@contextmanager
def missing_as_file(path: str) -> Iterator[None]:
    """Say what is not found inside as file systems do."""
    try:
        yield
    except NotFoundError as error:
        raise missing(path) from error


def missing(path: str) -> MissingFileError:
    """Return the error for something that is not there."""
    return MissingFileError(f"cachetier://{path} is not there")


def step_and_name(address: Address, path: str) -> tuple[str, int, str]:
    """Return run, step and name of a file's address; raise InvalidRequestError if it is none."""
    if address.run is None or address.step is None or address.name is None:
        raise InvalidRequestError(
            f"cachetier://{path} is not the address of a file",
            hint="Files are called like cachetier://run/1000/name.",
        )
    return address.run, address.step, address.name


def _key(address: Address) -> tuple[str, int, str]:
    return address.run or "", address.step or 0, address.name or ""


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
