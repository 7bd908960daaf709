"""A Hypothesis state machine: the objects of two nodes of one bucket, against dictionaries.

Acknowledged is readable and listed on its node, whatever was drained, evicted or killed since. Each
writes one thing after the other, and so the bucket shows it: whatever fails on the way, nothing is
shown without all that was acknowledged before it, and nothing is left out. The other node reads
what is shown.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from cachetier.errors import CachetierError
from cachetier.model.objects import Head
from cachetier.remote.wrapped import Operation
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore, fail, lose_reply
from tests.fakes.memory_store import MemoryObjectStore
from tests.faults.counting import count
from tests.faults.slices import share_of
from tests.stateful.invariants import judge_bytes, judge_figures, judge_rows
from tests.stateful.model import OK, Model
from tests.stateful.node import Node
from tests.stateful.object_node import MOUNT
from tests.stateful.unsynced import unsynced

pytestmark = [pytest.mark.slow]

NODES, NAMES = (0, 1), ("a", "b/c", "latest")
CHANGES: tuple[Operation, ...] = ("put", "delete", "upload_part", "complete_upload")
SMALL, LARGE = 300, 70_000
nodes, names = st.sampled_from(NODES), st.sampled_from(NAMES)
sizes = st.sampled_from([0, SMALL, SMALL, LARGE])
LIVES, LIVES_OF_A_SEED, ROUNDS = 600, 30, 12
SLOW = settings(
    max_examples=LIVES_OF_A_SEED,
    stateful_step_count=40,
    deadline=None,
    database=None,
    suppress_health_check=settings.get_profile("default").suppress_health_check,
)


class Writer:
    """A node, whose program writes keys of its own; ``history`` is all that it ever had."""

    def __init__(self, number: int, open_node: Callable[[], Node]) -> None:
        self.prefix = f"{MOUNT.prefix}{number}/"
        self.open_node = open_node
        self.node = open_node()
        self.model = Model()
        self.history: list[dict[str, bytes]] = [{}]
        self.shown = 0

    def key(self, name: str) -> str:
        return f"{self.prefix}{name}"

    def did(self) -> None:
        self.history.append(dict(self.model.objects))

    def see(self, there: dict[str, bytes]) -> None:
        """Hold what the bucket shows after one task more against the node's history."""
        now, *later = self.history[self.shown :]
        following = next((then for then in later if then != now), now)
        assert there in (now, following), f"the bucket shows {there.keys()}, which was never next"
        if there != now:
            self.shown += 1 + later.index(there)


