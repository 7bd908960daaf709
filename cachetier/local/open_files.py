"""Files that others have open: what is being written, what is read, and what is gone by name only.

A descriptor that was handed out cannot be taken back, and a reservation binds nobody who has one.
So a thread measures each file that is being written ``LOOK_SECONDS`` apart. Beyond its reservation
the put is refused for good and its file unlinked. A file without a name takes its room until nobody
has it open, and so long its bytes are counted: as those of a refused put, which are cut where they
go beyond the capacity, or as lent to readers, which never are.

Source: docs/design/0023-limits-that-hold.md.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from cachetier_client.clock import Clock
from cachetier_client.units import shown_size

from cachetier import callers
from cachetier.local.files.data_files import ALIGNMENT_BYTES, Files, bytes_on_disk
from cachetier.local.files.space import Space
from cachetier.model.shard import Shard
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
READERS_SECONDS = 1.0
GRACE_SECONDS = 30.0  # most reads end within it; then the shard goes whole, and nobody fetches it
METADATA_BYTES = 128 << 10  # what a filesystem may count as a file's own for its map and its marks
HOLD_SECONDS = 1.0  # those who waited for one shard open its file within it
READERS_LIMIT = 4096
STAGED_LIMIT = 1024  # for one holder: each is a descriptor of the few that the service may have


@dataclass(eq=False, slots=True)
class OpenFile:
    """A file that others may have open, by a descriptor of the service's own that only reads.

    ``counted_bytes`` is what it takes of the capacity: what is reserved, until its put is refused,
    which ``refusal`` says. ``spare_bytes`` is what the filesystem rounds a reservation up by.
    ``version`` is that of the shard whose bytes are here for its readers alone, at least until
    ``held_until``.
    """

    file_id: str
    descriptor: int
    reserved_bytes: int
    holder: str
    by: str
    counted_bytes: int
    spare_bytes: int = 0
    unlinked: bool = False
    refusal: str | None = None
    version: int | None = None
    held_until: float = 0.0

    def measured(self) -> tuple[int, int]:
        """Return its length, and what it takes of the disk."""
        found = os.fstat(self.descriptor)
        return found.st_size, bytes_on_disk(found)

    def overrun(self) -> int | None:
        """Return how many bytes it has, if those are more than were reserved."""
        measured = self.measured()
        over = exceeds(self.reserved_bytes + self.spare_bytes, *measured)
        return max(measured) if over else None


def exceeds(reserved_bytes: int, size_bytes: int, allocated_bytes: int) -> bool:
    """Return whether a file has more than was reserved for it, in its length or on the disk.

    Its last block is whole, as O_DIRECT writes it, and its map takes blocks of its own.
    """
    whole_bytes = -(-reserved_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    most_allocated = whole_bytes + METADATA_BYTES + whole_bytes // 64
    return size_bytes > whole_bytes or allocated_bytes > most_allocated


@dataclass(slots=True)
class _Read:
    """A shard's file that was opened for somebody, the last of them ``by``.

    ``in_way_since``: when eviction first met it. ``opens`` tells a look that took its time whether
    anybody came meanwhile.
    """

    version: int
    size_bytes: int
    by: str = callers.NOBODY
    opens: int = 0
    in_way_since: float | None = None


@dataclass(frozen=True, slots=True)
class Lent:
    """The bytes that readers have open, and who of them has most.

    ``shards`` are the versions of those whose files have a name still.
    """

    size_bytes: int = 0
    holder: str | None = None
    holder_bytes: int = 0
    shards: frozenset[int] = field(default_factory=frozenset)


class OpenFiles:
    """Knows them all, and counts the bytes of each in the space of its place. Thread-safe.

    ``remove`` unlinks a file, and says so where it cannot.
    """

    def __init__(
        self,
        files: Files,
        space_of: Callable[[str], Space],
        clock: Clock,
        remove: Callable[[str], object],
    ) -> None:
        self._files = files
        self._space_of = space_of
        self._clock = clock
        self._remove = remove
        self._lock = threading.Lock()
        self._written: set[OpenFile] = set()
        self._refused: set[OpenFile] = set()
        self._lent: set[OpenFile] = set()
        self._read: dict[str, _Read] = {}
        self._to_measure = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="open-files", daemon=True)

    def start(self) -> None:
        """Begin to look; without it only those do who call ``look`` themselves."""
        self._thread.start()

    def stop(self) -> None:
        """End the looks; the kernel frees what nobody has open any more."""
        self._stopping.set()
        self._to_measure.set()
        if self._thread.ident is not None:
            self._thread.join()
        with self._lock:
            unlinked = {file for file in self._written if file.unlinked}
            for file in self._refused | self._lent | unlinked:
                os.close(file.descriptor)
            self._written, self._refused, self._lent = set(), set(), set()

    # --- writers ---------------------------------------------------------------------------------

    def written(self, file_id: str, descriptor: int, reserved_bytes: int) -> OpenFile:
        """Measure a new file from now on, on behalf of the current caller."""
        holder, by = callers.holder(), callers.described()
        file = OpenFile(file_id, descriptor, reserved_bytes, holder, by, reserved_bytes)
        block_bytes = os.fstat(descriptor).st_blksize  # the last one is written whole
        file.spare_bytes = max(block_bytes, file.measured()[1] - reserved_bytes)
        self._measure_from_now(file)
        return file

    def take_back(self, file: OpenFile) -> bool:
        """Measure ``file`` no more; return False if it was refused: then it is no more its put's.

        To take it back twice changes nothing.
        """
        with self._lock:
            self._written.discard(file)
            return file.refusal is None

    def grow(self, file: OpenFile, size_bytes: int) -> bool:
        """Count ``size_bytes`` as reserved; return False if it was refused before."""
        with self._lock:
            if file.refusal is None:
                file.reserved_bytes = file.counted_bytes = size_bytes
            return file.refusal is None

    def dismiss(self, file: OpenFile) -> None:
        """Count a file that was taken back and unlinked until nobody has it open."""
        file.unlinked = True
        if self._files.unshared(file.descriptor):
            self._free([file])
        else:
            self._measure_from_now(file)

    def refusal_of(self, holder: str) -> str | None:
        """Say why ``holder`` begins nothing now: a writer of a refused put is left, or too many."""
        if not self._written and not self._refused:  # small puts ask as well, and lock nothing
            return None
        with self._lock:
            refused = [file.refusal for file in self._refused if file.holder == holder]
            staged = sum(file.holder == holder for file in self._written)
        if refused and holder:
            return f"a refused put is still open for writing: {refused[0]}"
        return f"{staged} puts are open" if staged >= STAGED_LIMIT else None

    def refusals(self) -> list[str]:
        """Return a sentence for each refused put that is still open, and counted."""
        with self._lock:
            return [
                f"{file.by} wrote past a reservation and has the file open still: {file.refusal}. "
                f"Its put is refused; {shown_size(file.counted_bytes)} are counted until it is "
                "closed, and they begin no others"
                for file in self._refused
            ]

    def look(self) -> None:
        """Measure what is written; free what nobody has open, cut what does not fit."""
        with self._lock:
            done = self._take_done(self._refused)
            done += self._take_done({file for file in self._written if file.unlinked})
        self._free(done)
        with self._lock:
            over = [file for file in self._written if self._is_over(file)]
            self._written.difference_update(over)
            for file in self._refused:
                self._recount(file)
            if not self._written and not self._refused:
                self._to_measure.clear()
        for file in over:
            tell(log, events.RESERVATION_EXCEEDED, by=file.by, reason=file.refusal)
            self._remove(file.file_id)
        self._cut()

    def _measure_from_now(self, file: OpenFile) -> None:
        with self._lock:
            self._written.add(file)
            if not self._to_measure.is_set():
                self._to_measure.set()

    def _is_over(self, file: OpenFile) -> bool:
        written_bytes = file.overrun()
        if written_bytes is not None:
            file.refusal = f"{file.reserved_bytes} bytes were reserved, {written_bytes} written"
            self._refused.add(file)
        return written_bytes is not None

    def _recount(self, file: OpenFile) -> None:
        before, file.counted_bytes = file.counted_bytes, file.measured()[1]
        self._space_of(file.file_id).release(before - file.counted_bytes)

    def _cut(self) -> None:
        with self._lock:
            refused = list(self._refused)
        for file in refused:
            space = self._space_of(file.file_id)
            if space.used_bytes <= space.limit_bytes:
                continue
            with suppress(OSError):  # those that can be cut are
                self._files.cut(file.descriptor)
            self._recount(file)

    def _take_done(self, files: Iterable[OpenFile]) -> list[OpenFile]:
        """Take those out of ``files``, which have no name, that nobody else has open."""
        done = [file for file in files if self._files.unshared(file.descriptor)]
        for held in (self._written, self._refused, self._lent):
            held.difference_update(done)
        return done

    def _free(self, done: Iterable[OpenFile]) -> None:
        """Close files without a name, which frees their room: of large ones that takes its time."""
        for file in done:
            os.close(file.descriptor)
            self._space_of(file.file_id).release(file.counted_bytes)

    # --- readers ---------------------------------------------------------------------------------

    def opened(self, shard: Shard) -> None:
        """Remember for whom the file of ``shard`` was opened, if for anybody but the service."""
        by = callers.described()
        if by == callers.NOBODY:
            return
        with self._lock:
            known = self._known(shard)
            known.by, known.opens = by, known.opens + 1

    def may_go(self, shard: Shard) -> bool:
        """Return whether a file that is read has been in the way of eviction for the grace."""
        now = self._clock.monotonic()
        with self._lock:
            known = self._known(shard)
            known.in_way_since = now if known.in_way_since is None else known.in_way_since
            return now - known.in_way_since >= GRACE_SECONDS

    def lend(self, file_id: str, descriptor: int, size_bytes: int) -> None:
        """Count a file that was unlinked as lent, until nobody has it open."""
        with self._lock:
            known = self._read.pop(file_id, None)
            by = known.by if known is not None else callers.NOBODY
            file = OpenFile(file_id, descriptor, 0, "", by, size_bytes, unlinked=True)
            self._lent.add(file)
            done = self._take_done([file])
        self._free(done)

    def hold(self, file_id: str, descriptor: int, size_bytes: int, version: int) -> None:
        """Count a file that was unlinked, the only one of a shard, until nobody has it open."""
        held_until = self._clock.monotonic() + HOLD_SECONDS
        file = OpenFile(file_id, descriptor, 0, "", callers.NOBODY, size_bytes, unlinked=True)
        file.version, file.held_until = version, held_until
        with self._lock:
            self._lent.add(file)

    def reopened(self, version: int) -> int | None:
        """Return a descriptor of a file that ``hold`` counts, which only reads; None without one.

        It is opened again: of one that is shared nobody sees whether others have it.
        """
        with self._lock:
            for file in self._lent:
                if file.version == version:
                    file.by = callers.described()
                    return os.open(f"/proc/self/fd/{file.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        return None

    def holds(self, version: int) -> bool:
        """Return whether ``hold`` counts a file of the shard."""
        with self._lock:
            return any(file.version == version for file in self._lent)

    def forget(self, version: int) -> None:
        """Give the file of a shard to nobody any more: its bytes are damaged."""
        with self._lock:
            for file in self._lent:
                if file.version == version:
                    file.version = None

    def lent(self) -> Lent:
        """Return what readers have open now."""
        self.look_at_readers()
        held: Counter[str] = Counter()
        with self._lock:
            for read in self._read.values():
                held[read.by] += read.size_bytes
            for file in self._lent:
                held[file.by] += file.counted_bytes
            shards = frozenset(read.version for read in self._read.values())
        for holder, holder_bytes in held.most_common(1):
            return Lent(held.total(), holder, holder_bytes, shards)
        return Lent()

    @property
    def unlinked_bytes(self) -> int:
        """The room that comes back by itself: the bytes of files that are gone by name only."""
        with self._lock:
            return sum(file.counted_bytes for file in self._lent | self._refused)

    def look_at_readers(self) -> None:
        """Forget who has nothing open any more."""
        with self._lock:
            known = [(file_id, read, read.opens) for file_id, read in self._read.items()]
            now = self._clock.monotonic()
            done = self._take_done({file for file in self._lent if now >= file.held_until})
        self._free(done)
        for file_id, read, opens in known:
            unread = False
            with suppress(OSError):  # no descriptor is left to see it with
                unread = self._files.unread(file_id)
            with self._lock:
                if unread and read.opens == opens:
                    self._read.pop(file_id, None)

    def _known(self, shard: Shard) -> _Read:
        assert shard.file_id is not None
        if shard.file_id not in self._read:
            if len(self._read) >= READERS_LIMIT:
                del self._read[next(iter(self._read))]  # the oldest; eviction may meet it again
            self._read[shard.file_id] = _Read(shard.version, shard.content.size_bytes)
        return self._read[shard.file_id]

    # --- the thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        readers_at = self._clock.monotonic()
        while not self._stopping.is_set():
            self._to_measure.wait(READERS_SECONDS)
            if self._stopping.wait(LOOK_SECONDS):
                return
            self._try(self.look)
            if self._clock.monotonic() >= readers_at:
                readers_at = self._clock.monotonic() + READERS_SECONDS
                self._try(self.look_at_readers)

    def _try(self, look: Callable[[], None]) -> None:
        try:
            look()
        except Exception as error:
            tell(log, events.LOOK_FAILED, error=error)
