"""Nodes that come back late to one bucket: with a backlog, after a crash, from a snapshot, rebuilt.

What the bucket got meanwhile is newer, and stays; nobody has to decide, and nothing else waits.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cachetier_client.bucket_format.uploads import SINGLE_PUT_BYTES

from cachetier.model.superseding import MARGIN_SECONDS
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.integration.fallbacks import until
from tests.integration.ordered import PREFIX, OrderedNode, Straight

SECONDS = 60.0
LATER = MARGIN_SECONDS + 1.5  # what was put so much later is newer, by the rule
APART = 1.5  # two nodes know the time of the store to a second
LARGE = 300_000  # in a file, not in the catalog

OpenNode = Callable[[str], OrderedNode]


@pytest.fixture
def bucket(seaweed_s3: S3Endpoint) -> str:
    name = f"old-{uuid.uuid4().hex[:12]}"
    seaweed_s3.create_bucket(name)
    return name


@pytest.fixture
def straight(seaweed_s3: S3Endpoint, bucket: str) -> Straight:
    return Straight(seaweed_s3, bucket)


@pytest.fixture
def open_node(seaweed_s3: S3Endpoint, bucket: str) -> Iterator[OpenNode]:
    """Open nodes by name, which are closed at the end."""
    with TemporaryDirectory(prefix="ct-") as scratch, ExitStack() as closing:

        def opened(name: str) -> OrderedNode:
            see_nothing = lambda *_request: None  # noqa: E731
            node = OrderedNode(name, Path(scratch), seaweed_s3, bucket, see_nothing, "node")
            closing.callback(node.close)
            return node

        yield opened


def large(text: str) -> bytes:
    return text.encode().ljust(LARGE, b".")


def delete(node: OrderedNode, *names: str) -> None:
    keys = [{"Key": PREFIX + name} for name in names]
    node.s3().delete_objects(Bucket=node.bucket, Delete={"Objects": keys})


def drained(node: OrderedNode) -> None:
    until(lambda: all(each["objects"] == 0 for each in node.status()["mounts"]), SECONDS)


def superseded(node: OrderedNode) -> set[str]:
    (mount,) = node.status()["mounts"]
    assert mount["conflicts"] == 0
    return {each["key"].removeprefix(PREFIX) for each in mount["superseded"]}


def test_a_backlog_does_not_replace_what_another_node_put_and_deleted_since(
    open_node: OpenNode, straight: Straight
) -> None:
    one, two = open_node("one"), open_node("two")
    one.proxy.stop()
    for name in ("latest", "gone"):
        one.put(name, b"v1")
    for number in range(20):
        one.put(f"data-{number}", b"v1")
    time.sleep(LATER)
    two.put("latest", b"v2")
    two.put("gone", b"v2")
    delete(two, "gone", "more")
    drained(two)
    assert straight.get("latest") == b"v2" and straight.get("gone") is None

    one.proxy.come_back()
    drained(one)

    assert straight.get("latest") == b"v2" and straight.get("gone") is None
    assert {straight.get(f"data-{number}") for number in range(20)} == {b"v1"}
    assert superseded(one) == {"latest", "gone"}
    assert one.s3().get_object(Bucket=one.bucket, Key=f"{PREFIX}latest")["Body"].read() == b"v2"
    listed = one.s3().list_objects_v2(Bucket=one.bucket, Prefix=PREFIX)["Contents"]
    assert not any(".cachetier" in each["Key"] for each in listed)


def test_a_node_that_died_while_s3_was_away_replaces_nothing_and_brings_nothing_back(
    open_node: OpenNode, straight: Straight
) -> None:
    one, two = open_node("one"), open_node("two")
    one.proxy.stop()
    one.kill()
    one.node.start()  # it never heard what time it is in the store
    names = ["a", "b", "c", "d"]
    for name in names:
        one.put(name, b"v1")
    one.put("mine", b"v1")
    one.kill()
    time.sleep(LATER)
    for name in names:
        two.put(name, b"v2")
    delete(two, "d")
    drained(two)

    one.proxy.come_back()
    one.node.start()
    drained(one)

    assert [straight.get(name) for name in names] == [b"v2", b"v2", b"v2", None]
    assert straight.get("mine") == b"v1"
    assert superseded(one) == set(names)


def test_a_node_that_is_back_within_seconds_brings_nothing_back_either(
    open_node: OpenNode, straight: Straight
) -> None:
    one, two = open_node("one"), open_node("two")
    one.proxy.stop()
    one.put("gone", b"v1")
    one.put("mine", b"v1")
    one.kill()
    time.sleep(APART)
    two.put("gone", b"v2")
    delete(two, "gone")
    drained(two)

    one.proxy.come_back()
    one.node.start()
    drained(one)

    assert straight.get("gone") is None and straight.get("mine") == b"v1"
    assert superseded(one) == {"gone"}


def test_a_directory_from_a_snapshot_steps_aside(open_node: OpenNode, straight: Straight) -> None:
    one = open_node("one")
    one.proxy.stop()
    for name in ("a", "b", "large", "lone"):
        one.put(name, large("v1") if name == "large" else b"v1")
    one.kill()
    snapshot = one.node.cache_dir.with_name("snapshot")
    shutil.copytree(one.node.cache_dir, snapshot)
    one.proxy.come_back()
    one.node.start()
    drained(one)
    one.put("a", b"v2")
    one.put("large", large("v2"))
    delete(one, "b")
    drained(one)
    one.kill()
    time.sleep(LATER)

    shutil.rmtree(one.node.cache_dir)
    snapshot.rename(one.node.cache_dir)
    one.node.start()
    drained(one)

    found = [straight.get(name) for name in ("a", "b", "large", "lone")]
    assert found == [b"v2", None, large("v2")[:100], b"v1"]
    assert superseded(one) == {"a", "b", "large"}
    one.put("a", b"v3")  # after it went back
    drained(one)
    assert straight.get("a") == b"v3"


def test_a_log_that_is_lost_brings_nothing_old_back_and_its_objects_are_read(
    open_node: OpenNode, straight: Straight
) -> None:
    one = open_node("one")
    one.proxy.stop()
    for name in ("a", "b", "large"):
        one.put(name, large("v1") if name == "large" else b"v1")
    one.node.end()  # its catalog has all of it, and no log
    one.proxy.come_back()
    one.node.start()
    drained(one)
    one.put("a", b"v2")
    one.put("large", large("v2"))
    delete(one, "b")
    drained(one)
    one.kill()
    (log,) = one.node.cache_dir.glob("catalog.db-wal")
    log.unlink()
    time.sleep(LATER)

    repaired = one.node.run("fsck", "--repair")
    assert "log" in repaired
    one.node.start()
    found = one.s3().get_object(Bucket=one.bucket, Key=f"{PREFIX}large")["Body"].read()
    drained(one)

    assert found == large("v2")
    assert [straight.get(name) for name in ("a", "b", "large")] == [b"v2", None, large("v2")[:100]]
    assert superseded(one) == {"a", "b", "large"}


def test_keys_below_the_key_of_an_object_stop_nothing_but_that(
    open_node: OpenNode, straight: Straight
) -> None:
    one = open_node("one")
    one.put("model/config.json", b"{}")
    drained(one)
    one.put("model", b"weights")
    one.put("parts/config.json", b"{}")
    one.put("parts", b"weights".ljust(SINGLE_PUT_BYTES + 1, b"."))
    one.put("after", b"v1")

    until(lambda: straight.get("after") == b"v1", SECONDS)
    until(lambda: one.status()["mounts"][0]["conflicts"] == 2, SECONDS)
    until(lambda: one.status()["remotes"][0]["state"] == "ok", SECONDS)
    with one.client() as client:
        client.settle_object("train", f"{PREFIX}model", "ours")
    delete(one, "parts")
    drained(one)
    assert straight.get("model") == b"weights"
    assert straight.get("model/config.json") == b"{}"
