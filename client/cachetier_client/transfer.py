"""Move a whole shard between the caller's memory and a file, in several threads.

A thread takes the next block from a shared counter, so that none waits for another. On the way out
the digest comes from the caller's memory, before anything else touches the bytes; on the way in
each block is checked once it is in the caller's memory, and the call returns only if all of them
match.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from cachetier_client.aligned import address_of
from cachetier_client.blockfile import BlockFile
from cachetier_client.deadline import Deadline
from cachetier_client.digests import BLOCK_BYTES, digest_of
from cachetier_client.workers import Workers


class DamagedBlockError(Exception):
    """A block does not have the digest it should have."""


def write_shard(
    file: BlockFile, data: memoryview, workers: Workers, deadline: Deadline
) -> list[int]:
    """Write ``data`` from offset 0 and return the digest of each block; the caller then finishes.

    Raises:
        OSError: The file cannot be written.
        DeadlineError: Too slow.
    """
    address = address_of(data)
    digests = [0] * _block_count(len(data))

    def write(number: int) -> None:
        deadline.require("writing the shard")
        start = number * BLOCK_BYTES
        block = data[start : start + BLOCK_BYTES]
        digests[number] = digest_of(block)
        file.write(block, address + start, start)

    _for_each_block(write, len(digests), workers)
    return digests


def read_shard(
    file: BlockFile,
    into: memoryview,
    digests: Sequence[int],
    workers: Workers,
    deadline: Deadline,
) -> None:
    """Fill ``into`` with the shard whose blocks have ``digests``.

    Raises:
        DamagedBlockError: The file's bytes are not the shard's; what is in ``into`` is rubbish.
        OSError: The file cannot be read.
        DeadlineError: Too slow.
    """
    address = address_of(into)

    def read(number: int) -> None:
        deadline.require("reading the shard")
        start = number * BLOCK_BYTES
        read_block(file, into[start : start + BLOCK_BYTES], address + start, start, digests[number])

    _for_each_block(read, len(digests), workers)
    file.forget()


def read_block(file: BlockFile, into: memoryview, address: int, offset: int, digest: int) -> None:
    """Fill ``into``, memory at ``address``, with the block at ``offset``, which has ``digest``.

    Raises:
        DamagedBlockError: It has not.
        OSError: The file cannot be read.
    """
    try:
        file.read(into, address, offset)
    except EOFError as error:
        raise DamagedBlockError(f"the file is cut off: {error}") from None
    if digest_of(into) != digest:
        raise DamagedBlockError(f"the block at byte {offset} does not match its digest")


def _for_each_block(work: Callable[[int], None], count: int, workers: Workers) -> None:
    """Do ``work`` for each block; after a failure no thread takes another."""
    numbers = itertools.count()  # one C call takes a number: no two threads get the same
    failed = False

    def share() -> None:
        nonlocal failed
        try:
            while not failed and (number := next(numbers)) < count:
                work(number)
        except BaseException:  # an interrupt too
            failed = True
            raise

    workers.run(share, min(workers.threads, count))


def _block_count(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK_BYTES)
