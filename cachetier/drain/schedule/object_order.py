"""The next work for a mount of the S3 door, by the order that its bucket has to keep.

A version becomes visible once no version that it may speak of is unshown, nor an earlier one of its
key, and once what it waits for at other nodes is there. What has to wait, and is not tiny, is sent
ahead: the parts of an upload are not visible before it is completed.

Source: docs/design/0030-objects.md, "What may be shown when".
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from cachetier_client.bucket_format.uploads import SINGLE_PUT_BYTES

from cachetier.drain.schedule.tasks import Key, TaskKind, Work, send_key
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import ObjectState
from cachetier.model.objects import ObjectVersion, may_show


@dataclass(frozen=True, slots=True)
class MountView:
    """The objects that the bucket of a mount does not show yet.

    Attributes:
        unshown: The oldest versions, in order; those in conflict are among them.
        sent: The versions whose parts are all at the remote.
        held: The mount owes its bucket a note or a look, so nothing of it may become visible.
    """

    unshown: tuple[ObjectVersion, ...] = ()
    sent: frozenset[int] = frozenset()
    held: bool = False


def goes_in_parts(version: ObjectVersion) -> bool:
    """Return whether a version becomes visible by completing an upload."""
    return version.pieces > 1 or version.size_bytes > SINGLE_PUT_BYTES


def showable(view: MountView) -> list[ObjectVersion]:
    """Return the versions that may become visible now, oldest first."""
    unshown = [each.version for each in view.unshown[:1]]  # the lowest decides
    keys: set[str] = set()
    found = []
    for version in view.unshown:
        first = version.key not in keys
        keys.add(version.key)
        waits = view.held or bool(version.waits) or version.state is not ObjectState.DIRTY
        if first and not waits and may_show(version.follows, unshown):
            found.append(version)
    return found


def object_works(save: Save, view: MountView, in_flight: AbstractSet[Key]) -> Iterator[Work]:
    """Yield what may be shown, and then what may be sent ahead of that."""
    now = {version.version for version in showable(view)}
    for version in view.unshown:
        # Its parts are on their way: they are waited for, as two would send the same.
        if version.version in now and send_key(version) not in in_flight:
            sent_bytes = version.size_bytes if version.version in view.sent else 0
            yield Work(TaskKind.SHOW, save, version=version, sent_bytes=sent_bytes)
    for version in view.unshown:
        waits = version.version not in now and version.state is ObjectState.DIRTY
        if waits and goes_in_parts(version) and version.version not in view.sent:
            yield Work(TaskKind.SEND, save, version=version)
