"""Ten services on one bucket, killed at random, and jobs that move between them, judged meanwhile.

A job saves steps on some nodes, loses a rank or not, and starts again on others, with another world
size. Before it does, everything acknowledged of it is durable or announced in the bucket; so it
resumes from its newest whole step, or is told of it. Whoever looks asks ``latest`` of a node, and
then every node for every shard of the step: all are of that save, unless the bucket has another by
then.
"""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cachetier_client.errors import CachetierClientError, UnflushedStepsError
from cachetier_client.results import StepInfo

from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from tests.fakes.loop_disk import Disk
from tests.soak.bucket import BareBucket
from tests.soak.history import EventLog, History
from tests.soak.judge import Judge
from tests.soak.nodes import START_SECONDS, Node
from tests.soak.payloads import checksum, payload

NODES, JOBS, WORLDS = 10, 3, (1, 2, 3)
READERS = 3  # nodes that read each step in the end, beside those that read the latest
SIZES = (0, 3_000, 65_536, 65_537, 300_000)
CALL_SECONDS, SETTLE_SECONDS = 20.0, 120.0
STALE_SECONDS = 6.0  # after which no answer is of before: knowledge is good for five
MISHAP, ROLLED_BACK, FLUSHED, DELETED = 0.3, 0.15, 0.5, 0.05  # shares of generations, and of steps
LATENCIES = (0.0, 0.05, 0.3)
# Every third node has packs; every third has a backlog most of the time.
KINDS: tuple[dict[str, str], ...] = ({"pack": "on"}, {"max_rate": "100 kB/s"}, {})
# A node that is killed, or a bucket far away: the answer is none.
AWAY = ("unavailable", "deadline", "stopping", "busy", "backpressure", "remote_transient")


