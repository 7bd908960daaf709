"""One step from files: what is stored already stays, the rest is copied, then it is sealed.

Where one process saves alone, the save's id is made of the files' names, sizes and times. So who
adopts the same files again, after a kill or at any time, learns from the service what it has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsIndex

from cachetier_client.adopt.rules import SaveRules
from cachetier_client.adopt.sources import (
    NOT_YET,
    TICK_SECONDS,
    SourceFile,
    copy_file,
    digest_of_file,
    files_of,
    save_id_of,
)
from cachetier_client.clock import Clock
from cachetier_client.errors import (
    InvalidNameError,
    InvalidRequestError,
    NotFoundError,
    OpenForWritingError,
    RemoteError,
    StepPublishedError,
    WaitError,
)
from cachetier_client.identity import save_ids
from cachetier_client.identity.names import checked_step
from cachetier_client.identity.ranks import RankInfo
from cachetier_client.io.aligned import BlockPool
from cachetier_client.results import AckLevel, Receipt, ShardInfo, StepInfo

if TYPE_CHECKING:
    from cachetier_client.calls.caller import ServiceCalls
    from cachetier_client.client import Client


def adopted(  # noqa: PLR0913 - the call's own
    client: Client,
    caller: ServiceCalls,
    path: str | os.PathLike[str],
    run: str | None,
    step: SupportsIndex | None,
    place: RankInfo,
    save_id: str | None,
    overwrite: bool,
    origin: str | None,
    ack: AckLevel,
    timeout_seconds: float,
) -> list[Receipt]:
    """Adopt ``path``; see ``Client.adopt``."""
    which = os.path.abspath(path)
    if step is None and (step := SaveRules().step_of(os.path.basename(which))) is None:
        raise InvalidNameError(
            f"the name of {which} does not contain a step",
            hint="Pass step=, or call it like checkpoint-500.",
        )
    save_id = save_id or os.environ.get("CACHETIER_SAVE_ID")
    if not save_id and place.world_size > 1:
        save_id = save_ids.THIS_PROCESS.derive(os.environ, place)
    return FolderAdoption(
        client=client,
        pool=caller.workers.blocks,
        clock=caller.clock,
        path=which,
        run=caller.run_of(run),
        step=checked_step(step),
        place=place,
        save_id=save_id,
        origin=origin or os.path.basename(which),
        overwrite=overwrite,
        ack=ack,
        timeout_seconds=timeout_seconds,
    ).receipts()


@dataclass(frozen=True, slots=True)
class FolderAdoption:
    """A step's files at ``path``, to be put and sealed by ``client``.

    ``save_id`` None: made of the files and of ``origin``, the folder's name wherever it lies now.
    """

    client: Client
    pool: BlockPool
    clock: Clock
    path: str
    run: str
    step: int
    place: RankInfo
    save_id: str | None
    origin: str
    overwrite: bool
    ack: AckLevel
    timeout_seconds: float

    def receipts(self) -> list[Receipt]:
        """Put what is not stored yet, and seal; see ``Client.adopt``."""
        try:
            return self._adopted()
        except OSError as error:
            where = error.filename or self.path
            raise InvalidRequestError(
                f"cannot read {where}: {error.strerror}",
                hint="Name a finished file or folder that this user can read.",
            ) from error

    def _adopted(self) -> list[Receipt]:
        files = files_of(self.path)
        self.clock.sleep(TICK_SECONDS)
        save_id = self.save_id or save_id_of(self.origin, files)
        try:
            known = self.client.step(self.run, self.step)
        except (NotFoundError, RemoteError):  # not here; a bucket that is away is asked in the end
            return self._put(files, save_id, {}, overwrite=self.overwrite)
        same_save = known.save_id == save_id
        stored = self._stored(files, known, same_save=same_save)
        whole = same_save or known.world_size == 1 or known.published_at is not None
        if self.place.rank in known.ranks and whole and len(stored) == len(files):
            return list(stored.values())
        if same_save:
            return self._put(files, save_id, stored, overwrite=self.overwrite)
        origin = save_id_of(self.origin, ()).rpartition("-")[0]
        is_ours = self.save_id is None and known.save_id.rpartition("-")[0] == origin
        if known.ranks and not is_ours and not self.overwrite:
            raise StepPublishedError(
                f"step {known.step} exists already, from another save ({known.save_id})",
                hint=f"Adopt {self.path} as another run or step, or pass overwrite=True.",
            )
        return self._put(files, save_id, {}, overwrite=True)

    def _stored(
        self, files: Sequence[SourceFile], known: StepInfo, *, same_save: bool
    ) -> dict[str, Receipt]:
        """Return the receipts of files whose bytes a shard has already.

        An id made of the files says so. Else the digest does, for which a file is read: only where
        nothing speaks against it, as the save is the same, or all files are there in their size.
        """
        held = {each.name: each for each in known.shards if each.rank == self.place.rank}
        like = {}
        for file in files:
            shard = held.get(file.name)
            if shard is not None and shard.size_bytes == file.found.size_bytes:
                like[file] = shard
        if not same_save and len(like) < len(files):
            return {}
        of_files = same_save and self.save_id is None
        return {
            file.name: _receipt_of(known, shard)
            for file, shard in like.items()
            if shard.state != "quarantined"
            and (of_files or digest_of_file(file, self.pool) == shard.digest)
        }

    def _put(
        self,
        files: Sequence[SourceFile],
        save_id: str,
        stored: Mapping[str, Receipt],
        *,
        overwrite: bool,
    ) -> list[Receipt]:
        """Put what is not stored, and seal; take it back if something changed meanwhile.

        After a WaitError what was put stays: the next call goes on from there.
        """
        part = self.client.checkpoint(
            self.run,
            self.step,
            rank=self.place.rank,
            world_size=self.place.world_size,
            save_id=save_id,
            overwrite=overwrite,
            ack=self.ack,
            timeout_seconds=self.timeout_seconds,
        )
        try:
            for file in files:
                if file.name not in stored:
                    copy_file(file, part.open, self.pool, self.clock)
            now = {file.name: file.found.written for file in files_of(self.path)}
            if now != {file.name: file.found.written for file in files}:
                message = f"{self.path} changed while it was copied"
                raise OpenForWritingError(message, hint=NOT_YET)
            part.seal()
        except WaitError:
            raise
        except BaseException as error:
            part.__exit__(type(error), error, None)
            raise
        return [*stored.values(), *part.receipts.values()]


def _receipt_of(known: StepInfo, shard: ShardInfo) -> Receipt:
    """Return the receipt of a shard that a step shows; only a dirty one has no remote."""
    level = "local" if shard.state == "dirty" else "durable"
    which = (known.run, known.step, shard.name, known.save_id)
    return Receipt(*which, shard.size_bytes, shard.digest, level)
