"""A node with two remotes against a model: what was promised at a level can be read at it."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import hypothesis.strategies as st
import pytest
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cachetier.drain.serve.remote_state import RemoteState
from cachetier.errors import CachetierError, RemoteError
from cachetier.local.catalog import copies, shards
from cachetier.model.lifecycle import ShardState
from cachetier.remote.bucket import Bucket, Remote
from cachetier.restore.fill import Room
from cachetier.restore.replica_choice import AWAY_SECONDS, Replicas
from cachetier.restore.restore import Restore
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.fake_drain import REMOTE
from tests.stateful.fake_replica import FakeReplica
from tests.stateful.node import Node
from tests.stateful.reading import bytes_of_opened
from tests.stateful.unsynced import unsynced

NAMES = st.sampled_from(["a", "b"])
STEPS = st.integers(1, 3)
FOREIGN = [f"tier/run/{location}/README.txt" for location in ("1", "2", "3", "1~save-2")]


class TwoRemotes(RuleBasedStateMachine):
    """Puts, drains, outages, evictions, deletions, the loss of the node."""

    @initialize(required=st.booleans())
    def begin(self, required: bool) -> None:
        self.required = required
        self.scratch = Path(tempfile.mkdtemp(prefix="ct-"))
        self.vfs = unsynced()
        self.vfs_name = self.vfs.__enter__()
        self.clock = FakeClock()
        self.stores = [MemoryObjectStore(minimum_part_bytes=1) for _ in ("far", "near")]
        for store in self.stores:
            for key in FOREIGN:
                store.put(key, b"theirs", digest=digest_of(b"theirs"))
        self.far, self.near = map(FaultyObjectStore, self.stores)
        self.saves = 0
        self.nodes = 0
        self.bodies: dict[tuple[int, str], bytes] = {}  # of the save that counts, by step and name
        self.replicated: set[int] = set()
        self.durable: set[int] = set()
        self.open_node()

    def open_node(self) -> None:
        self.nodes += 1
        self.node = Node(self.scratch / str(self.nodes), self.far, self.clock, vfs=self.vfs_name)
        self.node.store.write(copies.configure_replicas, {"near": self.required})
        near = Bucket(self.near, Layout("tier"))
        remote_state = RemoteState(self.node.store, "near")
        self.replica = FakeReplica(self.node.store, near, self.clock, remote_state)
        self.restore = Restore(
            self.node.store,
            self.node.bucket,
            self.clock,
            remote=REMOTE,
            replicas=Replicas([Remote("near", near)]),
            room=Room(lambda: None),
        )

    # --- what happens ----------------------------------------------------------------------------

    @rule(step=STEPS, names=st.sets(NAMES, min_size=1), size=st.sampled_from([3, 70_000]))
    def save(self, step: int, names: set[str], size: int) -> None:
        if step in self.replicated | self.durable:
            return  # a published step is not saved again here
        self.saves += 1
        self.clock.advance(1.0)
        ids = SaveIds("run", step, f"save-{self.saves}", 0, 1)
        for name in ("a", "b"):
            self.bodies.pop((step, name), None)
        for name in names:
            body = bytes([self.saves % 256]) * size
            self.node.put(ids, name, body)
            self.bodies[step, name] = body
        self.node.checkpoints.seal(ids, 1)

    @rule()
    def drain_far(self) -> None:
        with suppress(RemoteError):
            self.node.drain.drain_all()
        self.note()

    @rule()
    def drain_near(self) -> None:
        self.replica.drain_all()
        self.note()

    @rule(far=st.booleans(), near=st.booleans())
    def outage(self, far: bool, near: bool) -> None:
        for store, down in ((self.far, far), (self.near, near)):
            if down:
                store.go_down()
            else:
                store.mend()

    @rule()
    def time_passes(self) -> None:
        self.clock.advance(AWAY_SECONDS + 1.0)

    @rule()
    def evict(self) -> None:
        for shard in self.node.store.read(shards.clean_local_shards):
            with suppress(RemoteError):
                if self.restore.sources.still_there(shard):
                    self.node.store.evict(shard)

    @precondition(lambda self: self.nodes < 3)
    @rule()
    def lose_the_node(self) -> None:
        self.close_node()
        kept = self.replicated | self.durable
        self.bodies = {key: body for key, body in self.bodies.items() if key[0] in kept}
        self.open_node()

    @rule(step=STEPS)
    def delete(self, step: int) -> None:
        try:
            self.node.checkpoints.delete_step("run", step)
        except CachetierError:
            return
        self.bodies = {key: body for key, body in self.bodies.items() if key[0] != step}
        if step in self.replicated - self.durable and self.nodes > 1:
            return  # a node that never saw it deletes it only where it is told of
        self.replicated.discard(step)
        self.durable.discard(step)

    def note(self) -> None:
        """Remember what was promised: it holds whatever comes."""
        for step in {step for step, _ in self.bodies}:
            with suppress(CachetierError):
                levels = self.node.checkpoints.step("run", step)[0].levels
                if "replicated" in levels:
                    self.replicated.add(step)
                if "durable" in levels:
                    self.durable.add(step)

    # --- what must hold --------------------------------------------------------------------------

    @rule(step=STEPS, name=NAMES)
    def read(self, step: int, name: str) -> None:
        expected = self.bodies.get((step, name))
        try:
            opened = self.restore.open("run", step, name, 0.0)
        except RemoteError:
            assert self.far._outage or self.near._outage, "nobody is away"
            return
        except CachetierError:
            assert expected is None, f"step {step} had {name}"
            return
        body = bytes_of_opened(opened)
        assert expected is None or body == expected

    @invariant()
    def clean_is_at_every_required_remote(self) -> None:
        if not hasattr(self, "node"):
            return
        for shard in self.node.rows():
            verified = self.node.store.read(
                lambda sql, version=shard.version: shards.verified_remotes(sql, version)  # type: ignore[misc]
            )
            if shard.state is ShardState.CLEAN or shard.state is ShardState.EVICTED:
                assert verified, f"{shard.name} of step {shard.step} is {shard.state}, and nowhere"

    @invariant()
    def what_somebody_else_put_is_there(self) -> None:
        for store in getattr(self, "stores", ()):
            assert [store.get(key) for key in FOREIGN] == [b"theirs"] * len(FOREIGN)

    def close_node(self) -> None:
        self.restore.close()
        self.node.close()

    def teardown(self) -> None:
        if hasattr(self, "node"):
            self.close_node()
            self.vfs.__exit__(None, None, None)
            shutil.rmtree(self.scratch)


TestTwoRemotes = TwoRemotes.TestCase
TestTwoRemotes.settings = settings(max_examples=25, stateful_step_count=30)
TestTwoRemotes = pytest.mark.stateful(TestTwoRemotes)
