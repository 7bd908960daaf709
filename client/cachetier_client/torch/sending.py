"""Write one rank's shard: straight from the tensors' memory, or through a ring of blocks.

Contiguous tensors in CPU memory go as one put from where they lie. As soon as one lies on a device,
or not contiguously and large, the shard is a stream instead: its bytes pass through a bounded ring,
and full blocks are written while later ones are copied.

A stager that hands out tensors training will change (``LazyStager``) *claims* them for a
``Snapshot``, the *copier*: they come first, through its own ring, so that it knows when they are
safe to change.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from cachetier_client.checkpoints import Checkpoint
from cachetier_client.deadline import Deadline
from cachetier_client.errors import InvalidRequestError
from cachetier_client.io.buffers import bytes_of
from cachetier_client.io.digests import BLOCK_BYTES
from cachetier_client.io.ring import Ring
from cachetier_client.streams.writer import CACHED_BYTES, ShardWriter
from cachetier_client.torch.devices import Devices, Passage, devices
from cachetier_client.torch.layout import Piece, Placed, ShardLayout, lay_out

if TYPE_CHECKING:
    from cachetier_client.torch.snapshot import Snapshot

_EAGER_BYTES = 32 << 20


_claims: Any = WeakIdKeyDictionary()
_saving = threading.local()


def claim(tensor: Tensor, copier: Snapshot) -> None:
    """Have ``copier`` copy this very tensor object when a save comes to it."""
    _claims[tensor] = copier


def claimant(tensor: Tensor) -> Snapshot | None:
    """Return who claimed a tensor."""
    found: Snapshot | None = _claims.get(tensor)
    return found


def enter(copier: Snapshot) -> None:
    """Have ``copier`` told of the save that this thread does next, whatever that claims of it."""
    _saving.copier = copier


def entered() -> Snapshot | None:
    """Return who entered this thread's save, once."""
    copier: Snapshot | None = getattr(_saving, "copier", None)
    _saving.copier = None
    return copier if copier is not None and copier.saves_here() else None


def give_up(error: BaseException) -> None:
    """Tell who entered a save that failed before anything was sent."""
    copier = entered()
    if copier is not None:
        copier.ended(error)


def send(
    checkpoint: Checkpoint, name: str, pieces: Sequence[Piece], deadline: Deadline
) -> ShardLayout:
    """Store pieces as one shard.

    Args:
        checkpoint: The part it belongs to.
        name: The shard's.
        pieces: What it is made of.
        deadline: For all of it.

    Returns:
        Where each piece lies.

    Raises:
        CachetierClientError: See ``Client.put_shard``; nothing of the shard was kept.
    """
    here = entered()
    copiers = _copiers_of(pieces, here)
    listeners = _each_of([*copiers.values(), *filter(None, [here])])
    try:
        layout = lay_out(pieces, first=frozenset(copiers))
        if not copiers and all(map(_lies_in_memory, pieces)):
            for copier in listeners:
                copier.all_copied()
            _put(checkpoint, name, layout, deadline)
        else:
            _stream(checkpoint, name, layout, copiers, listeners, deadline)
    except BaseException as error:
        for copier in listeners:
            copier.ended(error)
        raise
    for copier in listeners:
        copier.ended(None)
    return layout


def _put(checkpoint: Checkpoint, name: str, layout: ShardLayout, deadline: Deadline) -> None:
    buffers: list[memoryview | bytes] = []
    for each in layout.placed:
        buffers += [each.padding, bytes_of(each.piece.content)]
    checkpoint.put(
        [*filter(len, buffers), layout.index],
        name,
        timeout_seconds=deadline.remaining(),
        element_size=layout.element_size,
    )


def _stream(
    checkpoint: Checkpoint,
    name: str,
    layout: ShardLayout,
    copiers: Mapping[str, Snapshot],
    listeners: Sequence[Snapshot],
    deadline: Deadline,
) -> None:
    passage = _devices().passage()
    passage.mark()
    ring = next((copier.ring for copier in copiers.values()), None)
    if ring is None and any(map(_lies_on_device, layout.placed)):
        ring = _eager_ring()
    with checkpoint.open(
        name,
        timeout_seconds=deadline.remaining(),
        element_size=layout.element_size,
        size_bytes=layout.size_bytes,
        ring=ring,
    ) as writer:
        claimed = [each for each in layout.placed if each.piece.name in copiers]
        for each in claimed:
            deadline.require("writing the shard")
            _write_claimed(writer, each, copiers[each.piece.name])
        for copier in listeners:
            copier.all_copied()
        for each in layout.placed[len(claimed) :]:
            deadline.require("writing the shard")
            _write(writer, each, passage)
        writer.write(layout.index)
        for copier in listeners:
            copier.check()


def _write_claimed(writer: ShardWriter, placed: Placed, copier: Snapshot) -> None:
    piece, tensor = placed.piece, placed.piece.content
    assert isinstance(tensor, Tensor)  # only tensors are claimed
    writer.write(placed.padding)
    writer.write_later(piece.length, copier.copy_of(tensor), at_once=_at_once(tensor))


def _at_once(tensor: Tensor) -> int:
    """Return how much of a tensor is copied at once: a device takes long to begin a copy."""
    return CACHED_BYTES if tensor.device.type == "cpu" else BLOCK_BYTES


def _write(writer: ShardWriter, placed: Placed, passage: Passage) -> None:
    writer.write(placed.padding)
    if isinstance(placed.piece.content, Tensor) and not _lies_in_memory(placed.piece):
        tensor = placed.piece.content
        copy = passage.copy_of(tensor)
        writer.write_later(placed.piece.length, copy, at_once=_at_once(tensor))
    else:
        writer.write(bytes_of(placed.piece.content))


@functools.cache
def _devices() -> Devices:
    return devices()


@functools.cache
def _eager_ring() -> Ring:
    """The blocks through which tensors come from a device, kept: to pin memory is slow."""
    ring = Ring(_EAGER_BYTES)
    with contextlib.suppress(InvalidRequestError):  # copies are slower then, and nothing else
        _devices().pin(ring)
    return ring


def _lies_on_device(placed: Placed) -> bool:
    content = placed.piece.content
    return isinstance(content, Tensor) and content.device.type != "cpu"


def _lies_in_memory(piece: Piece) -> bool:
    """Whether a piece can be written from where it is."""
    content = piece.content
    if not isinstance(content, Tensor):
        return True
    return content.device.type == "cpu" and content.is_contiguous()


def _copiers_of(pieces: Sequence[Piece], here: Snapshot | None) -> dict[str, Snapshot]:
    """Return who copies the pieces that are claimed; ``here`` does the save."""
    found = {}
    for piece in pieces:
        copier = claimant(piece.content) if isinstance(piece.content, Tensor) else None
        if copier is None and isinstance(piece.content, Tensor) and here is not None:
            copier = here if here.guards(piece.content) else None
        if copier is not None:
            found[piece.name] = copier
    return found


def _each_of(copiers: Sequence[Snapshot]) -> list[Snapshot]:
    return list({id(copier): copier for copier in copiers}.values())
