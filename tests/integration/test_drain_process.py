"""The drain as a process of its own, over real S3 servers: killed, refused, stopped, restarted."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cachetier_client.identity.names import SaveIds

from benchmarks.processes import children_of
from cachetier.drain.messages import Size
from cachetier.drain.priority import cgroup
from cachetier.drain.process import LOCK_NAME
from cachetier.drain.serve.supervisor import DrainSettings, Supervisor
from cachetier.local.catalog import uploads
from cachetier.remote.factory import open_remote
from cachetier.remote.settings import RemoteSettings
from cachetier.testing.http_wire import WireHead
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import Fault, Trouble, Troubles, When
from tests.integration.drain_node import REMOTE, Node, patterned, shown

IDS = SaveIds("run", 7, "save-1")
LARGE = 20 << 20  # in three parts
PART = re.compile(r"partNumber=(\d+)")


class Gate(Troubles):
    """Lets the first upload parts pass, and holds the others back until it is opened."""

    def __init__(self, passing: int) -> None:
        super().__init__()
        self._passing = passing
        self._turn = threading.Lock()
        self._open = threading.Event()
        self.holds = threading.Event()
        self.parts: list[int] = []

    def open(self) -> None:
        self._open.set()

    def strike(self, request: WireHead) -> Trouble | None:
        match = PART.search(request.first[1])
        if request.method == "PUT" and match is not None:
            if int(match.group(1)) > self._passing:  # whoever comes first
                self.holds.set()
                self._open.wait(60)
            with self._turn:
                self.parts.append(int(match.group(1)))
        return super().strike(request)


def remote_of(
    server: S3Endpoint, bucket: str | None = None, url: str | None = None
) -> RemoteSettings:
    return RemoteSettings(
        name=REMOTE,
        bucket=bucket or server.bucket,
        prefix="ckpt",
        endpoint=url or server.url,
        verify=server.verify,
    )


@contextmanager
def node_at(cache_dir: Path, remote: RemoteSettings, server: S3Endpoint) -> Iterator[Node]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, value)
        node = Node(cache_dir, open_remote(remote).objects)
        yield node
        node.close()


FOUR = Size(uploads=4, parts=4, carriers=2)


@contextmanager
def supervised(
    node: Node, remote: RemoteSettings, size: Size = FOUR, **others: Any
) -> Iterator[Supervisor]:
    """A drain process for ``node``; ``others`` are further fields of ``DrainSettings``."""
    settings = DrainSettings(remote, node.cache_dir, size, **others)
    supervisor = Supervisor(node.store, node.changes, node.incidents, node.clock, settings)
    supervisor.start()
    try:
        yield supervisor
    finally:
        supervisor.stop(10.0)


@pytest.fixture(params=["moto_s3", pytest.param("seaweed_s3", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> S3Endpoint:
    endpoint: S3Endpoint = request.getfixturevalue(request.param)
    return endpoint


@pytest.fixture
def bucket(server: S3Endpoint, request: pytest.FixtureRequest) -> str:
    """A bucket of the test's own: the servers are shared."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:60].strip("-")
    server.create_bucket(name)
    return name


@pytest.mark.usefixtures("courteous_drains")
def test_a_step_is_drained_and_published(tmp_path: Path, server: S3Endpoint, bucket: str) -> None:
    remote = remote_of(server, bucket)
    large = patterned(LARGE)
    with node_at(tmp_path / "cache", remote, server) as node:
        node.put(IDS, "small", b"hello")
        node.put(IDS, "empty", b"")
        node.put(IDS, "large", large)
        node.seal(IDS)
        with supervised(node, remote) as supervisor:
            node.wait_durable(IDS, 60)
            state = shown(supervisor)

        objects = node.bucket.objects
        assert objects.get(node.key(IDS, "small")) == b"hello"
        assert objects.get(node.key(IDS, "large")) == large
        assert state["remotes"][0]["state"] == "ok"
        assert state["courtesy"]["nice"] == 19
        assert state["courtesy"]["io"] == "idle"
        assert shown(supervisor)["drained_bytes"] == LARGE + 5


