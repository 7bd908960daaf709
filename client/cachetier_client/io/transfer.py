"""Move a whole shard between the caller's memory and a file, in several threads.

A thread takes the next block from a shared counter, so that none waits for another. On the way out
the digest comes from the caller's memory, before anything else touches the bytes; on the way in
each block is checked once it is in the caller's memory, and the call returns only if all of them
match.
"""

from __future__ import annotations

from cachetier_client.deadline import Deadline
from cachetier_client.io.block_file import BlockFile
from cachetier_client.io.digests import BLOCK_BYTES, digest_of
from cachetier_client.io.scatter import Gathered
from cachetier_client.io.workers import Workers


class DamagedBlockError(Exception):
    """A block does not have the digest it should have."""


def write_shard(file: BlockFile, data: Gathered, workers: Workers, deadline: Deadline) -> list[int]:
    """Write ``data`` from offset 0 and return the digest of each block; the caller then finishes.

    Raises:
        OSError: The file cannot be written.
        DeadlineError: Too slow.
    """
    digests = [0] * data.block_count

    def write(number: int) -> None:
        deadline.require("writing the shard")
        block = data.block(number)
        digests[number] = block.digest()
        file.write(block, number * BLOCK_BYTES)

    workers.for_each(len(digests), write)
    return digests


def read_block(file: BlockFile, into: memoryview, offset: int, digest: int) -> None:
    """Fill ``into`` with the block at ``offset``, which has ``digest``.

    Raises:
        DamagedBlockError: It has not.
        OSError: The file cannot be read.
    """
    try:
        file.read(into, offset)
    except EOFError as error:
        raise DamagedBlockError(f"the file is cut off: {error}") from None
    if digest_of(into) != digest:
        raise DamagedBlockError(f"the block at byte {offset} does not match its digest")
