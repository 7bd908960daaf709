"""A lazy save without DCP: named tensors as one shard, stored by a thread of the stager's."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import nullcontext

from torch import Tensor

from cachetier_client.checkpoints import Checkpoint
from cachetier_client.clock import SystemClock
from cachetier_client.deadline import Deadline
from cachetier_client.errors import InvalidRequestError
from cachetier_client.results import Receipt
from cachetier_client.torch.gated import local_of
from cachetier_client.torch.layout import Piece
from cachetier_client.torch.plans import plain
from cachetier_client.torch.sending import send
from cachetier_client.torch.snapshot import Phase, Snapshot, StagedState


class LazySave:
    """A shard on its way to the node's disk, as a future of its receipt."""

    def __init__(self, snapshot: Snapshot, stored: Future[Receipt]) -> None:
        self._snapshot = snapshot
        self._stored = stored

    def copied(self, timeout_seconds: float) -> bool:
        """Wait until the tensors may be changed; the gate before an optimizer's step does the same.

        Returns:
            Whether all is copied. If not, the save is given up, and ``result`` says why.
        """
        self._snapshot.pass_gate(Deadline(timeout_seconds, SystemClock()))
        return self._snapshot.phase is not Phase.FAILED

    def result(self, timeout_seconds: float | None = None) -> Receipt:
        """Wait until the shard is safe on the node.

        Raises:
            TimeoutError: It is not yet; the save goes on.
            CachetierClientError: The save failed, and kept nothing.
        """
        return self._stored.result(timeout_seconds)

    def exception(self, timeout_seconds: float | None = None) -> BaseException | None:
        """Wait for the end of the save, and return why it failed, if it did."""
        return self._stored.exception(timeout_seconds)

    def done(self) -> bool:
        """Whether the save has ended."""
        return self._stored.done()


def check_plain(tensors: Mapping[str, Tensor]) -> None:
    """Refuse what is not a tensor with memory of its own."""
    for name, tensor in tensors.items():
        if local_of(tensor) is not tensor:
            raise InvalidRequestError(
                f"{name} is a {type(tensor).__name__}, not a dense tensor",
                hint="Pass dense tensors, of a DTensor to_local(), or save with dcp.async_save.",
            )


def store(
    part: Checkpoint, name: str, state: StagedState, deadline: Deadline, *, seals: bool
) -> Receipt:
    """Store a staged state's tensors as one shard, and return its receipt.

    Args:
        part: Whose shard it is.
        name: The shard's.
        state: Tensors by name.
        deadline: For all of it.
        seals: Seal the part too; if that fails, or anything before, abort it.
    """
    try:
        with part if seals else nullcontext():
            pieces = [
                Piece(each, (0,) * tensor.dim(), plain(each, tensor))
                for each, tensor in state.items()
            ]
            send(part, name, pieces, deadline)
    except BaseException as error:
        state.snapshot.ended(error)
        raise
    return part.receipts[name]
