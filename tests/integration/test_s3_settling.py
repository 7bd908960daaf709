"""``cachetier s3 resolve`` for a marker: what a person decides, and what is answered to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cachetier_client.bucket_format.stored import Content
from cachetier_client.clock import SystemClock
from cachetier_client.io.digests import digest_of
from click.testing import CliRunner, Result

from cachetier.cli.app import app
from cachetier.errors import RemoteRefusedError
from cachetier.local.catalog import objects
from cachetier.local.catalog.rows import IncidentRecord
from cachetier.model.lifecycle import ObjectState
from cachetier.model.objects import NO_HEAD, Mount, ObjectVersion
from cachetier.objects.base import PutObject
from tests.integration.serving import Served, serving

MOUNTS = [
    {"name": "data", "bucket": "bucket/data"},
    {"name": "marks", "bucket": "bucket/marks", "order": "cluster"},
]
FOREIGN = b"of somebody else"


@pytest.fixture
def node() -> Iterator[Served]:
    with serving(s3="127.0.0.1:0", s3_mount=MOUNTS) as served:
        yield served


def run(node: Served, *words: str) -> Result:
    return CliRunner().invoke(app, ["s3", *words, "--url", node.unix_url])


def put(node: Served, mount: Mount, key: str, body: bytes) -> int:
    content = Content.of_block(body)
    made = PutObject(key, NO_HEAD, node.service.objects.watermark(mount))
    return node.service.objects.commit(mount, made, content=content, bytes_of=body).version


def in_conflict(node: Served, key: str = "data/a") -> int:
    """Put an object, and have the drain report that it cannot go on; return its version."""
    version = put(node, node.service.objects.mounts[0], key, b"ours")
    incident = IncidentRecord("conflict", "it cannot go on", "decide", "s3:data", 0, key)
    now = SystemClock().now()
    node.service.store.write(objects.record_conflict, version, incident, now)
    return version


def version_of(node: Served, number: int) -> ObjectVersion | None:
    return node.service.store.read(objects.by_version, number)


def test_ours_replaces_what_is_there_by_now(node: Served) -> None:
    version = in_conflict(node)
    there = node.objects.put("data/a", FOREIGN, digest=digest_of(FOREIGN)).etag

    kept = run(node, "resolve", "ours", "data", "data/a")

    assert kept.exit_code == 0, kept.stderr
    assert kept.stdout == f"data/a: our version will replace {there}\n"
    found = version_of(node, version)
    assert found is not None
    assert (found.state, found.base) == (ObjectState.DIRTY, there)


def test_theirs_drops_our_version_and_leaves_nothing_of_it(node: Served) -> None:
    version = in_conflict(node)

    kept = run(node, "resolve", "theirs", "data", "data/a", "--json")

    assert kept.exit_code == 0, kept.stderr
    assert json.loads(kept.stdout) == {"key": "data/a", "replaces": ""}
    assert version_of(node, version) is None
    assert node.holds_nothing()


def test_what_the_bucket_does_not_even_look_up_can_be_dropped_and_not_sent_again(
    node: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(key: str) -> Any:
        raise RemoteRefusedError(f"HEAD {key}: 400", key=key)

    version = in_conflict(node)
    monkeypatch.setattr(node.objects, "head", refuse)
    assert run(node, "resolve", "ours", "data", "data/a").exit_code == 1
    assert version_of(node, version) is not None
    assert run(node, "resolve", "theirs", "data", "data/a").exit_code == 0
    assert version_of(node, version) is None


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["resolve", "mine", "data", "data/a"], 2, "HOW 'mine' is not one of ours"),
        (["resolve", "ours", "data", "data/a"], 1, "No object data/a of mount data is in conflict"),
        (["resolve", "ours", "none", "data/a"], 1, "is in conflict"),
        (["resolve", "release", "marks", "marks/latest"], 1, "waits"),
    ],
)
def test_what_nobody_has_to_decide_is_said(
    node: Served, words: list[str], code: int, says: str
) -> None:
    told = run(node, *words)

    assert told.exit_code == code, told.stderr
    assert says in told.stderr


def test_a_marker_that_waits_for_another_node_is_let_go(node: Served) -> None:
    marks = node.service.objects.mounts[1]
    note = json.dumps({"node": "two"}).encode()
    node.objects.put("marks/.cachetier/order/other-1", note, digest=digest_of(note))
    version = put(node, marks, "marks/latest", b"data")
    waiting = version_of(node, version)
    assert waiting is not None and waiting.waits

    released = run(node, "resolve", "release", "marks", "marks/latest")

    assert released.exit_code == 0, released.stderr
    assert released.stdout == "marks/latest: waits no more\n"
    found = version_of(node, version)
    assert found is not None and not found.waits
