"""Save while training goes on: the state is copied behind training's back, and a gate protects it.

    stager = LazyStager(optimizer)
    writer = CachetierWriter(stager=stager)
    ...
    saved = dcp.async_save(state, checkpoint_id="cachetier://run/1000", storage_writer=writer)

``dcp.async_save`` returns at once. Forward and backward run while the state is copied into a ring
of blocks and from there to the node's disk. Only ``optimizer.step()`` changes what is copied, so
only there training waits, and only if the copies have not ended by then.

Source: docs/torch.md, "Lazy snapshots".
"""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self, SupportsIndex

import torch
from torch import Tensor
from torch.distributed.checkpoint.staging import AsyncStager

from cachetier_client.calls.runs import PUT_SECONDS
from cachetier_client.checkpoints import Checkpoint
from cachetier_client.client import Client
from cachetier_client.clock import Clock, SystemClock
from cachetier_client.deadline import Deadline
from cachetier_client.errors import CachetierClientError, InvalidRequestError
from cachetier_client.io.ring import Ring
from cachetier_client.results import Receipt
from cachetier_client.torch.devices import Devices, devices
from cachetier_client.torch.gated import Gated, staged
from cachetier_client.torch.lazy_save import LazySave, check_plain, store
from cachetier_client.torch.snapshot import Phase, Snapshot, StagedState

RING_BYTES = 1 << 30
GATE_SECONDS = 120.0
_SAVES_AT_A_TIME = 32  # of which all but one are writing, or waiting for ``ack``