def test_a_drain_killed_in_an_upload_goes_on_from_its_finished_parts(
    tmp_path: Path, server: S3Endpoint, bucket: str
) -> None:
    gate = Gate(passing=1)
    with S3Proxy(server.url, troubles=gate) as proxy:
        remote = remote_of(server, bucket, proxy.url)
        with node_at(tmp_path / "cache", remote_of(server, bucket), server) as node:
            node.put(IDS, "large", patterned(LARGE))
            node.seal(IDS)
            with supervised(node, remote) as supervisor:
                assert gate.holds.wait(30)
                node.wait_until(lambda: len(recorded_parts(node)) == 1)
                first = shown(supervisor)["pid"]
                os.kill(first, signal.SIGKILL)
                node.wait_until(lambda: shown(supervisor)["pid"] not in (first, None))
                finished = list(recorded_parts(node))
                gate.open()
                node.wait_durable(IDS, 60)
                assert shown(supervisor)["restarts"] == 1

            assert len(finished) == 1
            assert gate.parts.count(finished[0]) == 1
            assert set(gate.parts) == {1, 2, 3}
            assert node.bucket.objects.get(node.key(IDS, "large")) == patterned(LARGE)


@pytest.mark.slow
def test_carriers_end_with_a_drain_that_is_killed_and_a_drain_with_its_nursery(
    tmp_path: Path, seaweed_s3: S3Endpoint
) -> None:
    seaweed_s3.create_bucket("carriers-end")
    remote = remote_of(seaweed_s3, "carriers-end")
    with node_at(tmp_path / "cache", remote, seaweed_s3) as node, supervised(node, remote) as drain:

        def drained(step: int) -> list[int]:
            """Return the processes of the drain that has sent a step: its nursery is the first."""
            ids = SaveIds("run", step, "save-1")
            node.put(ids, "large", patterned(LARGE, step))
            node.seal(ids)
            node.wait_durable(ids, 60)
            return [shown(drain)["pid"], *children_of(shown(drain)["pid"])]

        first = drained(1)
        os.kill(first[0], signal.SIGKILL)
        second = drained(2)
        os.kill(second[1], signal.SIGKILL)
        third = drained(3)

        node.wait_until(lambda: not any(map(is_alive, first + second)))
        assert min(map(len, (first, second, third))) > 2
        assert shown(drain)["restarts"] == 2


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def recorded_parts(node: Node) -> list[int]:
    shard = node.shard(IDS, "large")
    assert shard is not None
    progress = node.store.read(lambda sql: uploads.progress_of(sql, shard.version, REMOTE))
    return [part.number for part in progress.parts]


def remote_state(supervisor: Supervisor) -> str:
    return str(shown(supervisor)["remotes"][0]["state"])


def test_a_missing_bucket_keeps_everything_and_heals_by_itself(
    tmp_path: Path, moto_s3: S3Endpoint
) -> None:
    remote = remote_of(moto_s3, "not-there-yet")
    with node_at(tmp_path / "cache", remote, moto_s3) as node:
        node.put(IDS, "small", b"hello")
        node.seal(IDS)
        with supervised(node, remote) as supervisor:
            node.wait_until(lambda: remote_state(supervisor) == "refused")
            said = shown(supervisor)["remotes"][0]
            assert said["state"] == "refused"
            assert "not-there-yet" in said["reason"] or "NoSuchBucket" in said["reason"]
            assert node.checkpoints.step("run", 7)[0].dirty_bytes == 5

            moto_s3.create_bucket("not-there-yet")
            node.wait_durable(IDS)
            node.wait_until(lambda: remote_state(supervisor) == "ok")


def test_a_remote_that_came_back_while_no_drain_ran_is_well_again(
    tmp_path: Path, moto_s3: S3Endpoint
) -> None:
    remote = remote_of(moto_s3, "away-for-now")
    with node_at(tmp_path / "cache", remote, moto_s3) as node:
        node.put(IDS, "small", b"hello")
        node.seal(IDS)
        with supervised(node, remote) as supervisor:
            node.wait_until(lambda: remote_state(supervisor) == "refused")
            os.kill(shown(supervisor)["pid"], signal.SIGKILL)
            moto_s3.create_bucket("away-for-now")
            node.wait_durable(IDS)
            node.wait_until(lambda: remote_state(supervisor) == "ok")