class TwoNodes(RuleBasedStateMachine):
    """Two nodes before one bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.vfs = self.stack.enter_context(unsynced())
        self.place = Path(tempfile.mkdtemp(prefix="objects-"))
        self.clock = FakeClock()
        self.remote = MemoryObjectStore(minimum_part_bytes=1, clock=self.clock)
        self.remotes = [FaultyObjectStore(self.remote) for _ in NODES]
        self.written = 0
        self.writers: list[Writer] = []

    @initialize()
    def start(self) -> None:
        self.writers = [
            Writer(number, lambda number=number: self._open(number))  # type: ignore[misc]
            for number in NODES
        ]

    def _open(self, number: int) -> Node:
        return Node(self.place / str(number), self.remotes[number], self.clock, vfs=self.vfs)

    def teardown(self) -> None:
        for writer in self.writers:
            writer.node.die()
        self.stack.close()
        shutil.rmtree(self.place)

    # --- programs --------------------------------------------------------------------------------

    @rule(number=nodes, name=names, size=sizes)
    def put(self, number: int, name: str, size: int) -> None:
        writer, data = self.writers[number], self._data(size)
        answer = writer.node.objects.put(writer.key(name), data, Head({}, {"who": str(number)}))
        assert answer.etag == writer.node.objects.objects.head(MOUNT, writer.key(name)).etag
        writer.model.put_object(writer.key(name), data)
        writer.did()

    @rule(number=nodes, name=names, absent=st.booleans())
    def put_under_a_condition(self, number: int, name: str, absent: bool) -> None:
        writer, data = self.writers[number], self._data(SMALL)
        key = writer.key(name)
        how: dict[str, object] = {"if_absent": True} if absent else {"if_match": "*"}
        there = key in writer.model.objects
        try:
            writer.node.objects.put(key, data, Head(), **how)
            answer = OK
        except CachetierError as error:
            answer = error.code
        refusal = "precondition_failed" if absent else "no_such_key"
        assert answer == (OK if there is not absent else refusal)
        if answer == OK:
            writer.model.put_object(key, data)
            writer.did()

    @rule(number=nodes, chosen=st.sets(names, min_size=1))
    def delete(self, number: int, chosen: set[str]) -> None:
        writer = self.writers[number]
        for name in sorted(chosen):  # one after the other, as the bucket shows them
            writer.node.objects.delete(writer.key(name))
            writer.model.delete_objects([writer.key(name)])
            writer.did()

    @rule(
        number=nodes,
        name=names,
        parts=st.dictionaries(
            st.sampled_from([1, 2, 7]), st.sampled_from([SMALL, LARGE]), min_size=1
        ),
    )
    def put_parts(self, number: int, name: str, parts: dict[int, int]) -> None:
        writer = self.writers[number]
        key, objects = writer.key(name), writer.node.objects
        if key not in writer.model.uploads:
            objects.begin_upload(key)
            writer.model.begin_upload(key)
        for part, size in parts.items():
            data = self._data(size)
            objects.part(key, self._upload(writer, key), part, data)
            writer.model.put_part(key, part, data)

    @rule(number=nodes, name=names, data=st.data())
    def end_upload(self, number: int, name: str, data: st.DataObject) -> None:
        writer = self.writers[number]
        key, objects = writer.key(name), writer.node.objects
        if key not in writer.model.uploads:
            self.put_parts(number, name, {2: SMALL, 7: LARGE})
        parts = sorted(writer.model.uploads[key])
        chosen = data.draw(st.sampled_from([parts, parts[1:], parts[:1], []]))
        upload_id = self._upload(writer, key)
        if not chosen:
            objects.objects.abort_upload(MOUNT, key, upload_id)
            writer.model.abort_upload(key)
            return
        here = objects.objects.parts(MOUNT, key, upload_id)[1]
        listed = [each for each in here if each.number in chosen]
        answer = objects.complete(key, upload_id, listed)
        writer.model.complete_upload(key, chosen)
        writer.did()
        assert objects.complete(key, upload_id, listed) == answer

    def _upload(self, writer: Writer, key: str) -> str:
        uploads = writer.node.objects.objects.uploads(MOUNT, key)
        (upload,) = [each for each in uploads if each.key == key]
        return upload.upload_id

    def _data(self, size: int) -> bytes:
        """Return bytes that no other write has, unless there are none."""
        self.written += 1
        return self.written.to_bytes(4, "big") * (size // 4)

    # --- the service -----------------------------------------------------------------------------

    @rule(number=nodes, tasks=st.integers(1, 4))
    def drain(self, number: int, tasks: int) -> None:
        self.clock.advance(1.0)
        for _ in range(tasks):
            self.writers[number].node.real_drain.drain_one()
            self._look_at_bucket()

    @rule(number=nodes)
    def drain_all(self, number: int) -> None:
        writer = self.writers[number]
        for _ in range(ROUNDS):
            self.clock.advance(60.0)  # what failed is tried again
            while writer.node.real_drain.drain_one():
                self._look_at_bucket()
        assert writer.history[writer.shown] == writer.history[-1], "not all is shown"

    @rule(number=nodes)
    def evict(self, number: int) -> None:
        node = self.writers[number].node
        for shard in node.rows():
            node.evict(shard)

    @rule(number=nodes, change=st.sampled_from(CHANGES), loses=st.booleans())
    def disturb(self, number: int, change: Operation, loses: bool) -> None:
        """The next such change of the bucket fails, or its reply is lost."""
        remote = self.remotes[number]
        remote.add((lose_reply if loses else fail)(change, remote.calls[change] + 1))

    @rule(number=nodes, kills=st.booleans())
    def restart(self, number: int, kills: bool) -> None:
        writer = self.writers[number]
        writer.node.die() if kills else writer.node.close()
        writer.node = writer.open_node()

    # --- what holds ------------------------------------------------------------------------------

    def _look_at_bucket(self) -> None:
        there = {key: self.remote.get(key) for key in self.remote.list(MOUNT.prefix).keys}
        for writer in self.writers:
            writer.see({key: d for key, d in there.items() if key.startswith(writer.prefix)})

    @invariant()
    def each_node_reads_its_own_writes_and_what_is_shown_of_the_other(self) -> None:
        for reader in self.writers:
            for writer in self.writers:
                expected = (
                    writer.model.objects if writer is reader else writer.history[writer.shown]
                )
                objects = reader.node.objects
                listed = objects.objects.list(MOUNT, writer.prefix, "", "", 100).objects
                assert [each.key for each in listed] == sorted(expected)
                for name in NAMES:
                    key = writer.key(name)
                    assert objects.get(key) == expected.get(key)

    @invariant()
    def rows_and_bytes_are_sound(self) -> None:
        for writer in self.writers:
            assert writer.node.objects.parts_put() == writer.model.uploads
            judge_bytes(writer.node)
            judge_rows(writer.node)
            judge_figures(writer.node)


@pytest.mark.parametrize("number", share_of(range(LIVES // LIVES_OF_A_SEED)))
def test_objects_agree_with_dictionaries(number: int, request: pytest.FixtureRequest) -> None:
    seeded = seed(number)(type("TwoNodes", (TwoNodes,), {}))
    run_state_machine_as_test(seeded, settings=SLOW)
    count(request, "lives of objects on two nodes", LIVES_OF_A_SEED, number)
