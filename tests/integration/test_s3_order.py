"""What the bucket shows when: by programs that put beside each other, kills, and two nodes."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cachetier.testing.s3_endpoint import S3Endpoint
from tests.integration.fallbacks import until
from tests.integration.ordered import PREFIX, Look, OrderedNode, Straight

SECONDS = 240.0  # a busy machine has little time for a drain
TURNS = 12
PROGRAMS = 3
KEYS = 2

pytestmark = pytest.mark.timeout(2 * SECONDS)

OpenNode = Callable[..., OrderedNode]


@pytest.fixture
def bucket(seaweed_s3: S3Endpoint) -> str:
    name = f"order-{uuid.uuid4().hex[:12]}"
    seaweed_s3.create_bucket(name)
    return name


@pytest.fixture
def straight(seaweed_s3: S3Endpoint, bucket: str) -> Straight:
    return Straight(seaweed_s3, bucket)


@pytest.fixture
def open_node(seaweed_s3: S3Endpoint, bucket: str) -> Iterator[OpenNode]:
    """Open nodes by name, which are closed at the end."""
    with TemporaryDirectory(prefix="ct-") as scratch, ExitStack() as closing:

        def opened(name: str, look: Look, order: str = "node") -> OrderedNode:
            node = OrderedNode(name, Path(scratch), seaweed_s3, bucket, look, order)
            closing.callback(node.close)
            return node

        yield opened


def see_nothing(_method: str, _key: str, _number: str | None) -> None:
    """Look away."""


class Programs:
    """What programs did so far: the states of each key in order, and what each marker speaks of."""

    def __init__(self, straight: Straight) -> None:
        self.straight = straight
        self.lock = threading.Lock()
        self.states: dict[str, list[bool]] = {}  # of each number of a key, whether it is there
        self.acknowledged: dict[str, int] = {}
        self.speaks_of: dict[str, dict[str, int]] = {}

    def shows(self, key: str) -> int:
        """Return the number of the state of a key that the bucket has; the highest it may be."""
        body = self.straight.get(key)
        if body is not None:
            return int(body.split()[0])
        gone = [number for number, there in enumerate(self.states.get(key, [])) if not there]
        return max(gone, default=0)

    def look(self, method: str, whole_key: str, number: str | None) -> None:
        """Hold what is about to become visible against what is: that must be there before."""
        key = whole_key.removeprefix(PREFIX)
        if key in self.speaks_of:
            for spoken, at_least in self.speaks_of[key].items():
                assert self.shows(spoken) >= at_least, (key, spoken, at_least)
        elif method == "PUT":  # who completes an upload does not say its number
            assert number is not None
            # Its predecessor; or it itself, where the reply was lost or a program asked again.
            body, at = self.straight.get(key), int(number)
            if body is None:
                assert not self.states[key][at - 1], (key, number, "its predecessor was not shown")
            else:
                assert at - 1 <= int(body.split()[0]) <= at, (key, number, body)


def program(node: OrderedNode, programs: Programs, number: int, turns: int) -> None:
    """Put, overwrite and delete keys, and speak of what anybody had acknowledged by then."""
    s3, chance = node.s3(), random.Random(number)
    for turn in range(turns):
        key = f"{number}/{chance.randrange(KEYS)}"
        with programs.lock:
            states = programs.states.setdefault(key, [False])
            there = not (states[-1] and chance.random() < 0.2)
            states.append(there)
            at = len(states) - 1
        where = {"Bucket": node.bucket, "Key": PREFIX + key}
        if there:
            size_bytes = chance.choice([10, 10, 100_000, 17 << 20])
            body = f"{at} ".encode().ljust(size_bytes, b".")
            s3.put_object(**where, Body=body, Metadata={"number": str(at)})
        else:
            s3.delete_object(**where)
        with programs.lock:
            programs.acknowledged[key] = at
            speaks_of = dict(programs.acknowledged)
            marker = f"markers/{number}-{turn}.json"
            programs.speaks_of[marker] = speaks_of
        s3.put_object(Bucket=node.bucket, Key=PREFIX + marker, Body=b"{}")


@pytest.mark.parametrize("killed", ["nobody", "drain", "service"])
def test_nothing_becomes_visible_before_what_it_speaks_of(
    open_node: OpenNode, straight: Straight, killed: str
) -> None:
    programs = Programs(straight)
    node = open_node("one", programs.look)
    threads = [
        threading.Thread(target=program, args=(node, programs, number, TURNS), daemon=True)
        for number in range(PROGRAMS)
    ]
    for thread in threads:
        thread.start()
    kills = 0
    while any(thread.is_alive() for thread in threads):
        time.sleep(1.0)
        if killed == "drain":
            pid = node.status()["drain"]["pid"]
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                kills += 1
        elif killed == "service" and kills < 2:
            node.kill()
            node.node.start()
            kills += 1
    assert len(programs.speaks_of) == PROGRAMS * TURNS
    until(lambda: not any(mount["objects"] for mount in node.status()["mounts"]), SECONDS)

    assert node.looking.broken == []
    assert node.looking.shown >= 2 * PROGRAMS * TURNS
    assert (kills > 0) == (killed != "nobody")
    for key, at in programs.acknowledged.items():
        assert programs.shows(key) == at
    assert all(straight.get(marker) == b"{}" for marker in programs.speaks_of)


def test_a_marker_waits_for_a_node_that_was_killed_between_its_data_and_that(
    open_node: OpenNode, straight: Straight
) -> None:
    def look(_method: str, key: str, _number: str | None) -> None:
        if key.endswith("latest"):
            assert straight.get("data") == b"of one", "the marker came first"

    one, two = open_node("one", look, "cluster"), open_node("two", look, "cluster")
    one.proxy.latency_seconds = 1.0
    assert one.put("data", b"of one") == "cluster"  # once its note was there
    one.kill()
    assert two.put("latest", b"data") == "cluster"

    until(lambda: bool(two.status()["waiting_markers"]), SECONDS)
    (waiting,) = two.status()["waiting_markers"]
    assert waiting["key"] == f"{PREFIX}latest"
    assert len(waiting["nodes"]) == 1
    time.sleep(5.0)  # two rounds and more
    assert straight.get("data") is None and straight.get("latest") is None

    one.proxy.latency_seconds = 0.0
    one.node.start()
    until(lambda: straight.get("latest") == b"data", SECONDS)
    assert straight.get("data") == b"of one"
    assert one.looking.broken == two.looking.broken == []


def test_a_node_that_is_cut_off_goes_on_and_says_so_and_what_it_owes_comes_first(
    open_node: OpenNode, straight: Straight
) -> None:
    one = open_node("one", see_nothing, "cluster")
    two = open_node("two", see_nothing, "cluster")
    one.proxy.latency_seconds = 1.0
    assert one.put("data", b"before") == "cluster"
    one.proxy.stop()
    assert one.put("1/latest", b"data") == "node"
    assert one.put("later", b"after") == "node"
    assert two.put("2/latest", b"data") == "cluster"
    until(lambda: bool(two.status()["waiting_markers"]), SECONDS)
    time.sleep(5.0)
    assert [straight.get(key) for key in ("data", "1/latest", "later", "2/latest")] == [None] * 4

    one.proxy.latency_seconds = 0.0
    one.proxy.come_back()
    until(lambda: straight.get("2/latest") == b"data", SECONDS)
    until(lambda: straight.get("later") == b"after", SECONDS)
    assert straight.get("data") == b"before"
    assert straight.get("1/latest") == b"data"
    assert two.status()["waiting_markers"] == []
