"""Start, stop, fence and measure a whole node."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client import CachetierClientError, Client, StoppingError
from cachetier_client.bucket_format.stored import Codec
from cachetier_client.io.digests import digest_of

from cachetier.config.settings import load
from cachetier.doors.http.server import CUT_OFF_SECONDS
from cachetier.drain.serve.stats import CodecTotals, DrainSnapshot, RemoteSnapshot
from cachetier.drain.serve.supervisor import KILLED_SECONDS
from cachetier.errors import ConfigError, DirectoryInUseError
from cachetier.model.names import DURABLE
from cachetier.service import service as service_module
from cachetier.service.service import Service
from cachetier.telemetry import tracing
from tests.fakes.bodies import noise
from tests.integration.serving import OWNER, IdleDrain, Served, serving, shard_path
from tests.integration.test_http_shards import LARGE


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


def value_of(served: Served, name: str) -> float:
    """Read one metric as Prometheus would."""
    text = served.call("GET", "/metrics").body.decode()
    found = re.search(rf"^cachetier_{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found.group(1))


# --- start and stop ------------------------------------------------------------------------------


def test_both_doors_open_onto_the_same_node(served: Served) -> None:
    with Client(served.unix_url) as client:
        client.put_shard(b"by socket", run="r", step=1, name="a", save_id="http")
    served.put("b", b"by HTTP")
    assert served.call("GET", shard_path("a")).body == b"by socket"
    with Client(served.unix_url) as client:
        assert bytes(client.get_shard("r", 1, "b")) == b"by HTTP"


def test_what_was_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    small, large = b"small", noise(LARGE)
    with serving(tmp_path / "cache") as served:
        served.put("small", small)
        served.put("large", large)
        store_id = served.service.operations.status()["store_id"]
    with serving(tmp_path / "cache") as served:
        assert served.service.operations.status()["store_id"] == store_id
        assert served.call("GET", shard_path("small")).body == small
        assert served.call("GET", shard_path("large")).body == large
        assert served.service.store.space.used_bytes == len(small) + len(large)


def test_a_second_service_on_the_directory_refuses(tmp_path: Path) -> None:
    with serving(tmp_path / "cache") as served:
        with pytest.raises(DirectoryInUseError):
            with serving(tmp_path / "cache"):
                pass
        assert served.put("x", b"x").status == 201


def test_a_failed_start_lets_everything_go(tmp_path: Path) -> None:
    with serving() as other:
        taken = f"127.0.0.1:{other.call.port}"
        with pytest.raises(ConfigError):
            with serving(tmp_path / "cache", http=taken):
                pass
    with serving(tmp_path / "cache") as served:
        assert served.put("x", b"x").status == 201


def test_a_cache_in_memory_is_refused_unless_wanted() -> None:
    memory = Path("/dev/shm/cachetier-test") / str(os.getpid())
    if not Path("/dev/shm").is_mount():
        pytest.skip("no memory filesystem here")
    with pytest.raises(ConfigError) as caught:
        with serving(memory):
            pass
    assert "tmpfs" in caught.value.message
    assert not memory.exists()


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError) as caught:
        with serving(tmp_path / "file" / "cache"):
            pass
    assert "cache_dir" in caught.value.message


def test_the_real_parts_are_put_together_from_settings(tmp_path: Path) -> None:
    settings = load(
        {
            "cache_dir": tmp_path / "cache",
            "remote": "s3://bucket/a/b",
            "remote_endpoint": "http://127.0.0.1:1",
            "remote_assume": "readback,unconditional",
            "socket": tmp_path / "s",
            "http": "",
            "watermarks": [0.4, 0.5],
        }
    )
    service = Service(settings, open_drain=lambda *_parts: IdleDrain())
    service.start()
    try:
        status = service.operations.status()
        assert service.url is None
        assert status["remotes"][0]["url"] == "s3://bucket/a/b"
        assert status["remotes"][0]["verify"] == "readback"
        assert any("`unconditional`" in warning for warning in status["warnings"])
    finally:
        service.stop()


def test_a_stopping_service_refuses_new_work_and_ends_its_waits(served: Served) -> None:
    served.put("x", b"x")
    ended: list[CachetierClientError] = []

    def wait() -> None:
        with Client(served.unix_url, fallback="fail") as client:
            try:
                client.wait("r", 1, timeout_seconds=3600, name="x")
            except CachetierClientError as error:
                ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not served.service._waits.callers:
        time.sleep(0.01)
    served.service.stop()
    waiting.join()
    assert ended
    assert served.service.report.not_ready() == "the service is stopping"
    with pytest.raises(Exception) as caught:
        served.service.operations.refuse_when_stopping()
    assert getattr(caught.value, "code", "") == StoppingError.code


def test_an_upload_in_flight_ends_well_while_the_service_stops(served: Served) -> None:
    data = noise(LARGE)
    head = f"PUT {shard_path('x')} HTTP/1.1\r\n{OWNER}Content-Length: {LARGE}\r\n\r\n"
    with served.call.raw() as connection:
        connection.sendall(head.encode() + data[: LARGE // 2])
        while served.service.store.space.used_bytes < LARGE:
            time.sleep(0.01)
        stopping = threading.Thread(target=served.service.stop)
        stopping.start()
        while served.service.report.not_ready() != "the service is stopping":
            time.sleep(0.01)
        connection.sendall(data[LARGE // 2 :])
        answer = connection.recv(4096)
        stopping.join()
    assert answer.startswith(b"HTTP/1.1 201")


def test_the_drain_ends_while_the_doors_do_and_has_no_time_of_its_own_after_them() -> None:
    with serving(grace="1s") as served, served.call.raw() as connection:
        head = f"PUT {shard_path('x')} HTTP/1.1\r\n{OWNER}Content-Length: {LARGE}\r\n\r\n"
        connection.sendall(head.encode() + b"the rest never comes")
        while served.service.store.space.used_bytes < LARGE:
            time.sleep(0.01)
        served.service.stop()

    assert served.drain.ending == ["asked", "0.0 s left"]


def test_an_upload_that_the_grace_time_cuts_off_is_answered_and_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(grace="1s") as served, served.call.raw() as connection:
        head = f"PUT {shard_path('x')} HTTP/1.1\r\n{OWNER}Content-Length: {LARGE}\r\n\r\n"
        connection.sendall(head.encode() + b"the rest never comes")
        while served.service.store.space.used_bytes < LARGE:
            time.sleep(0.01)
        served.service.stop()
        answer = connection.recv(4096)

    assert answer.startswith(b"HTTP/1.1 503")
    assert b'"code": "stopping"' in answer
    assert "Cancel 1 running task" in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


def test_whatever_hangs_at_a_stop_ends_within_ten_seconds_after_its_grace() -> None:
    rounds = 2 * service_module.ROUND_SECONDS  # housekeeping, and looking for pending seals
    hanging = CUT_OFF_SECONDS + rounds + KILLED_SECONDS + tracing.CLOSE_SECONDS

    assert hanging <= 10 - 1  # one to close the catalog; see `needed_seconds` of the deploy files


# --- a disk that fails ---------------------------------------------------------------------------


def test_a_fenced_node_reads_on_and_says_why_it_takes_nothing(served: Served) -> None:
    served.put("x", b"x")
    assert served.call("GET", "/readyz").status == 200
    served.service.store.fence("syncing a data file failed: Input/output error")
    for name, size_bytes in (("y", 1), ("z", LARGE)):
        answer = served.put(name, noise(size_bytes))
        assert (answer.status, answer.code) == (503, "fenced")
    assert served.call("GET", shard_path("x")).body == b"x"
    ready = served.call("GET", "/readyz")
    assert (ready.status, ready.json["reason"]) == (
        *(503, "syncing a data file failed: Input/output error"),
    )
    assert served.call("GET", "/livez").status == 200
    status = served.call("GET", "/v1/status").json
    assert (status["state"], "Input/output" in status["fenced"]) == ("fenced", True)
    assert value_of(served, "fenced") == 1


# --- making room ---------------------------------------------------------------------------------


def test_clean_shards_go_above_the_high_watermark() -> None:
    with serving(capacity="40 MB", watermarks=[0.35, 0.5]) as served:
        bodies = {name: noise(LARGE, number) for number, name in enumerate("ab")}
        for name, body in bodies.items():
            served.put(name, body)
            served.drained(name, body)
        served.put("ring", b"")
        deadline = time.monotonic() + 60
        while len(served.data_files()) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert value_of(served, "evicted_bytes_total") == LARGE
        assert served.call("GET", shard_path("a")).body == bodies["a"]
        assert value_of(served, "restored_bytes_total") == LARGE


@pytest.mark.parametrize("harm", ["gone", "other bytes", "another save"])
def test_a_shard_that_the_remote_lost_is_not_evicted(harm: str) -> None:
    with serving(capacity="20 MB", when_full="reject") as served:
        body = noise(LARGE)
        served.put("x", body)
        served.drained("x", body)
        key = "p/r/1/x"
        if harm == "gone":
            served.objects.delete(key)
        elif harm == "other bytes":
            served.objects.put(key, b"other", digest=digest_of(b"other"))
        else:
            metadata = {"cachetier-save": "foreign"}
            served.objects.put(key, body, digest=digest_of(body), metadata=metadata)
        assert served.put("y", noise(LARGE, 1)).code == "backpressure"
        assert served.call("GET", shard_path("x")).body == body


# --- metrics -------------------------------------------------------------------------------------

IDLE = {
    *("drained_bytes_total", "saved_bytes_total", "drained_shards_total"),
    *("throttled_total", "drain_failures_total"),
    *("drain_restarts_total", "published_total", "restored_bytes_total", "evicted_bytes_total"),
    *("backpressure_total", "fenced", "remote_refused", "quarantined_total", "put_bytes_total"),
    *("put_seconds_count", "get_seconds_count", "dirty_bytes", "dirty_shards", "used_bytes"),
    *("oldest_dirty_seconds", "waiting_puts_bytes"),
}


def test_every_metric_is_there_from_the_start(served: Served) -> None:
    for name in IDLE:
        assert value_of(served, name) == 0, name
    assert value_of(served, "capacity_bytes") == 10**9
    assert value_of(served, "open_connections") == 1
    text = served.call("GET", "/metrics").body.decode()
    assert "job=" not in text
    assert served.call("GET", "/metrics").headers["content-type"].startswith("text/plain")


def test_puts_and_gets_drive_their_metrics(served: Served) -> None:
    served.put("small", b"x" * 10)
    served.put("large", noise(LARGE))
    with Client(served.unix_url) as client:
        client.put_shard(noise(LARGE), run="r", step=1, name="by-socket", save_id="http")
        client.get_shard("r", 1, "by-socket")
    served.call("GET", shard_path("large"))
    assert value_of(served, "put_seconds_count") == 3
    assert value_of(served, "put_bytes_total") == 10 + 2 * LARGE
    assert value_of(served, "get_seconds_count") == 2
    assert value_of(served, "dirty_bytes") == 10 + 2 * LARGE
    assert value_of(served, "dirty_shards") == 3
    assert value_of(served, "used_bytes") == 10 + 2 * LARGE
    assert 0 < value_of(served, "oldest_dirty_seconds") < 60


def test_the_drain_drives_its_metrics(served: Served) -> None:
    served.drain.snapshot = DrainSnapshot(
        RemoteSnapshot(DURABLE, "refused", throttled=3),
        drained_bytes=7,
        drained_shards=1,
        codecs={Codec.ZSTD: CodecTotals(1, 7, 5)},
        failures=1,
        published_steps=1,
        restarts=1,
    )
    expected = {
        "drained_bytes_total": 7,
        "saved_bytes_total": 2,
        "drained_shards_total": 1,
        "throttled_total": 3,
        "drain_failures_total": 1,
        "published_total": 1,
        "drain_restarts_total": 1,
        "remote_refused": 1,
    }
    assert {name: value_of(served, name) for name in expected} == expected


def test_damage_and_fences_drive_their_metrics(served: Served) -> None:
    served.put("x", noise(LARGE))
    path = served.data_files()[0]
    with path.open("r+b") as file:
        file.write(b"damage")
    assert served.call("GET", shard_path("x")).code == "integrity"
    assert value_of(served, "quarantined_total") == 1
