"""The calls that read: whole shards, parts of many, or one as a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import SupportsIndex

from cachetier_client.calls.access import AccessCalls
from cachetier_client.identity.names import ShardIds, checked_name, checked_step
from cachetier_client.io.buffers import TensorLike, bytes_of
from cachetier_client.streams.ranges import checked_ranges, read_ranges, read_through
from cachetier_client.streams.reader import ShardReader
from cachetier_client.transport.base import Source

GET_SECONDS = 300.0


class ReadCalls(AccessCalls):
    """The part of ``Client`` that gives shards back."""

    def get_shard(
        self,
        run: str | None,
        step: SupportsIndex,
        name: str,
        *,
        out: TensorLike | None = None,
        timeout_seconds: float = GET_SECONDS,
    ) -> memoryview:
        """Return one shard's bytes, verified, from the nearest copy.

        Args:
            run: None: the client's.
            step: Training step.
            name: The shard's.
            out: Writable C-contiguous memory of exactly the shard's size (a CPU tensor, say),
                filled without another copy. After an error its content is undefined.
            timeout_seconds: Whole call, including a restore from the remote.

        Returns:
            A writable view: of ``out``, or of fresh memory, page-aligned if larger than 64 KiB.

        Raises:
            NotFoundError: There is no such shard.
            IntegrityError: No copy has the bytes that were put.
            SizeMismatchError: ``out`` has another size; it was not touched.
        """
        with self._caller.calling("get_shard", run=run, step=step, name=name) as ids:
            into = None if out is None else bytes_of(out, writable=True)
            which_run = ids["run"] = self._caller.run_of(run)
            shard = ShardIds(which_run, checked_step(step), checked_name(name))
            deadline = self._caller.deadline(timeout_seconds)
            return self._caller.transport.get(shard, into, deadline)

    def check_shard(
        self,
        run: str | None,
        step: SupportsIndex,
        name: str,
        *,
        timeout_seconds: float = GET_SECONDS,
    ) -> None:
        """Read one shard as a restore would, from the nearest copy, and keep nothing of it.

        A local copy that proves damaged is taken out of use, and the remote one read instead.

        Raises:
            NotFoundError: There is no such shard.
            IntegrityError: No copy has the bytes that were put.
        """
        with self._caller.calling("check_shard", run=run, step=step, name=name) as ids:
            which_run = ids["run"] = self._caller.run_of(run)
            shard = ShardIds(which_run, checked_step(step), checked_name(name))
            caller, deadline = self._caller, self._caller.deadline(timeout_seconds)
            source = caller.transport.open_source(shard, deadline, restore=False, blocks=0)
            try:
                read_through(source, caller.workers, deadline)
            finally:
                source.close()

    def read_ranges(
        self,
        run: str | None,
        step: SupportsIndex,
        ranges: Mapping[str, Sequence[tuple[int, TensorLike]]],
        *,
        timeout_seconds: float = GET_SECONDS,
    ) -> int:
        """Fill buffers with parts of a step's shards, verified, from the nearest copies.

        Only the blocks of 4 MiB that are needed are read, each once and in several threads:
        straight into a buffer that takes one whole, else through a block of each thread's. A shard
        that is only remote stays there, unless a quarter of it is wanted.

        Args:
            run: None: the client's.
            step: Training step.
            ranges: For each shard by its name, pairs of an offset in it and the writable memory to
                fill from there. After an error the content of all of them is undefined.
            timeout_seconds: Whole call.

        Returns:
            How many bytes of the shards were read: those of whole blocks.

        Raises:
            NotFoundError: There is no such shard.
            SizeMismatchError: A range ends behind its shard.
            IntegrityError: No copy has the bytes that were put, or a shard was replaced meanwhile.
        """
        with self._caller.calling("read_ranges", run=run, step=step) as ids:
            wanted = checked_ranges(ranges)
            which_run = ids["run"] = self._caller.run_of(run)
            which_step, caller = checked_step(step), self._caller
            deadline = caller.deadline(timeout_seconds)

            def open_source(name: str, blocks: int) -> Source:
                shard = ShardIds(which_run, which_step, name)
                return caller.transport.open_source(shard, deadline, restore=False, blocks=blocks)

            return read_ranges(open_source, wanted, caller.workers, deadline)

    def _open_reader(
        self,
        run: str | None,
        step: SupportsIndex,
        name: str,
        *,
        timeout_seconds: float = GET_SECONDS,
        restore: bool = False,
    ) -> ShardReader:
        caller, which_run = self._caller, self._caller.run_of(run)
        shard = ShardIds(which_run, checked_step(step), checked_name(name))
        return ShardReader(
            caller.transport.open_source(shard, caller.deadline(timeout_seconds), restore=restore),
            guard=lambda: caller.calling(
                "open_shard", tells=False, run=which_run, step=step, name=name
            ),
            deadline=lambda: caller.deadline(timeout_seconds),
            workers=caller.workers,
        )