class LazyStager(AsyncStager):
    """Stages states for ``dcp.async_save`` without copying them first; for training's thread.

    What the optimizers change is copied later, into a ring that all saves share, and a hook before
    each of their steps waits until it is. Other tensors are copied at once. The ring is the only
    memory it takes beside that; on a machine with CUDA it is pinned.

    Args:
        optimizers: All that change the state. A parameter of another one is copied at once.
        also: Tensors that nothing changes while a save copies them, such as frozen parameters:
            they are not copied at once either.
        ring_bytes: How much of a state may be copied before it is on the disk.
        gate_seconds: The longest that training waits for copies. Then the save is given up, with
            ``SnapshotAbandonedError``, and training goes on.
        devices: Seam for tests.
        clock: Seam for tests.

    Attributes:
        waits: How often training has waited at the gate.
        waited_seconds: How long, in all.
    """

    def __init__(
        self,
        *optimizers: torch.optim.Optimizer,
        also: Iterable[Tensor] = (),
        ring_bytes: int = RING_BYTES,
        gate_seconds: float = GATE_SECONDS,
        devices: Devices | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.waits = 0
        self.waited_seconds = 0.0
        self._optimizers = tuple(map(_checked, optimizers))
        self._also = tuple(also)
        self._clock = clock or SystemClock()
        self._gate_seconds = Deadline(gate_seconds, self._clock).seconds
        self._process = os.getpid()
        self._snapshot: Snapshot | None = None
        self._unfinished: list[Snapshot] = []
        self._unraised: CachetierClientError | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._storing: set[Future[Receipt]] = set()
        self._ring = Ring(ring_bytes)
        self._devices = devices or _devices()
        self._devices.pin(self._ring)
        self._hooks = [each.register_step_pre_hook(self._before_step) for each in self._optimizers]

    # --- DCP's stager ----------------------------------------------------------------------------

    @property
    def should_synchronize_after_execute(self) -> bool:
        """Return False: nobody has to wait once the save has begun."""
        return False

    def stage(self, state_dict: Mapping[str, Any]) -> StagedState:
        """Return the state for one save in this process, at once.

        If an earlier one is still being copied, wait for its copies first, not for its writes.

        Raises:
            InvalidRequestError: Something in the state can be neither referred to nor copied.
        """
        self._check_open()
        self._pass_gate()
        passage = self._devices.passage()
        snapshot = Snapshot(self._ring, passage)
        gated = Gated(self._optimizers, self._also)
        state = StagedState(staged(state_dict, gated, snapshot, passage), snapshot)
        passage.mark()
        self._snapshot = snapshot
        self._note_unraised()
        self._unfinished = [each for each in self._unfinished if not each.is_over]
        self._unfinished.append(snapshot)
        return state

    def synchronize_staging(self) -> None:
        """The same as ``wait``."""
        self.wait()

    # --- without DCP -----------------------------------------------------------------------------

    def save(
        self,
        target: Client | Checkpoint,
        name: str,
        tensors: Mapping[str, Tensor],
        *,
        run: str | None = None,
        step: SupportsIndex | None = None,
        timeout_seconds: float = PUT_SECONDS,
        **options: Any,
    ) -> LazySave:
        """Store tensors as one shard, in the background.

        Args:
            target: A checkpoint, which the caller seals once the save has ended; or a client: then
                the shard is this rank's whole part of the step, and is sealed too.
            name: The shard's. See ``extents`` for what it looks like.
            tensors: Dense tensors by name, gated or not.
            run, step: With a client: which step it is.
            timeout_seconds: For the whole save, from now on.
            options: With a client: what else ``Client.checkpoint`` takes.

        Raises:
            CachetierClientError: An earlier save was given up, and nobody was told; nothing was
                done. Or the call is wrong.
        """
        self._check_open()
        self._raise_unraised()
        check_plain(tensors)
        deadline = Deadline(timeout_seconds, self._clock)
        if isinstance(target, Checkpoint):
            part, seals = target, False
        elif step is None:
            raise InvalidRequestError("no step was named", hint="Pass step= with a client.")
        else:
            options["timeout_seconds"] = timeout_seconds
            part, seals = target.checkpoint(run, step, **options), True
        state = self.stage(tensors)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(_SAVES_AT_A_TIME, "cachetier-lazy")
        stored = self._executor.submit(store, part, name, state, deadline, seals=seals)
        self._storing.add(stored)
        stored.add_done_callback(self._storing.discard)  # a failed one holds on to its state
        return LazySave(state.snapshot, stored)

    # --- the gate --------------------------------------------------------------------------------

    def wait(self) -> None:
        """Wait until the state may be changed, as the gate does: call it before changes by hand.

        Raises:
            SnapshotAbandonedError: The save was given up; the state may be changed all the same.
            StateChangedError: The state was changed too early.
        """
        self._pass_gate()
        self._raise_unraised()

    def _before_step(self, *_: Any) -> None:
        """Let an optimizer change the state; the hook before its step."""
        if self._snapshot is not None and self._process == os.getpid():
            self._pass_gate()

    def _pass_gate(self) -> None:
        """Wait for the copies of the state staged last; it does not raise."""
        snapshot = self._snapshot
        if snapshot is None:
            return
        began, must_wait = self._clock.monotonic(), snapshot.phase is Phase.COPYING
        snapshot.pass_gate(Deadline(self._gate_seconds, self._clock))
        if must_wait:
            self.waits += 1
            self.waited_seconds += self._clock.monotonic() - began
        self._snapshot = None

    # --- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Let the optimizers, the threads and the ring go, once the saves under way have ended.

        It waits for them as long as the gate does at most. May be called twice.

        Raises:
            CachetierClientError: A save was given up, and nobody was told.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._pass_gate()
        deadline = Deadline(self._gate_seconds, self._clock)
        for snapshot in self._unfinished:
            snapshot.wait_over(deadline)
        if self._executor is not None:
            concurrent.futures.wait(list(self._storing), deadline.remaining())
            self._executor.shutdown(wait=False)
            self._executor = None
        self._devices.unpin()
        self._ring.close()
        self._raise_unraised()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is not None and self._snapshot is not None:
            self._snapshot.drop_unless_entered()
        try:
            self.close()
        except CachetierClientError as unraised:
            if error is None:
                raise
            error.add_note(f"and before that: {unraised}")

    def _check_open(self) -> None:
        if self._ring.closed:
            raise InvalidRequestError("the stager is closed", hint="Make a new LazyStager.")

    def _note_unraised(self) -> None:
        """Remember failures that no save will tell of: those of saves that have ended."""
        for snapshot in self._unfinished:
            if snapshot.is_over:
                self._unraised = self._unraised or snapshot.take_failure()

    def _raise_unraised(self) -> None:
        unraised, self._unraised = self._unraised, None
        for snapshot in self._unfinished:
            unraised = unraised or snapshot.take_failure()
        if unraised is not None:
            raise unraised


_devices = devices  # the parameter's name hides it


def _checked(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    has_hooks = callable(getattr(optimizer, "register_step_pre_hook", None))
    if isinstance(optimizer, torch.optim.Optimizer):  # wrappers are one by name alone, mostly
        has_hooks = hasattr(optimizer, "_optimizer_step_pre_hooks")
    if not has_hooks:
        raise InvalidRequestError(
            f"a {type(optimizer).__name__} has no hook before its step",
            hint="Pass torch optimizers; of one that wraps another, pass the other.",
        )
    return optimizer