class Fleet:
    """The nodes; some are away at any time."""

    def __init__(self, top: Path, endpoint: S3Endpoint, count: int) -> None:
        self.nodes: list[Node] = []
        self.dead: set[str] = set()
        self._lock = threading.Lock()
        # A service dies with the thread that started it: this one stays.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="fleet")
        for number in range(count):
            home = top / f"n{number}"
            home.mkdir()
            settings = {"capacity": "150MB", **KINDS[number % len(KINDS)]}
            self.nodes.append(Node(f"n{number}", home, Disk(home), endpoint, settings))

    def start(self) -> None:
        self._start(self.nodes)

    def _start(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._starter.submit(node.launch).result()
        for node in nodes:
            if not wait(node.answers, START_SECONDS):
                raise RuntimeError(f"{node.name} does not start: see {node.log}")

    def kill(self, node: Node) -> bool:
        """Kill a service, unless too many are away."""
        with self._lock:
            if node.name in self.dead or len(self.dead) >= 2:
                return False
            self.dead.add(node.name)
        node.kill()
        return True

    def revive(self, node: Node) -> None:
        self._start([node])
        with self._lock:
            self.dead.discard(node.name)

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self._starter.shutdown()


@dataclass
class Seen:
    """What everybody of a round has met, and what was wrong."""

    failures: list[str] = field(default_factory=list)
    met: Counter[str] = field(default_factory=Counter)
    read_bytes: int = 0

    def require(self, condition: object, message: str) -> None:
        if not condition:
            self.failures.append(message)


class Watcher:
    """Asks for ``latest``, and then for all of it; everything it may get is in ``history``."""

    def __init__(self, bucket: BareBucket, history: History, seen: Seen) -> None:
        self._bucket = bucket
        self._history = history
        self._seen = seen

    def whole(self, run: str, asked: Node, others: Iterable[Node]) -> StepInfo | None:
        """Ask a node for the newest durable step, and read it there and at others."""
        with asked.client() as client:
            info = client.latest(run, timeout_seconds=CALL_SECONDS)
        if info is not None:
            self.read(run, info.step, info.save_id, asked, at_once=True)
            for node in others:
                self.read(run, info.step, info.save_id, node)
        return info

    def read(self, run: str, step: int, save_id: str, node: Node, *, at_once: bool = False) -> None:
        """Read a step of a node; one that did not name it itself may take a moment to look."""
        give_up_at = time.monotonic() + (0.0 if at_once else 4 * STALE_SECONDS)
        while True:
            wrong = self._wrong(run, step, save_id, node)
            if wrong and time.monotonic() < give_up_at:
                self._seen.met["answers that were late"] += 1
                time.sleep(0.5)
                continue
            self._seen.require(not wrong, wrong)
            self._seen.met["steps read whole"] += not wrong
            return

    def _wrong(self, run: str, step: int, save_id: str, node: Node) -> str:
        """Return what is wrong with a step of a node, if the bucket has it all the while."""
        manifest = self._bucket.published(run, step)
        if manifest is None or manifest.save_id != save_id:
            return ""
        wrong = ""
        for name in [shard.name for shard in manifest.shards]:
            try:
                with node.client() as client:
                    body = client.get_shard(run, step, name, timeout_seconds=CALL_SECONDS)
            except CachetierClientError as error:
                if error.code in AWAY:
                    return ""
                wrong = f"{name}: {error.code}: {error}"
                break
            self._seen.read_bytes += len(body)
            puts = self._history.update()[run, step].attempts(name)
            found = {put.sum: put.save for put in puts}.get(checksum(body))
            if found != save_id:
                wrong = f"{name} is of {found}: a mix of saves"
                break
        now = self._bucket.published(run, step)
        is_there = now is not None and now.save_id == save_id
        return f"{run}/{step} of {save_id} at {node.name}: {wrong}" if wrong and is_there else ""


class MovingJob:
    """One run, and its life of generations; each saves under its own id."""

    def __init__(
        self,
        run: str,
        fleet: Fleet,
        watcher: Watcher,
        bucket: BareBucket,
        history: History,
        log: EventLog,
        seen: Seen,
        dice: random.Random,
    ) -> None:
        self.run = run
        self._fleet = fleet
        self._watcher = watcher
        self._bucket = bucket
        self._history = history
        self._log = log
        self._seen = seen
        self._dice = dice
        self._places: Sequence[Node] = ()
        self._generation = 0

    def live(self, stopping: threading.Event) -> None:
        step = 0
        while not stopping.is_set():
            with suppress(CachetierClientError):
                step = self._move(step)
                self._train(step, stopping)

    # --- a move ----------------------------------------------------------------------------------

    def _move(self, step: int) -> int:
        """Start on other nodes, perhaps while one of those before is away; return where."""
        owed = self._newest_whole()
        if owed is not None and not self._is_known(*owed):
            time.sleep(STALE_SECONDS)
        old, places = self._places, self._dice.sample(self._fleet.nodes, self._dice.choice(WORLDS))
        away = self._dice.choice(old) if old and self._dice.random() < 0.3 else None
        if away is not None and (away in places or not self._fleet.kill(away)):
            away = None
        try:
            resumed = self._resume(owed, places, old)
        finally:
            if away is not None:
                self._fleet.revive(away)
        self._places = places
        self._generation += 1
        self._seen.met["moves"] += 1
        if resumed and self._dice.random() < ROLLED_BACK:
            self._seen.met["jobs that rolled back"] += 1
            return max(1, resumed - self._dice.randint(1, 3))
        return resumed + 1

    def _newest_whole(self) -> tuple[int, str] | None:
        whole = [
            (number, saves[-1])
            for (run, number), step in self._history.update().items()
            if run == self.run and (saves := step.whole_saves) and not step.maybe_deleted
        ]
        return max(whole, default=None)

    def _is_known(self, number: int, save: str) -> bool:
        """Wait until the bucket has a step, or notes of all of it; return whether it has it."""
        world = self._history.update()[self.run, number].saves[save].world

        def is_noted() -> bool:
            saves = [each for note in self._bucket.notes(self.run) for each in note["saves"]]
            mine = [each for each in saves if (each["step"], each["save_id"]) == (number, save)]
            return len({rank for each in mine for rank in each["ranks"]}) == world

        def is_published() -> bool:
            return self._bucket.published(self.run, number) is not None

        known = wait(lambda: is_published() or is_noted(), SETTLE_SECONDS)
        self._seen.require(known, f"{self.run}/{number} of {save}: in no bucket and no note")
        return is_published()

    def _resume(
        self, owed: tuple[int, str] | None, places: Sequence[Node], old: Sequence[Node]
    ) -> int:
        """Return the step to resume from, of which every place can read everything."""
        told = self._asked(owed, places)
        if told and self._dice.random() < FLUSHED:
            for node in old:
                with suppress(CachetierClientError), node.client() as client:
                    client.flush(self.run, timeout_seconds=CALL_SECONDS)
            self._seen.met["flushes before a start"] += 1
        found = None
        for node in places:
            found = self._watcher.whole(self.run, node, places)
        return found.step if found is not None else 0

    def _asked(self, owed: tuple[int, str] | None, places: Sequence[Node]) -> bool:
        """Ask at each place as a job that starts; return whether one was told of a newer step.

        A step that is all on the node that is asked is no news to it.
        """
        found, told = {}, False
        for node in places:
            with node.client() as client:
                infos = [client.latest(self.run, "local", timeout_seconds=CALL_SECONDS)]
                try:
                    infos.append(client.latest(self.run, strict=True, timeout_seconds=CALL_SECONDS))
                except UnflushedStepsError:
                    self._seen.met["jobs that were told"] += 1
                    told = True
            found[node.name] = max((info.step for info in infos if info is not None), default=0)
        if owed is not None and not told:
            behind = {name: step for name, step in found.items() if step < owed[0]}
            where = f"{self.run} resumes from {found}"
            self._seen.require(not behind, f"{where}, and is not told of {owed}")
        return told

    # --- training --------------------------------------------------------------------------------

    def _train(self, first: int, stopping: threading.Event) -> None:
        """Save some steps; the last one may be left by a rank in the middle."""
        last = first + self._dice.randint(1, 5)
        with ThreadPoolExecutor(len(self._places)) as ranks:
            for step in range(first, last + 1):
                if stopping.is_set():
                    return
                mishap = step == last and self._dice.random() < MISHAP
                quits = self._dice.randrange(len(self._places)) if mishap else -1
                save = [
                    ranks.submit(self._save, step, rank, node, quits == rank)
                    for rank, node in enumerate(self._places)
                ]
                for each in save:
                    each.result()
                if self._dice.random() < DELETED:
                    self._delete(self._dice.randint(1, step))

    def _save(self, step: int, rank: int, node: Node, quits: bool) -> None:
        save = f"g{self._generation}"
        dice = random.Random(f"{self.run}/{step}/{save}/{rank}")
        who = {"node": node.name, "run": self.run, "step": step, "save": save, "rank": rank}
        who["world"] = world = len(self._places)
        with node.client() as client:
            part = client.checkpoint(
                self.run,
                step,
                rank=rank,
                world_size=world,
                save_id=save,
                overwrite=True,
                timeout_seconds=CALL_SECONDS,
            )
            for number in range(dice.randint(1, 3)):
                name, size = f"rank-{rank}/{number}", dice.choice(SIZES)
                data = payload(self.run, step, save, name, 0, size) or save.encode()
                what = {"name": name, "size": len(data), "sum": checksum(data)}
                with self._log.call("put", **who, **what):
                    part.put(data, name)
            if quits:
                self._seen.met["ranks that died in a step"] += 1
                return
            with self._log.call("seal", **who):
                part.seal()

    def _delete(self, step: int) -> None:
        """Delete a published step by any node, if it was saved once."""
        node = self._dice.choice(self._fleet.nodes)
        saves = self._history.update()[self.run, step].saves
        if len(saves) != 1 or self._bucket.published(self.run, step) is None:
            return
        what = {"node": node.name, "run": self.run, "step": step}
        with suppress(CachetierClientError), node.client() as client:
            with self._log.call("delete", **what):
                client.delete_step(self.run, step, timeout_seconds=CALL_SECONDS)
            self._seen.met["deletions"] += 1


class MovingSoak:
    """Rounds of moving jobs; see the module."""

    def __init__(
        self, top: Path, endpoint: S3Endpoint, proxy: S3Proxy, seed: int, nodes: int = NODES
    ) -> None:
        self.met: Counter[str] = Counter()
        self.read_bytes = 0
        self._top = top
        self._seed = seed
        self._proxy = proxy
        self._bucket = BareBucket(endpoint.store())
        self._log_offsets: dict[Path, int] = {}
        self.fleet = Fleet(top, endpoint.behind(proxy.url), nodes)

    def round(self, number: int, seconds: float) -> list[str]:
        """Let jobs move for a while, then everything come to rest; return what was wrong."""
        events, seen = self._top / f"moves-{number}", Seen()
        events.mkdir()
        history, log = History(events), EventLog(events / "jobs.events")
        watcher = Watcher(self._bucket, history, seen)
        runs = [f"moving-{number}-{job}" for job in range(JOBS)]
        common = self.fleet, watcher, self._bucket, history, log, seen
        jobs = [MovingJob(run, *common, self._dice(number, run)) for run in runs]
        stopping = threading.Event()
        works: list[Callable[[], None]] = [lambda job=job: job.live(stopping) for job in jobs]  # type: ignore[misc]
        works.append(lambda: self._kill(self._dice(number, "kills"), seen, stopping))
        works.append(lambda: self._watch(watcher, runs, self._dice(number, "looks"), stopping))
        with _together(works, seen) as running:
            give_up_at = time.monotonic() + seconds
            while time.monotonic() < give_up_at and all(each.is_alive() for each in running):
                time.sleep(0.2)
            stopping.set()
        self._settle(history, seen, watcher, runs)
        self.met += seen.met
        self.read_bytes += seen.read_bytes
        return seen.failures

    def _dice(self, number: int, name: str) -> random.Random:
        return random.Random(f"{self._seed}/{number}/{name}")

    def _kill(self, dice: random.Random, seen: Seen, stopping: threading.Event) -> None:
        """Kill services, and let S3 be near or far."""
        while not stopping.wait(dice.uniform(0.5, 4.0)):
            self._proxy.latency_seconds = dice.choice(LATENCIES)
            node = dice.choice(self.fleet.nodes)
            if self.fleet.kill(node):
                seen.met["services killed"] += 1
                stopping.wait(dice.uniform(0.0, 3.0))
                self.fleet.revive(node)

    def _watch(
        self, watcher: Watcher, runs: list[str], dice: random.Random, stopping: threading.Event
    ) -> None:
        while not stopping.wait(dice.uniform(0.0, 1.0)):
            with suppress(CachetierClientError):
                others = dice.sample(self.fleet.nodes, 3)
                watcher.whole(dice.choice(runs), dice.choice(self.fleet.nodes), others)

    def _settle(self, history: History, seen: Seen, watcher: Watcher, runs: list[str]) -> None:
        """Let all drain; then the bucket has every whole step, and all nodes give the same."""
        self._proxy.latency_seconds = 0.0
        for node in self.fleet.nodes:
            with suppress(CachetierClientError), node.client() as client:
                client.flush(timeout_seconds=SETTLE_SECONDS)
        steps = history.update()
        owed = {at for at, step in steps.items() if step.whole_saves and not step.maybe_deleted}
        wait(lambda: all(self._bucket.published(*at) for at in owed), SETTLE_SECONDS)
        judge = Judge(self._bucket, {node.name: node for node in self.fleet.nodes})
        judge.steps(steps)
        judge.logs(self._log_offsets)
        seen.failures += judge.failures
        for run in runs:
            time.sleep(STALE_SECONDS)
            infos = {self._latest(run, node) for node in self.fleet.nodes}
            seen.require(len(infos) == 1, f"{run}: nodes name {infos} as the latest")
            for (of, number), step in steps.items():
                manifest = self._bucket.published(of, number) if of == run else None
                if manifest is not None and not step.maybe_deleted:
                    for node in self._dice(number, run).sample(self.fleet.nodes, READERS):
                        watcher.read(run, number, manifest.save_id, node)

    def _latest(self, run: str, node: Node) -> tuple[int, str] | None:
        with node.client() as client:
            info = client.latest(run, timeout_seconds=CALL_SECONDS)
        return None if info is None else (info.step, info.save_id)

    def close(self) -> None:
        self.fleet.close()


@contextmanager
def _together(works: Sequence[Callable[[], None]], seen: Seen) -> Iterator[list[threading.Thread]]:
    """Run all of ``works`` beside the block, until they end by themselves."""

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            seen.failures.append(traceback.format_exc())

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        for thread in threads:
            thread.join()


def wait(is_so: Callable[[], bool], seconds: float) -> bool:
    """Wait until something is so; return whether it came to be in time."""
    give_up_at = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.1)
    return True