def test_a_stop_in_an_upload_leaves_it_to_the_next_drain(
    tmp_path: Path, moto_s3: S3Endpoint
) -> None:
    gate = Gate(passing=1)
    with S3Proxy(moto_s3.url, troubles=gate) as proxy:
        remote = remote_of(moto_s3, url=proxy.url)
        ids = SaveIds("stopped", 7, "save-1")
        with node_at(tmp_path / "cache", remote_of(moto_s3), moto_s3) as node:
            node.put(ids, "large", patterned(LARGE))
            node.seal(ids)
            with supervised(node, remote):
                assert gate.holds.wait(30)
                threading.Timer(0.5, gate.open).start()
            sent = len(gate.parts)
            assert sent >= 1
            with supervised(node, remote):
                node.wait_durable(ids)

            assert sorted(gate.parts) == [1, 2, 3]


def test_a_drain_that_hangs_is_ended_by_its_supervisor(tmp_path: Path, moto_s3: S3Endpoint) -> None:
    remote = remote_of(moto_s3)
    with node_at(tmp_path / "cache", remote, moto_s3) as node:
        with supervised(node, remote) as supervisor:
            node.wait_until(lambda: shown(supervisor)["courtesy"] != {})
            pid = shown(supervisor)["pid"]
            os.kill(pid, signal.SIGSTOP)
            supervisor.stop(0.1)

        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("name", ["drain-requests", "drain-wake", "drain-said", "drain-answer"])
def test_a_drain_for_which_no_thread_is_left_is_started_again(
    tmp_path: Path,
    moto_s3: S3Endpoint,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused: list[str] = []
    start = threading.Thread.start

    def start_or_refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(name) and len(refused) < 2:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)
    remote, ids = remote_of(moto_s3), SaveIds(f"no-{name}", 7, "save-1")
    with node_at(tmp_path / "cache", remote, moto_s3) as node:
        node.put(ids, "small", b"hello")
        node.seal(ids)
        with supervised(node, remote) as supervisor:
            node.wait_durable(ids, 60)
            assert shown(supervisor)["restarts"] >= 1

    assert len(refused) == 2
    said = "drain.request_failed" if name == "drain-answer" else "drain.not_started"
    assert events_in(caplog).count(said) == 2


