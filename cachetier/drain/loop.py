"""The drain loop: one thread asks ``serve`` for tasks, a pool of workers performs them.

It runs as a process of its own (``process``), or on threads of another in tests. It ends when it is
told to stop, or with its channel.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from cachetier_client.bucket_format.uploads import SINGLE_PUT_BYTES
from cachetier_client.clock import Clock

from cachetier.drain.channel import AskingEnd, ChannelClosedError, RefusedReportError
from cachetier.drain.messages import Size
from cachetier.drain.object_worker import ObjectWorker, OpenStore, Stamps
from cachetier.drain.pace.remote_health import Health, RemoteHealth
from cachetier.drain.pace.traffic import Traffic
from cachetier.drain.priority.gates import ComputeSlots, Gates
from cachetier.drain.publish.publisher import Publisher
from cachetier.drain.publish.store_claim import StoreClaimer
from cachetier.drain.schedule.tasks import Task, TaskKind
from cachetier.drain.serve.service import DrainService
from cachetier.drain.upload.buffers import PIECE_BYTES, Buffers
from cachetier.drain.upload.compression_choice import Chooser
from cachetier.drain.upload.compression_log import CompressionLog
from cachetier.drain.upload.compressor import Compressor
from cachetier.drain.upload.packs import PackSender
from cachetier.drain.upload.server_copies import Copies
from cachetier.drain.upload.stopwatch import TimedObjectStore
from cachetier.drain.upload.uploader import PACKED_AT_ONCE, UploadContext, Uploader
from cachetier.drain.worker import Worker
from cachetier.errors import StoppingError
from cachetier.remote.bucket import Bucket, InBatches
from cachetier.remote.fair_slots import FairSlots
from cachetier.remote.store_clock import StoreClock
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

IDLE_SECONDS = 30.0
BUSY_SECONDS = 1.0
UNANSWERED_SECONDS = 5.0


class Signals:
    """The signals that interrupt the drain: new work, or the wish that it ends."""

    def __init__(self) -> None:
        self._poked = threading.Event()
        self._stopping = threading.Event()

    def poke(self) -> None:
        self._poked.set()

    def stop(self) -> None:
        """Let the drain end: parts in flight are finished, nothing new is begun."""
        self._stopping.set()
        self._poked.set()

    def stopping(self) -> bool:
        return self._stopping.is_set()

    def wait(self, timeout_seconds: float) -> None:
        """Wait to be poked."""
        self._poked.wait(timeout_seconds)
        self._poked.clear()

    def sleep(self, seconds: float) -> None:
        """Sleep between two attempts of a call.

        Raises:
            StoppingError: The drain stops.
        """
        if self._stopping.wait(seconds):
            raise StoppingError("the drain stops")

    def listen(self, channel: AskingEnd) -> threading.Thread:
        """Receive on a thread until the channel closes; the drain ends with it."""

        def receive() -> None:
            channel.listen(self.poke)
            self.stop()

        thread = threading.Thread(target=receive, name="drain-receiver", daemon=True)
        thread.start()
        return thread


class DrainLoop:
    """Drains to one bucket what ``serve``, at the other end of the channel, hands out."""

    def __init__(  # noqa: PLR0913 - all that a drain works with
        self,
        serve: DrainService,
        bucket: Bucket,
        store_id: str,
        clock: Clock,
        *,
        probe: Callable[[], None],
        signals: Signals,
        traffic: Traffic,
        size: Size,
        open_store: OpenStore | None = None,
        store_clock: StoreClock | None = None,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        """A drain to ``bucket``; ``open_store`` opens others of its server, whose clock it is.

        ``prepare`` is called whenever large tasks come, beside them.
        """
        self._serve = serve
        self._signals = signals
        self._traffic = traffic
        self._size = size
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._outstanding = 0
        self._parts = ThreadPoolExecutor(size.parts, thread_name_prefix="drain-part")
        self._buffers = Buffers(size.budget_bytes)
        self._pieces = Buffers(size.parts * PIECE_BYTES)
        self.gates = Gates(ComputeSlots(size.threads), ComputeSlots(size.uploads + size.parts))
        self._remote_health = RemoteHealth(probe, self._report_health, clock)
        self._prepare = prepare
        self._claim = claim = StoreClaimer(serve, bucket, store_id)
        each = InBatches(self._parts)
        publisher = Publisher(bucket, clock, each=each, confirm=claim.confirm)
        self._compressor = Compressor(size.threads, self.gates.compute.slot)
        self._decisions = CompressionLog()
        self._copies = Copies(bucket.objects, clock, enabled=size.block_copies)
        context = self._upload_context(bucket)
        stamps = Stamps(store_id, store_clock or StoreClock(), clock.now)
        self._worker = Worker(
            serve,
            bucket.layout,
            publisher,
            Uploader(context),
            self._remote_health,
            claim,
            reads=self.gates.reads,
            objects=ObjectWorker(serve, open_store, context, self.gates.reads, stamps)
            if open_store
            else None,
            packs=PackSender(serve, context, bucket.layout, claim.identity, self.gates.reads),
        )

    def _upload_context(self, bucket: Bucket) -> UploadContext:
        chooser = Chooser(
            self._compressor,
            self._decisions,
            self._traffic.link,
            self.gates.compute.allowance,
        )
        return UploadContext(
            TimedObjectStore(bucket.objects),
            self._buffers,
            self._parts,
            self._signals.stopping,
            chooser,
            self._traffic.usual_upload_part_bytes,
            self._copies,
            self._pieces,
            FairSlots(lambda: self._size.parts),
            threading.Semaphore(max(PACKED_AT_ONCE, self._size.threads)),
        )

    def run(self) -> None:
        """Drain until the channel closes or ``Signals.stop``; return once nothing is in flight."""
        workers = [
            threading.Thread(target=self._work, name=f"drain-worker-{number}")
            for number in range(self._size.uploads)
        ]
        for worker in workers:
            worker.start()
        try:
            self._dispatch()
        except ChannelClosedError:
            pass
        finally:
            self._signals.stop()
            for _ in workers:
                self._tasks.put(None)
            for worker in workers:
                worker.join()
            self._parts.shutdown(cancel_futures=True)
            self._compressor.close()
            self._buffers.close()
            self._pieces.close()

    # --- the dispatcher --------------------------------------------------------------------------

    def _dispatch(self) -> None:
        while not self._signals.stopping():
            self._remote_health.probe()
            wait_seconds = self._fetch(max(0, self._room()))
            if self._remote_health.is_away:
                wait_seconds = self._remote_health.seconds_until_probe()
            elif self._outstanding:
                wait_seconds = min(wait_seconds, BUSY_SECONDS)
            self._signals.wait(wait_seconds)
            self._report_traffic()

    def _room(self) -> int:
        """Return how many tasks to ask for: twice what the workers take, when half of it is done.

        Each question makes ``serve`` look through its catalog, so few of them are asked.
        """
        if self._outstanding > self._size.uploads:
            return 0
        return min(2 * self._size.uploads, self._remote_health.allowed) - self._outstanding

    def _fetch(self, room: int) -> float:
        """Take up to ``room`` tasks; return after how many seconds to look again."""
        was_idle = not self._outstanding  # what ends during the question may yet fail
        try:
            handout = self._serve.next_work(room)
        except RefusedReportError as error:
            tell(log, events.DRAIN_NO_WORK, reason=str(error))
            return UNANSWERED_SECONDS
        with self._lock:
            self._outstanding += len(handout.tasks)
        if room:  # who asks for none does not hear what waits
            size_bytes = sum(task.size_bytes for task in handout.tasks)
            self._traffic.handed_out(size_bytes, all_of_it=len(handout.tasks) < room)
        for task in handout.tasks:
            self._tasks.put(task)
        self._go_ahead(handout.tasks)
        self._traffic.hurried, self._traffic.rate_limit = handout.hurried, handout.rate_limit
        due_in_seconds = handout.due_in_seconds
        if room and due_in_seconds is None and was_idle and not handout.tasks:
            self._remote_health.succeeded()  # nothing is left that could tell
        return IDLE_SECONDS if due_in_seconds is None else min(IDLE_SECONDS, due_in_seconds)

    def _go_ahead(self, tasks: Sequence[Task]) -> None:
        """Do what uploads would wait for while they cannot begin yet; a failure is theirs."""
        if any(task.kind is TaskKind.CLAIM for task in tasks):
            self._parts.submit(self._claim.identity)
        if any(task.size_bytes > SINGLE_PUT_BYTES for task in tasks):
            self._parts.submit(self._prepare)

    def _report_health(self, health: Health) -> None:
        self._serve.report_health(health)
        self._signals.poke()

    def _report_traffic(self) -> None:
        if (traffic := self._traffic.news()) is not None:
            self._serve.report_traffic(*traffic)
        if (copied := self._copies.news()) is not None:
            self._serve.report_copies(*copied)
        if (decided := self._decisions.news()) is not None:
            self._serve.report_compression(*decided)

    # --- the workers -----------------------------------------------------------------------------

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            if self._signals.stopping():
                continue
            try:
                if self._remote_health.is_away:
                    self._worker.hand_back(task)
                else:
                    self._worker.perform(task)
            except ChannelClosedError:
                self._signals.stop()
            except Exception as error:
                tell(log, events.DRAIN_BROKEN, task=task.number, error=error)
                self._signals.stop()  # the next drain gets the task again
            with self._lock:
                self._outstanding -= 1
            self._traffic.ended(task.size_bytes)
            self._signals.poke()
