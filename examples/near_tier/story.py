"""Lose a server of the near tier, then the node, while S3 is cut off; get the step back."""

from __future__ import annotations

import random
import shutil
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from cachetier_client import Client, StepInfo
from cachetier_client.results import Level

from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.seaweed import seaweedfs
from cachetier.testing.seaweed_cluster import SeaweedCluster, seaweed_cluster
from examples.demo.narrate import Narrator
from examples.demo.servers import BUCKET, LATENCY_MS, PREFIX, Service, environment
from examples.demo.verdict import Comparison, VoidError
from examples.demo.work_dir import shown

RUN = "near"
RANKS = 4
SHARD_BYTES = 48 << 20
EVERYWHERE, ONLY_NEAR, NEXT = 100, 200, 300  # steps
BEGUN_BYTES = 32 << 20
SECONDS = 60.0

SETTINGS = f"""\
[remote]
url      = "s3://{BUCKET}/{PREFIX}"
endpoint = "{{far}}"

[replicas.near]
url      = "s3://{BUCKET}/{PREFIX}"
endpoint = "{{near}}"
"""


@dataclass(frozen=True, slots=True)
class Far:
    """Where the service finds S3, and what lets it in."""

    url: str
    environment: dict[str, str]


@dataclass(slots=True)
class Save:
    """How long after the first put a step had reached each level."""

    step: int
    local_seconds: float
    replicated_seconds: float | None = None
    durable_seconds: float | None = None


