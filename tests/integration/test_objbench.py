"""objbench against S3 servers: it measures, verifies, notices throttling, and leaves nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from itertools import count
from typing import TypeVar

import pytest

from cachetier.doctor.objbench import PART_BYTES, ObjectBench, RemoteBenchOptions, advice_for
from cachetier.errors import RemoteDigestError, RemoteRefusedError
from cachetier.remote.base import Into
from cachetier.remote.factory import open_store
from cachetier.remote.wrapped import WrappedObjectStore
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import Fault, Trouble, When
from tests.integration.doctoring import everything_in, remote_on, signed_in
from tests.integration.test_cli import run

SECONDS = 60.0
QUICK = RemoteBenchOptions(seconds=1.0, size_bytes=64 << 20, streams=2)
Answer = TypeVar("Answer")

_buckets = count(1)


@pytest.fixture
def server(seaweed_s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> S3Endpoint:
    signed_in(monkeypatch, seaweed_s3.credentials)
    return seaweed_s3


@pytest.fixture
def bucket(server: S3Endpoint) -> str:
    name = f"objbench-{next(_buckets)}"
    server.create_bucket(name)
    return name


def test_every_figure_is_measured_and_nothing_is_left(server: S3Endpoint, bucket: str) -> None:
    steps: list[str] = []
    bench = ObjectBench(remote_on(server, bucket=bucket), QUICK, on_step=steps.append)
    measured = bench.run()
    requests = list(measured.latencies)
    assert requests == ["PUT", "HEAD", "GET", "DELETE", "first byte"]
    assert all(0 < t.p50_seconds <= t.p99_seconds for t in measured.latencies.values())
    assert measured.rate is not None
    assert measured.rate.per_second > 0
    cells = [(each.streams, each.part_bytes) for each in measured.throughputs]
    assert cells == QUICK.cells
    assert all(each.put_bytes_per_second > 0 for each in measured.throughputs)
    assert all(each.get_bytes_per_second > 0 for each in measured.throughputs)
    assert all(each.throttled == each.failed == 0 for each in measured.throughputs)
    assert steps[-1] == "2 streams of 32 MiB"
    assert (bench.left_behind, everything_in(server, bucket)) == ([], [])


def test_throttling_is_counted_and_suggests_a_rate(server: S3Endpoint, bucket: str) -> None:
    with S3Proxy(server.url) as proxy:
        refused = When(start=2, every=2, times=None)
        proxy.troubles.add(Fault(Trouble.SLOW_DOWN, "UploadPart", refused))
        plan = RemoteBenchOptions(seconds=2.0, size_bytes=256 << 20, streams=4)
        measured = ObjectBench(remote_on(server, bucket=bucket, endpoint=proxy.url), plan).run()
        fired = proxy.troubles.fired[Trouble.SLOW_DOWN]
    assert sum(each.throttled for each in measured.throughputs) == fired > 0
    usual = [each for each in measured.throughputs if each.part_bytes == PART_BYTES]
    assert advice_for(usual).max_rate.endswith(" MB/s")
    assert everything_in(server, bucket) == []


class Flipping(WrappedObjectStore):
    """A store that gives ranges back with a bit flipped."""

    def read_into(self, key: str, start: int, into: Into, etag: str | None = None) -> None:
        super().read_into(key, start, into, etag)
        assert isinstance(into, memoryview)
        into[len(into) // 2] ^= 1


def test_bytes_that_come_back_changed_end_it_and_are_cleaned_up(
    server: S3Endpoint, bucket: str
) -> None:
    remote = remote_on(server, bucket=bucket)
    bench = ObjectBench(remote, QUICK, store=Flipping(open_store(remote)))
    with pytest.raises(RemoteDigestError, match="other bytes"):
        bench.run()
    assert everything_in(server, bucket) == []


def test_a_refusal_in_the_middle_ends_it_and_is_cleaned_up(server: S3Endpoint, bucket: str) -> None:
    with S3Proxy(server.url) as proxy:
        denied = When(start=3, times=None)
        proxy.troubles.add(Fault(Trouble.ACCESS_DENIED, "UploadPart", denied))
        with pytest.raises(RemoteRefusedError):
            ObjectBench(remote_on(server, bucket=bucket, endpoint=proxy.url), QUICK).run()
        assert proxy.troubles.fired[Trouble.ACCESS_DENIED] > 0
    assert everything_in(server, bucket) == []


# --- the verb ------------------------------------------------------------------------------------


def test_the_verb_needs_no_cache_directory(server: S3Endpoint, bucket: str) -> None:
    where = ["--remote", f"s3://{bucket}/p", "--remote-endpoint", server.url]
    small = ["--for", "1s", "--size", "64 MiB", "--streams", "2"]
    done = run(None, "bench", *where, *small, "--json")
    assert done.code == 0, done.err
    document = done.json
    assert document["advice"]["drain_workers"] in (1, 2)
    assert len(document["throughputs"]) == len(QUICK.cells)
    assert document["left_behind"] == []
    table = run(None, "bench", *where, *small)
    assert "suggested: drain_workers = " in table.out
    assert "first byte" in table.out


def test_the_verb_tells_what_is_wrong(server: S3Endpoint) -> None:
    where = ["--remote", "s3://nonesuch/p", "--remote-endpoint", server.url]
    error = run(None, "bench", *where, "--json").json["error"]
    assert (error["code"], "cachetier doctor" in error["hint"]) == ("remote_refused", True)
    assert run(None, "bench", *where, "--replica", "far").code == 2
    assert run(None, "bench", *where, "--size", "lots").code == 2


def test_an_objbench_that_is_ended_leaves_nothing(server: S3Endpoint, bucket: str) -> None:
    with S3Proxy(server.url) as proxy:
        where = ["--remote", f"s3://{bucket}/p", "--remote-endpoint", proxy.url]
        process = subprocess.Popen(
            [sys.executable, "-m", "cachetier", "bench", *where, "--for=20s", "--streams=1"],
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + SECONDS
        while not proxy.troubles.seen["UploadPart"] and time.monotonic() < deadline:
            time.sleep(0.05)
        assert everything_in(server, bucket) != []
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 128 + signal.SIGTERM
    assert everything_in(server, bucket) == []
