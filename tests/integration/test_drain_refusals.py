"""A remote that is not well: everything is kept, one alarm, few requests; it heals by itself."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.drain.channel import AskingEnd
from cachetier.drain.loop import DrainLoop
from cachetier.drain.messages import Handout
from cachetier.drain.pace import remote_health
from cachetier.remote.call_policy import CallPolicy, Retries, RetryPolicy
from cachetier.remote.factory import open_remote
from cachetier.remote.settings import RemoteSettings
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import ALWAYS, Fault, Trouble, first
from tests.integration import drain_node
from tests.integration.drain_node import REMOTE, Node, patterned

PROBE_SECONDS = 0.2
WAIT_SECONDS = 60.0
LARGE = 20 << 20  # in three parts
POLICY = RetryPolicy(attempts=3, base_seconds=0.005, cap_seconds=0.05)
STATE_OF = {
    Trouble.ACCESS_DENIED: "refused",
    Trouble.EXPIRED_TOKEN: "refused",
    Trouble.NO_SUCH_BUCKET: "refused",
    Trouble.TIME_SKEWED: "refused",
    Trouble.SLOW_DOWN: "throttled",
    Trouble.INTERNAL_ERROR: "unreachable",
}


@pytest.fixture(autouse=True)
def frequent_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_health, "PROBE_SECONDS", PROBE_SECONDS)


@pytest.fixture
def proxy(seaweed_s3: S3Endpoint) -> Iterator[S3Proxy]:
    with S3Proxy(seaweed_s3.url) as started:
        yield started


@pytest.fixture
def node(tmp_path: Path, seaweed_s3: S3Endpoint, proxy: S3Proxy) -> Iterator[Node]:
    store = seaweed_s3.behind(proxy.url).store()
    policy = CallPolicy(store, retries=Retries(POLICY))
    node = Node(tmp_path / "cache", policy, fraction=lambda: 0.01)
    node.probe = store.check  # as the drain process does
    yield node
    node.close()


def states(node: Node) -> str:
    return str(node.state()["remotes"][0]["state"])


@pytest.mark.parametrize(("trouble", "state"), STATE_OF.items())
def test_a_remote_that_answers_everything_so_is_asked_once_in_a_while(
    node: Node, proxy: S3Proxy, trouble: Trouble, state: str
) -> None:
    ids = SaveIds(f"refused-{trouble}".replace("_", "-"), 7, "save-1")
    proxy.troubles.add(Fault(trouble, when=ALWAYS))
    for number in range(20):
        node.put(ids, f"shard-{number}", b"hello")
    node.seal(ids)
    changes: list[str] = []
    tell = node.stats.remote_health

    def told(state: str, reason: str) -> None:
        if state != states(node):
            changes.append(state)
        tell(state, reason)

    node.stats.remote_health = told  # type: ignore[method-assign]
    probes = node.watched_probes(lambda: proxy.requests)
    with node.draining():
        node.wait_until(lambda: states(node) == state)
        since = node.state()["remotes"][0]["since"]
        node.wait_for_probes_alone(probes, PROBE_SECONDS)
        assert node.state()["remotes"][0]["since"] == since
        assert node.checkpoints.step(ids.run, 7)[0].dirty_bytes == 100

        proxy.troubles.clear()
        node.wait_durable(ids)
    assert changes == [state, "ok"]  # one alarm, whatever waits; and its end
    assert node.told() == []


def test_an_answer_of_before_the_refusal_does_not_end_it(
    node: Node, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drain asks for more work; what it has in hand is refused before the answer is read."""
    asked, drains = threading.Event(), queue.SimpleQueue[DrainLoop]()

    class Late(AskingEnd):
        def ask(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
            if name == "fail_task":
                assert asked.wait(WAIT_SECONDS)
            reply = super().ask(name, *args, **kwargs)
            if isinstance(reply, Handout) and not reply.tasks and not asked.is_set():
                asked.set()
                drain = drains.get()
                until = time.monotonic() + WAIT_SECONDS
                while drain._outstanding and time.monotonic() < until:
                    time.sleep(0.001)
            return reply

    monkeypatch.setattr(drain_node, "AskingEnd", Late)
    ids = SaveIds("late", 7, "save-1")
    proxy.troubles.add(Fault(Trouble.ACCESS_DENIED, when=ALWAYS))
    node.put(ids, "shard", b"hello")
    node.seal(ids)
    told: list[str] = []
    tell = node.stats.remote_health

    def heard(state: str, reason: str) -> None:
        told.append(state)
        tell(state, reason)

    node.stats.remote_health = heard  # type: ignore[method-assign]
    with node.draining() as drain:
        drains.put(drain)
        assert asked.wait(WAIT_SECONDS)
        node.wait_until(lambda: proxy.requests > 2)  # and it has been asked for since
        assert set(told) == {"refused"}
        proxy.troubles.clear()
        node.wait_durable(ids)


def test_credentials_that_expire_in_an_upload_cost_the_parts_that_met_it(
    node: Node, proxy: S3Proxy
) -> None:
    ids = SaveIds("expired", 7, "save-1")
    proxy.troubles.add(Fault(Trouble.EXPIRED_TOKEN, "UploadPart", first(2)))
    node.put(ids, "large", patterned(LARGE))
    node.seal(ids)
    with node.draining():
        node.wait_durable(ids)

    assert proxy.troubles.struck[Trouble.EXPIRED_TOKEN, "UploadPart"] == 2
    assert proxy.troubles.seen["CreateMultipartUpload"] == 1
    assert proxy.troubles.seen["UploadPart"] <= 3 + 3  # an upload goes on from what is there
    assert node.bucket.objects.get(node.key(ids, "large")) == patterned(LARGE)


def test_credentials_that_are_replaced_on_disk_are_taken_up_without_a_restart(
    tmp_path: Path, seaweed_s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = SaveIds("rotated", 7, "save-1")
    file = tmp_path / "credentials"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    write_credentials(file, seaweed_s3.credentials.access_key, "no longer right")
    settings = RemoteSettings(REMOTE, seaweed_s3.bucket, "ckpt", seaweed_s3.url)
    node = Node(tmp_path / "cache", open_remote(settings).objects, fraction=lambda: 0.01)
    node.put(ids, "small", b"hello")
    node.put(ids, "large", patterned(LARGE))
    node.seal(ids)
    with node.draining():
        node.wait_until(lambda: states(node) == "refused")
        write_credentials(
            file, seaweed_s3.credentials.access_key, seaweed_s3.credentials.secret_key
        )
        node.wait_durable(ids)

    assert seaweed_s3.store().get(node.key(ids, "large")) == patterned(LARGE)
    node.close()


def write_credentials(file: Path, access_key: str, secret_key: str) -> None:
    lines = f"aws_access_key_id={access_key}\naws_secret_access_key={secret_key}\n"
    file.write_text(f"[default]\n{lines}")


def test_a_shard_that_the_store_refuses_though_nothing_is_there_stops_nothing_else(
    node: Node,
) -> None:
    stuck, after = SaveIds("refused-key", 7, "save-1"), SaveIds("refused-key", 8, "save-2")
    node.put(stuck, "model/config.json", b"{}")
    with node.draining():
        node.wait_clean(stuck, "model/config.json")
        node.put(stuck, "model", b"weights")
        node.put(stuck, "other", b"hello")
        node.seal(stuck)
        node.put(after, "model", b"weights")
        node.seal(after)
        node.wait_durable(after)
        node.wait_clean(stuck, "other")
        node.wait_until(lambda: "conflict" in node.seen.codes)

    assert states(node) == "ok"
    (incident,) = node.told()
    assert incident.name == "model" and "412" in incident.message
