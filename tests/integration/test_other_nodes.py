"""Two services on one bucket: each answers for the save that the bucket has, not for what it saw.

What each rule says is in ``tests/unit/restore/test_knowledge.py``; here it goes through the doors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from cachetier_client.bucket_format.documents import ManifestState
from cachetier_client.errors import NotFoundError, StepPublishedError

from cachetier.local.catalog import saves
from cachetier.restore.knowledge import FRESH_SECONDS
from cachetier.service.service import Service
from cachetier.testing.moto_server import moto_server
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import ALWAYS, Fault, Trouble
from tests.fakes.bodies import noise
from tests.integration.test_http_shards import LARGE
from tests.integration.two_remotes import RUN, SECONDS, Node, Site, running, site, until

STEP = 6
SENT = Fault(Trouble.SLOW_DOWN, "PutObject", ALWAYS)


@dataclass
class Pair:
    """Nodes A and B, which reach one bucket each by a proxy of its own."""

    a: Node
    b: Node
    of_a: S3Proxy
    of_b: S3Proxy

    @property
    def nodes(self) -> tuple[Node, Node]:
        return self.a, self.b

    def save(self, save_id: str) -> None:
        """Save the step, rank 0 on A and rank 1 on B, and wait until both know that."""
        for rank, node in enumerate(self.nodes):
            put(node, save_id, rank)
            seal(node, save_id, rank)
        until(lambda: {published(node.service) for node in self.nodes} == {save_id})


def put(node: Node, save_id: str, rank: int, *, overwrite: bool = False) -> None:
    who: dict[str, Any] = {"rank": rank, "world_size": 2, "save_id": save_id}
    where: dict[str, Any] = {"run": RUN, "step": STEP, "name": f"rank-{rank}"}
    node.client.put_shard(body(save_id, rank), **where, **who, overwrite=overwrite)


def seal(node: Node, save_id: str, rank: int, *, overwrite: bool = False) -> None:
    who: dict[str, Any] = {"rank": rank, "world_size": 2, "save_id": save_id}
    node.client.seal(RUN, STEP, **who, overwrite=overwrite)


def body(save_id: str, rank: int) -> bytes:
    return f"{save_id} of {rank}".encode() + noise(LARGE)


def published(service: Service) -> str | None:
    found = service.store.read(saves.saves_of, RUN, STEP)
    return next((save.save_id for save in found if save.state == "published"), None)


def got(node: Node, rank: int) -> str:
    """Return of which save the shard of a rank is."""
    data = bytes(node.client.get_shard(RUN, STEP, f"rank-{rank}"))
    save_id = data.split(b" ", 1)[0].decode()
    assert data == body(save_id, rank)
    return save_id


def latest(node: Node) -> tuple[int, str] | None:
    found = node.client.latest(RUN)
    return (found.step, found.save_id) if found is not None else None


@pytest.fixture(scope="module")
def endpoint() -> Iterator[S3Endpoint]:
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture
def place(endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name, value in endpoint.environment().items():
        monkeypatch.setenv(name, value)
    with site(endpoint) as made:
        yield made


@pytest.fixture
def pair(place: Site) -> Iterator[Pair]:
    with ExitStack() as stack:
        nodes = []
        for name, proxy in (("a", place.far), ("b", place.near)):
            here = {"cache_dir": place.scratch / name, "socket": place.scratch / f"{name}.sock"}
            settings = place.settings(replicas={}, remote_endpoint=proxy.url, **here)
            nodes.append(stack.enter_context(running(settings)))
        yield Pair(nodes[0], nodes[1], place.far, place.near)


@pytest.mark.slow
def test_a_restore_never_mixes_two_saves_of_a_step(pair: Pair) -> None:
    """A's part of i1 is in the bucket, B's is not yet; the job restarts, A seals i2, B dies."""
    pair.of_b.troubles.add(SENT)
    for rank, node in enumerate(pair.nodes):
        put(node, "i1", rank)
        seal(node, "i1", rank)
    pair.a.client.wait(RUN, STEP, "durable", SECONDS, name="rank-0")
    until(lambda: pair.a.service.store.read(saves.parts_of, 1)[0].uploaded)
    pair.of_a.troubles.add(SENT)  # from now on A has a backlog
    put(pair.a, "i2", 0)
    seal(pair.a, "i2", 0)
    put(pair.b, "i2", 1)
    pair.of_b.troubles.clear()
    until(lambda: published(pair.b.service) == "i1")

    for node in pair.nodes:
        assert latest(node) == (STEP, "i1")
    for node in pair.nodes:
        assert [got(node, rank) for rank in (0, 1)] == ["i1", "i1"]
    assert pair.of_a.troubles.fired[Trouble.SLOW_DOWN] > 0, "A still has it"


def test_a_step_that_another_node_replaced_is_the_new_one_for_all_that_ask(
    pair: Pair,
) -> None:
    pair.save("i1")
    assert [got(pair.a, rank) for rank in (0, 1)] == ["i1", "i1"]
    for rank in (0, 1):  # both ranks of the new save are on B
        put(pair.b, "i2", rank, overwrite=True)
        seal(pair.b, "i2", rank, overwrite=True)
    until(lambda: published(pair.b.service) == "i2")

    until(lambda: got(pair.a, 0) == "i2", 3 * FRESH_SECONDS)
    assert got(pair.a, 1) == "i2"
    (shown,) = pair.a.client.steps(RUN)
    assert (shown.save_id, shown.state, shown.shard_count) == ("i2", "published", 2)
    assert shown.checked_at is not None
    assert pair.a.client.step(RUN, STEP).save_id == "i2"
    checkpoints = pair.a.service.operations.checkpoints  # as the console asks
    assert [view.save_id for view in checkpoints.newest_steps(RUN, 5)] == ["i2"]
    progress = checkpoints.progress(RUN, STEP)
    assert progress is not None
    assert progress.save.save_id == "i2"
    assert latest(pair.a) == (STEP, "i2")


def test_a_step_that_another_node_deleted_is_gone_for_all_that_ask_and_can_be_saved_again(
    place: Site, pair: Pair
) -> None:
    pair.save("i1")
    assert got(pair.a, 0) == "i1"
    pair.b.client.delete_step(RUN, STEP)
    until(lambda: deleted(place))

    put(pair.a, "i2", 0)  # at once: A asks before it refuses
    assert pair.a.service.store.space.used_bytes < 2 * LARGE
    until(lambda: not found(pair.b))
    with pytest.raises(NotFoundError):
        got(pair.a, 1)


def deleted(place: Site) -> bool:
    manifest = place.manifest(place.far_bucket, STEP)
    return manifest is not None and manifest.state is ManifestState.DELETED


def found(node: Node) -> bool:
    try:
        got(node, 0)
    except NotFoundError:
        return False
    return True


def test_while_s3_hangs_a_node_answers_from_what_it_knows_and_says_how_old_that_is(
    pair: Pair,
) -> None:
    pair.save("i1")
    assert got(pair.a, 0) == "i1"
    hole = Fault(Trouble.STALL, None, ALWAYS)
    pair.of_a.troubles.add(hole)

    until(lambda: not pair.a.service._restore.knowledge.is_fresh(RUN, STEP))
    assert got(pair.a, 0) == "i1"
    checked_at = pair.a.client.step(RUN, STEP).checked_at
    assert got(pair.a, 0) == "i1"
    with pytest.raises(StepPublishedError):
        put(pair.a, "i2", 0)
    assert pair.a.client.steps(RUN, "local")[0].save_id == "i1"
    assert pair.a.client.step(RUN, STEP).checked_at == checked_at
    assert pair.of_a.troubles.fired[Trouble.STALL] > 0
    pair.of_a.troubles.clear()


def test_housekeeping_frees_what_another_node_deleted_though_nobody_asks(
    place: Site, pair: Pair
) -> None:
    pair.save("i1")
    store = pair.a.service.store
    assert store.space.used_bytes >= LARGE
    pair.b.client.delete_step(RUN, STEP)
    until(lambda: deleted(place))

    pair.a.service._housekeeping._collect()

    until(lambda: store.space.used_bytes == 0)
