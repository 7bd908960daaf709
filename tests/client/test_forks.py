"""Children that inherit a client: they leave their parent's connections and files alone."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from cachetier_client import Client, InvalidRequestError
from cachetier_client.io.digests import BLOCK_BYTES

from tests.client.fake_service import FakeService
from tests.client.test_puts import kept, patterned

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*use of fork.*:DeprecationWarning"  # said of every fork beside a thread, from 3.12 on
)


def run_in_child(work: Callable[[], object]) -> int:
    """Return the child's exit status: 0 if ``work`` raised nothing."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def test_parent_and_child_use_connections_of_their_own(
    service: FakeService, client: Client
) -> None:
    client.put_shard(patterned(2 * BLOCK_BYTES), step=7, name="before")
    connections = service.connections

    status = run_in_child(lambda: client.put_shard(patterned(9_000_000), step=7, name="child"))
    client.put_shard(b"parent", step=7, name="parent")

    assert status == 0
    assert service.connections == connections + 1
    assert kept(service, "child") == patterned(9_000_000)
    assert kept(service, "parent") == b"parent"
    greetings = {header["client_id"] for header in service.ids("hello")}
    assert len(greetings) == 2


def test_a_grandchild_does_too(service: FakeService, client: Client) -> None:
    client.put_shard(b"x", step=7, name="s")

    def beget() -> None:
        client.put_shard(b"child", step=7, name="child")
        assert run_in_child(lambda: client.put_shard(b"g", step=7, name="grandchild")) == 0

    assert run_in_child(beget) == 0
    assert kept(service, "grandchild") == b"g"


@contextmanager
def lingering_child() -> Iterator[None]:
    """Fork a child that stays, with all it inherited, as long as the context."""
    go_on, stay = os.pipe()
    is_there, there = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(stay)
        os.write(there, b".")  # it has let go of what is its parent's
        os.read(go_on, 1)
        os._exit(0)
    os.read(is_there, 1)
    try:
        yield
    finally:
        for pipe_end in (go_on, stay, is_there, there):
            os.close(pipe_end)
        os.waitpid(child, 0)


def test_a_child_does_not_hold_the_parents_staged_file_open(
    service: FakeService, client: Client
) -> None:
    data = patterned(9_000_000)
    stream = client.open_shard("a-run", 7, "s")
    stream.write(data)
    assert service.staged

    with lingering_child():
        stream.close()

    assert kept(service) == data


def test_a_parents_stream_is_not_the_childs(service: FakeService, client: Client) -> None:
    data = patterned(9_000_000)

    def misuse() -> None:
        with pytest.raises(InvalidRequestError, match="belongs to the parent"):
            stream.write(data)
        with pytest.raises(InvalidRequestError, match="belongs to the parent"):
            stream.close()
        stream.abort()

    with client.open_shard("a-run", 7, "s") as stream:
        stream.write(data)
        status = run_in_child(misuse)

    assert status == 0
    assert kept(service) == data


def test_a_child_that_exits_says_nothing_on_the_parents_connections(
    service: FakeService, client: Client
) -> None:
    client.put_shard(b"x", step=7, name="s")
    service.ops.clear()

    assert run_in_child(lambda: None) == 0

    assert service.ops == []
    client.put_shard(b"y", step=7, name="s")
    assert kept(service) == b"y"


def test_a_child_that_leaves_a_checkpoint_ends_nothing_of_its_parents(
    service: FakeService, client: Client
) -> None:
    def leave() -> None:
        with pytest.raises(InvalidRequestError, match="belongs to the parent"):
            checkpoint.put(b"x", "childs")
        checkpoint.__exit__(SystemExit, SystemExit(), None)

    with client.checkpoint("a-run", 7) as checkpoint:
        checkpoint.put(b"x", "parents")
        assert run_in_child(leave) == 0

    assert not service.aborted
    assert len(service.sealed) == 1
