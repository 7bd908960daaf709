"""Find the published steps, from the manifests at all remotes together.

The durable remote's manifest is the truth about which save is *the* step. What a replica says
counts where that one is silent: it cannot be reached, or has published nothing there yet. A step
that was deleted or replaced durably is not brought back by a replica that has not heard of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cachetier_client.bucket_format.documents import Manifest, ManifestState, manifest_of

from cachetier.errors import IntegrityError, RemoteError
from cachetier.local.catalog import saves
from cachetier.local.store import Store
from cachetier.model.lifecycle import SaveState
from cachetier.remote.bucket import Remote
from cachetier.restore.knowledge import Knowledge

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class FoundStep:
    """A published step: its manifest, and the remotes that have published that very save.

    ``durable`` is False where only replicas have, as far as anybody can tell now.
    """

    manifest: Manifest
    durable: bool
    replicas: tuple[tuple[Remote, Manifest], ...] = ()


def counts(replica: Manifest, durable: Manifest | None) -> bool:
    """Return whether a step published at a replica may be read, given the durable manifest.

    ``durable`` is None where there is none.
    """
    if durable is None or durable.state is ManifestState.CLAIMED:
        return True
    if durable.save_id == replica.save_id:
        return durable.state is ManifestState.PUBLISHED
    if durable.state is ManifestState.PUBLISHED:
        return False
    # Another save of the step was deleted: this one counts unless that had replaced it.
    return replica.save_id not in durable.replaces


def _is_published(manifest: Manifest) -> bool:
    return manifest.state is ManifestState.PUBLISHED


class PublishedSteps:
    """Looks for published steps at all remotes. Thread-safe.

    What it sees at the durable one goes into ``knowledge``.
    """

    def __init__(
        self,
        store: Store,
        durable: Remote,
        replicas: Sequence[Remote] = (),
        *,
        knowledge: Knowledge,
    ) -> None:
        self._store = store
        self._durable = durable
        self._remotes = (durable, *replicas)
        self.knowledge = knowledge
        self.absences = knowledge.absences

    # --- the durable remote ----------------------------------------------------------------------

    def durable(self, run: str, step: int) -> Manifest | None:
        """Return the manifest of a durable step; None if it was deleted here already.

        Raises:
            RemoteError: The durable remote cannot be asked.
        """
        seen = self.knowledge.manifest(run, step)
        if seen is None or seen.state is not ManifestState.PUBLISHED:
            return None
        return None if self._deleted_here(seen) else seen

    def durable_steps(self, run: str, besides: Collection[int] = ()) -> Iterator[Manifest]:
        """Yield the durable steps of a run but for ``besides``, the newest first.

        Raises as ``durable`` does.
        """
        for step in reversed(self._durable.bucket.steps(run)):
            manifest = None if step in besides else self.durable(run, step)
            if manifest is not None:
                yield manifest

    # --- any remote ------------------------------------------------------------------------------

    def find(self, run: str, step: int) -> FoundStep | None:
        """Return the step as it can be restored from the remotes that answer.

        One that could not be reached lately is asked only if the others do not have it.

        Raises:
            RemoteError: No remote that answers has it, and one does not answer.
        """
        failed: list[RemoteError] = []
        found: FoundStep | None = None
        for remotes in self._rounds():
            found, failed = self._ask(run, step, remotes)
            if found is not None:
                break
        if found is None and failed:
            raise failed[0]
        return None if found is None or self._deleted_here(found.manifest) else found

    def steps(self, run: str) -> Iterator[FoundStep]:
        """Yield the steps published at any remote that answers, the newest first.

        Raises:
            RemoteError: No remote that answers has any, and one does not answer.
        """
        failed: list[RemoteError] = []
        for remotes in self._rounds():
            steps, failed = self._listed(run, remotes)
            any_found = False
            for step in sorted(steps, reverse=True):
                try:
                    each = self.find(run, step)
                except RemoteError as error:  # it cannot be restored now
                    failed.append(error)
                    continue
                if each is not None:
                    any_found = True
                    yield each
            if any_found:
                return
        if failed:  # a job must not begin again because its steps cannot be seen
            raise failed[0]

    def branches(self, run: str) -> set[str]:
        """Return the branches of a run that the remotes that answer know.

        Raises:
            RemoteError: No remote that answers knows any, and one does not answer.
        """
        failed: list[RemoteError] = []
        found: set[str] = set()
        for remote in self._remotes:
            nothing: set[str] = set()
            found |= self._try(remote, lambda at: at.bucket.branches(run), failed, nothing)
        if failed and not found:
            raise failed[0]
        return found

    def _rounds(self) -> list[Sequence[Remote]]:
        """Return whom to ask, and whom then if those have nothing."""
        present = [remote for remote in self._remotes if not self.absences.away(remote.name)]
        if len(present) in (0, len(self._remotes)):
            return [self._remotes]
        return [present, self._remotes]

    def _listed(self, run: str, remotes: Sequence[Remote]) -> tuple[set[int], list[RemoteError]]:
        failed: list[RemoteError] = []
        found: set[int] = set()
        for remote in remotes:
            nothing: list[int] = []
            found |= set(self._try(remote, lambda at: at.bucket.steps(run), failed, nothing))
        return found, failed

    def _ask(
        self, run: str, step: int, remotes: Sequence[Remote]
    ) -> tuple[FoundStep | None, list[RemoteError]]:
        """Return what ``remotes`` say together, and how those failed that do not answer."""
        failed: list[RemoteError] = []
        read = self._manifest_at(run, step)
        seen = {
            remote.name: (remote, manifest)
            for remote in remotes
            if (manifest := self._try(remote, read, failed, None)) is not None
        }
        durable = seen.pop(self._durable.name, (self._durable, None))[1]
        best = durable if durable is not None and _is_published(durable) else None
        replicas: list[tuple[Remote, Manifest]] = []
        for remote, manifest in seen.values():
            if _is_published(manifest) and counts(manifest, durable):
                best = best or manifest
                if manifest.save_id == best.save_id:
                    replicas.append((remote, manifest))
        if best is None:
            return None, failed
        return FoundStep(best, durable is best, tuple(replicas)), failed

    # --- asking ----------------------------------------------------------------------------------

    def _manifest_at(self, run: str, step: int) -> Callable[[Remote], Manifest | None]:
        def read(remote: Remote) -> Manifest | None:
            if remote is self._durable:
                return self.knowledge.manifest(run, step)
            try:
                seen = remote.bucket.manifest(run, step)
            except IntegrityError:
                return None  # a replica's damage is no reason not to read the others
            return manifest_of(seen)

        return read

    def _try(
        self,
        remote: Remote,
        ask: Callable[[Remote], Result],
        failed: list[RemoteError],
        otherwise: Result,
    ) -> Result:
        """Ask ``remote``; add to ``failed`` if it does not answer."""
        try:
            answer = ask(remote)
        except RemoteError as error:
            self.absences.note(remote.name)
            failed.append(error)
            return otherwise
        self.absences.forget(remote.name)
        return answer

    def _deleted_here(self, manifest: Manifest) -> bool:
        run, step, save_id = manifest.run, manifest.step, manifest.save_id
        save = self._store.read(saves.save_named, run, step, save_id)
        return save is not None and save.state is SaveState.DELETED