class Story:
    """Tells the story once; every process it starts is ended when ``stack`` is."""

    def __init__(self, work_dir: Path, narrator: Narrator, stack: ExitStack) -> None:
        self._work_dir = work_dir
        self._say, self._phase = narrator.say, narrator.phase
        self._narrator = narrator
        self._stack = stack
        self.comparisons: list[Comparison] = []
        self.saves: list[Save] = []
        self.restore_seconds = 0.0

    def tell(self) -> None:
        """Go through all parts; ``comparisons`` and ``saves`` fill up on the way."""
        self._start_servers()
        self._save_everywhere()
        self._lose_a_server()
        self._lose_the_node()
        self._restore_from_near()
        self._far_comes_back()

    # --- the parts -------------------------------------------------------------------------------

    def _start_servers(self) -> None:
        self._phase("Start S3 far away, a cluster nearby, and cachetier on this node")
        self._far_server: S3Endpoint = self._stack.enter_context(
            seaweedfs(self._work_dir / "far", bucket=BUCKET)
        )
        latency = LATENCY_MS / 1000
        self._far = S3Proxy(self._far_server.url, latency_seconds=latency)
        self._stack.enter_context(self._far)
        self._say(f"S3 is up, {LATENCY_MS} ms away at {self._far.url}")
        self._cluster: SeaweedCluster = self._stack.enter_context(
            seaweed_cluster(self._work_dir / "cluster", bucket=BUCKET)
        )
        self._near_store = self._cluster.endpoint.store()
        self._near = self._stack.enter_context(S3Proxy(self._cluster.endpoint.url))
        self._say(
            f"the cluster is up at {self._near.url}: "
            f"{self._cluster.known_servers()} volume servers, every byte on two of them"
        )
        config = self._work_dir / "cachetier.toml"
        config.write_text(SETTINGS.format(far=self._far.url, near=self._near.url))
        variables = self._far_server.environment() | {"CACHETIER_CONFIG": str(config)}
        self._service = Service(self._work_dir, Far(self._far.url, environment() | variables))
        self._stack.callback(self._service.stop)
        self._start_node()
        self._say(f"cachetier serve is up at {self._service.url}, as {shown(config)} says")

    def _save_everywhere(self) -> None:
        self._phase(f"Save step {EVERYWHERE}; wait until it is in both")
        self._save_until_durable(EVERYWHERE)

    def _lose_a_server(self) -> None:
        self._phase(f"Cut S3 off; save step {ONLY_NEAR}; kill a storage server in mid-upload")
        self._far.stop()
        self._say(f"nothing answers at {self._far.url} any more")
        before = self._stored_bytes()
        save, began_at = self._save(ONLY_NEAR)
        enough = sum(before) + BEGUN_BYTES
        self._until(lambda: sum(self._stored_bytes()) > enough, "an upload to begin")
        grown = [now - then for now, then in zip(self._stored_bytes(), before, strict=True)]
        victim = max(range(len(grown)), key=grown.__getitem__)
        pid = self._cluster.kill(victim)
        struck = self._in_flight(ONLY_NEAR)
        if not struck or not grown[victim]:
            raise VoidError("nothing was on its way to the cluster when its server was killed")
        self._say(
            f"[bold]kill -9[/] of volume server {victim} (pid {pid}): it had taken "
            f"{grown[victim] / 1e6:.0f} MB, and {len(struck)} shards were half sent"
        )
        self._client.wait(RUN, ONLY_NEAR, level="replicated", timeout_seconds=SECONDS)
        save.replicated_seconds = time.monotonic() - began_at
        levels = self._step(ONLY_NEAR).levels
        servers = self._cluster.known_servers()
        self._say(
            f"step {ONLY_NEAR} is replicated after {save.replicated_seconds:.1f} s, "
            f"on the {servers} servers that are left"
        )
        self._compare(f"step {ONLY_NEAR} was replicated with one server killed", servers == 2)
        self._compare(f"step {ONLY_NEAR} was never durable", "durable" not in levels)

    def _lose_the_node(self) -> None:
        self._phase("Lose the node: kill -9, delete its cache")
        assert self._service.child is not None
        self._service.child.kill()
        files = [path for path in self._service.cache_dir.rglob("*") if path.is_file()]
        size_bytes = sum(path.stat().st_size for path in files)
        shutil.rmtree(self._service.cache_dir)
        self._say(f"deleted {len(files)} files, {size_bytes / 1e6:.0f} MB")

    def _restore_from_near(self) -> None:
        self._phase('A new node, S3 still cut off: restore latest(level="replicated")')
        self._start_node()
        self._compare("the new node knew nothing of the run", self._latest("local") is None)
        self._compare("S3 was cut off", not _answers(self._far.port))
        newest = self._latest("replicated")
        self._compare(f"the newest replicated step is {ONLY_NEAR}", newest == ONLY_NEAR)
        began_at = time.monotonic()
        same = self._restored(ONLY_NEAR)
        self.restore_seconds = time.monotonic() - began_at
        self._say(
            f"{RANKS * SHARD_BYTES / 1e6:.0f} MB came back from the cluster "
            f"in {self.restore_seconds:.1f} s"
        )
        self._compare(f"step {ONLY_NEAR} bit for bit, from the near tier", same)
        same = self._restored(EVERYWHERE)
        self._compare(f"step {EVERYWHERE} bit for bit, from the near tier", same)

    def _far_comes_back(self) -> None:
        self._phase("S3 comes back: what was durable still is, and the job goes on")
        self._far.come_back()
        self._until(lambda: self._latest("durable") == EVERYWHERE, "S3 to be asked again")
        store = self._far_server.store()
        same = all(
            store.get(f"{PREFIX}/{RUN}/{EVERYWHERE}/{name}") == body
            for name, body in _shards(EVERYWHERE).items()
        )
        self._compare(f"S3 holds step {EVERYWHERE} bit for bit", same)
        self._compare(
            f"step {ONLY_NEAR} is still the newest replicated one",
            self._latest("replicated") == ONLY_NEAR,
        )
        self._save_until_durable(NEXT)
        self._compare(f"the newest durable step is {NEXT}", self._latest("durable") == NEXT)

    # --- saving and restoring --------------------------------------------------------------------

    def _save(self, step: int) -> tuple[Save, float]:
        """Save a step as ranks do; return once it is safe here, with the instant it began at."""
        shards = _shards(step)
        began_at = time.monotonic()
        with ThreadPoolExecutor(RANKS) as ranks:
            list(ranks.map(lambda rank: self._put(step, rank, shards[_name(rank)]), range(RANKS)))
        save = Save(step, time.monotonic() - began_at)
        self.saves.append(save)
        self._say(
            f"{RANKS} ranks saved {RANKS * SHARD_BYTES / 1e6:.0f} MB: "
            f"safe on this node after {save.local_seconds:.2f} s"
        )
        return save, began_at

    def _put(self, step: int, rank: int, body: bytes) -> None:
        # Ranks that a launcher started agree on a save's identity by themselves.
        with self._client.checkpoint(
            RUN, step, rank=rank, world_size=RANKS, save_id=f"save-{step}"
        ) as checkpoint:
            checkpoint.put(body, _name(rank))

    def _save_until_durable(self, step: int) -> None:
        save, began_at = self._save(step)
        self._client.wait(RUN, step, level="replicated", timeout_seconds=SECONDS)
        save.replicated_seconds = time.monotonic() - began_at
        self._client.wait(RUN, step, level="durable", timeout_seconds=SECONDS)
        save.durable_seconds = time.monotonic() - began_at
        # One remote is enough for `replicated`; the rest of the story needs the step in both.
        self._until(lambda: not self._owed(), "the near tier")
        self._say(
            f"replicated after {save.replicated_seconds:.1f} s, "
            f"durable after {save.durable_seconds:.1f} s"
        )

    def _restored(self, step: int) -> bool:
        """Return whether every rank gets back what it saved."""
        shards = _shards(step)
        return all(self._client.get_shard(RUN, step, name) == shards[name] for name in shards)

    # --- looking ---------------------------------------------------------------------------------

    def _start_node(self) -> None:
        self._service.start(self._narrator)
        self._client = Client(self._service.url)
        self._stack.callback(self._client.close)

    def _latest(self, level: Level) -> int | None:
        newest = self._client.latest(RUN, level=level)
        return None if newest is None else newest.step

    def _step(self, step: int) -> StepInfo:
        return next(each for each in self._client.steps(RUN) if each.step == step)

    def _owed(self) -> int:
        """Return how many steps some remote does not have yet."""
        return sum(remote["pending_steps"] for remote in self._client.status()["remotes"])

    def _stored_bytes(self) -> list[int]:
        return [self._cluster.stored_bytes(number) for number in range(3)]

    def _in_flight(self, step: int) -> list[str]:
        """Return the keys whose upload to the cluster has begun and not ended."""
        return [key for key, _ in self._near_store.list_uploads(f"{PREFIX}/{RUN}/{step}/")]

    def _compare(self, what: str, held: bool) -> None:
        self.comparisons.append(Comparison(what, held))
        self._say(f"{what}: {'[green]yes[/]' if held else '[bold red]no[/]'}")

    def _until(self, done: Callable[[], object], what: str) -> None:
        give_up_at = time.monotonic() + SECONDS
        while not done():
            if time.monotonic() > give_up_at:
                raise VoidError(f"waited {SECONDS:g} s in vain for {what}")
            self._narrator.waiting_for(what)
            time.sleep(0.01)


def _name(rank: int) -> str:
    return f"rank-{rank}/weights"


def _shards(step: int) -> dict[str, bytes]:
    """Return what the ranks save at a step: the same each time it is asked for."""
    return {_name(rank): random.Random(step + rank).randbytes(SHARD_BYTES) for rank in range(RANKS)}


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True