def test_a_drain_for_which_no_descriptor_is_left_is_started_again(
    tmp_path: Path,
    moto_s3: S3Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused: list[str] = []
    pair = socket.socketpair

    def pair_or_refuse() -> tuple[socket.socket, socket.socket]:
        if not refused:
            refused.append("pair")
            raise OSError(errno.EMFILE, "Too many open files")
        return pair()

    remote, ids = remote_of(moto_s3), SaveIds("no-descriptor", 7, "save-1")
    with node_at(tmp_path / "cache", remote, moto_s3) as node:
        monkeypatch.setattr(socket, "socketpair", pair_or_refuse)
        node.put(ids, "small", b"hello")
        node.seal(ids)
        with supervised(node, remote):
            node.wait_durable(ids, 60)

    assert events_in(caplog).count("drain.not_started") == len(refused) == 1


def events_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    told = [vars(record).get("event") for record in caplog.records]
    return [event.name for event in told if event is not None]


def test_a_drain_waits_for_the_lock_of_its_predecessor(tmp_path: Path, moto_s3: S3Endpoint) -> None:
    remote = remote_of(moto_s3)
    ids = SaveIds("locked", 7, "save-1")
    with node_at(tmp_path / "cache", remote, moto_s3) as node:
        node.put(ids, "small", b"hello")
        node.seal(ids)
        descriptor = os.open(node.cache_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with supervised(node, remote) as supervisor:
            node.wait_until(lambda: shown(supervisor)["courtesy"] != {})
            assert node.checkpoints.step("locked", 7)[0].dirty_bytes == 5
            os.close(descriptor)
            node.wait_durable(ids)


def test_sigterm_ends_a_drain_in_whatever_moment_it_comes() -> None:
    program = """
import os, signal, threading
from cachetier.drain.loop import Signals
from cachetier.drain.process import stop_at_sigterm

class Locked(Signals):
    lock = threading.Lock()

    def stop(self):
        with self.lock:
            super().stop()

signals = Locked()
stop_at_sigterm(signals)
with signals.lock:
    os.kill(os.getpid(), signal.SIGTERM)
while not signals.stopping():
    signals.wait(60.0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30.0)


def test_the_drain_ends_with_the_process_that_started_it(
    tmp_path: Path, moto_s3: S3Endpoint
) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tests.integration.drain_node import Node, shown\n"
        "from tests.integration.test_drain_process import supervised\n"
        "from cachetier.remote.factory import open_remote\n"
        "from cachetier.remote.settings import RemoteSettings\n"
        "remote = RemoteSettings('durable', 'cachetier', endpoint=sys.argv[2])\n"
        "node = Node(Path(sys.argv[1]), open_remote(remote).objects)\n"
        "with supervised(node, remote) as supervisor:\n"
        "    node.wait_until(lambda: shown(supervisor)['courtesy'] != {})\n"
        "    print(shown(supervisor)['pid'], flush=True)\n"
        "    time.sleep(60)\n"
    )
    serve = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "cache"), moto_s3.url],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env={**os.environ, **moto_s3.environment()},
    )
    with serve:
        assert serve.stdout is not None
        drain = Path(f"/proc/{int(serve.stdout.readline())}")
        assert drain.exists()
        serve.kill()
        serve.wait()
        deadline = time.monotonic() + 60
        while drain.exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    assert not drain.exists()
    cgroup.sweep()  # what only the next service would do


def test_a_remote_that_throttles_is_shown_and_everything_arrives(
    tmp_path: Path, moto_s3: S3Endpoint
) -> None:
    ids = SaveIds("throttled", 7, "save-1")
    troubles = Troubles([Fault(Trouble.SLOW_DOWN, when=When(start=2, every=2, times=None))])
    with S3Proxy(moto_s3.url, troubles=troubles) as proxy:
        remote = remote_of(moto_s3, url=proxy.url)
        with node_at(tmp_path / "cache", remote_of(moto_s3), moto_s3) as node:
            for number in range(30):
                node.put(ids, f"shard-{number}", b"hello")
            node.seal(ids)
            with supervised(node, remote) as supervisor:
                node.wait_until(lambda: shown(supervisor)["remotes"][0]["throttled"] > 0)
                node.wait_until(lambda: remote_state(supervisor) == "throttled")
                troubles.clear()
                node.wait_durable(ids, 60)

    assert troubles.fired[Trouble.SLOW_DOWN] > 0


class Held(Troubles):
    """Holds the first completion of an upload back on the wire, whoever waits for its answer."""

    def __init__(self) -> None:
        super().__init__()
        self._landing = threading.Event()
        self.holds = threading.Event()

    def land(self) -> None:
        self._landing.set()

    def strike(self, request: WireHead) -> Trouble | None:
        completes = request.method == "POST" and "uploadId=" in request.first[1]
        if completes and not self.holds.is_set():
            self.holds.set()
            self._landing.wait(60)
        return super().strike(request)


def test_a_completion_held_on_the_wire_past_a_kill_does_not_overwrite_the_next_version(
    server: S3Endpoint, bucket: str, tmp_path: Path
) -> None:
    ranks = [SaveIds("run", 7, "save-1", rank, 2) for rank in (0, 1)]
    held = Held()
    with S3Proxy(server.url, troubles=held) as proxy:
        remote = remote_of(server, bucket, proxy.url)
        with node_at(tmp_path, remote, server) as node:
            node.put(ranks[0], "weights", patterned(LARGE, seed=1))
            with supervised(node, remote) as drain:
                drain.hurry("run", 7)
                assert held.holds.wait(30)
                time.sleep(0.5)  # the body comes after its head
                now = drain.state()
                assert now.pid is not None
                drain.ask_to_end()  # so that no other follows
                os.kill(now.pid, signal.SIGKILL)
        with node_at(tmp_path, remote, server) as node:
            node.put(ranks[0], "weights", patterned(LARGE, seed=2))
            node.seal(ranks[0])
            with supervised(node, remote):
                node.wait_clean(ranks[0], "weights")
                completions = held.seen["CompleteMultipartUpload"]
                held.land()
                node.wait_until(lambda: held.seen["CompleteMultipartUpload"] > completions)
                node.wait_until(lambda: not list(node.bucket.objects.list_uploads("")))
                node.put(ranks[1], "other", b"of the second rank")
                node.seal(ranks[1])
                node.wait_durable(ranks[0])
            body = node.bucket.objects.get(node.key(ranks[0], "weights"))
            assert body == patterned(LARGE, seed=2)
