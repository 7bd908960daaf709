"""Find out why an object that was verified is missing, and act on it: absence means something.

The step's manifest decides. Whoever deletes a step writes its tombstone before objects go, and
whoever replaces one publishes first, so what an absent object means is there to be read by then.

===========  ==========================================  ==========================================
absence      the manifest                                then
===========  ==========================================  ==========================================
deleted      is the save's tombstone                     the save is deleted here too
replaced     is of another save, which came after        the save ends here too
lost         publishes the save                          incident; what is here is sent again
unpublished  is gone, or claims the step                 incident; what is here is sent again, and
                                                         the step is published again
===========  ==========================================  ==========================================

Nothing is decided while the bucket itself is missing or cannot say, nor against a pin.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum

from cachetier_client.bucket_format.documents import Manifest, ManifestState, manifest_of
from cachetier_client.clock import Clock

from cachetier.errors import IntegrityError, NotFoundError, ObjectMissingError, SaveSupersededError
from cachetier.local.catalog import missing_objects, queries
from cachetier.local.catalog.records import IncidentRecord
from cachetier.local.store import Store
from cachetier.model.checkpoint import Save, SaveState
from cachetier.model.shard import Shard
from cachetier.remote.bucket import Remote
from cachetier.telemetry import events
from cachetier.telemetry.events import of, tell

log = logging.getLogger(__name__)

_WHO_DELETES = "Find out who deletes in the bucket: a person, a lifecycle rule, another program."


class Absence(StrEnum):
    DELETED = "deleted"
    REPLACED = "replaced"
    LOST = "lost"
    UNPUBLISHED = "unpublished"


_TEXT = {
    Absence.DELETED: "step {step} was deleted by another node",
    Absence.REPLACED: "save {save_id} of step {step} was replaced by another save",
    Absence.LOST: "objects of step {step} (save {save_id}) are missing in the bucket, though it is "
    "published: somebody removed them",
    Absence.UNPUBLISHED: "objects of step {step} (save {save_id}) are missing in the bucket, and "
    "nothing there says that it is published: somebody removed them, or they expired",
}


def absence_of(save: Save, seen: Manifest | None) -> Absence:
    """Return why an object of ``save`` is missing, given the manifest of its step."""
    if seen is None:
        return Absence.UNPUBLISHED
    if seen.save_id == save.save_id:
        return {
            ManifestState.DELETED: Absence.DELETED,
            ManifestState.PUBLISHED: Absence.LOST,
            ManifestState.CLAIMED: Absence.UNPUBLISHED,
        }[seen.state]
    came_after = seen.state is ManifestState.PUBLISHED or save.save_id in seen.replaces
    return Absence.REPLACED if came_after else Absence.UNPUBLISHED


class MissingObjects:
    """Looks into objects that are missing at the durable remote. Thread-safe.

    ``on_change`` is called when there is an incident, or work for the drain.
    """

    def __init__(
        self, store: Store, durable: Remote, clock: Clock, on_change: Callable[[], None]
    ) -> None:
        self._store = store
        self._durable = durable
        self._clock = clock
        self._on_change = on_change

    def look_into(self, shard: Shard) -> Absence | None:
        """Act on it that the object of ``shard`` is missing; return why, None if that is over.

        Raises:
            RemoteError: The durable remote cannot say, or there is no bucket any more.
        """
        save = self._store.read(queries.save_by_number, shard.save)
        if save is None or save.state not in missing_objects.LIVE:
            return None  # also of a mount: see ``mounted``
        self._durable.bucket.objects.check()  # a bucket that is gone looks the same
        try:
            seen = manifest_of(self._durable.bucket.manifest(save.run, save.step))
            absence = absence_of(save, seen)
        except IntegrityError:  # whatever it was, the bytes here may be the only ones
            seen, absence = None, Absence.LOST
        try:
            if absence in (Absence.DELETED, Absence.REPLACED):
                self._end(shard, save, absence, seen)
            elif save.location is not None:  # else it is known from a replica, and stays as it is
                self._send_again(shard, save, absence)
        except NotFoundError:
            return None  # replaced or deleted meanwhile
        return absence

    def error_of(self, shard: Shard) -> Exception | None:
        """Look into the missing object of a shard that is nowhere else; return what readers get.

        None where another look at the step helps. Raises as ``look_into`` does.
        """
        absence = self.look_into(shard)
        known = self._store.read(queries.shard_by_version, shard.version)
        if absence is None or (absence is Absence.REPLACED and known is None):
            return None
        message = _TEXT[absence].format(step=shard.step, save_id=shard.save_id)
        if absence in (Absence.DELETED, Absence.REPLACED):
            return NotFoundError(message, **shard.context)
        hint = f"{_WHO_DELETES} This node has no bytes of it: save the step again."
        return IntegrityError(f"{message}: {shard.name}", hint=hint, **shard.context)

    def _end(self, shard: Shard, save: Save, absence: Absence, seen: Manifest | None) -> None:
        state = SaveState.DELETED if absence is Absence.DELETED else SaveState.SUPERSEDED
        incident = None
        if absence is Absence.REPLACED and seen and save.save_id not in seen.replaces:
            incident = _incident(save, absence, SaveSupersededError.code, SaveSupersededError.hint)
        removed = self._store.write(
            missing_objects.end_here, shard.version, state, incident, self._clock.now()
        )
        self._store.drop(removed)
        if removed:
            tell(log, events.SAVE_ENDED_ELSEWHERE, state=state, **of(save))
            self._on_change()

    def _send_again(self, shard: Shard, save: Save, absence: Absence) -> None:
        again = absence is Absence.UNPUBLISHED
        hint = f"{_WHO_DELETES} What is on this node is sent again."
        incident = _incident(save, absence, ObjectMissingError.code, hint)
        new = self._store.write(
            missing_objects.record_missing,
            *(shard.version, self._durable.name, incident, self._clock.now()),
            publish_again=again,
        )
        if new:
            tell(log, events.OBJECTS_MISSING, reason=incident.message, **of(save))
        self._on_change()


def _incident(save: Save, absence: Absence, code: str, hint: str) -> IncidentRecord:
    message = _TEXT[absence].format(step=save.step, save_id=save.save_id)
    return IncidentRecord(code, message, hint, save.run, save.step)
