"""A trace of a whole step: over a restart in memory, and by the real exporter to a collector."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from cachetier_client import Client, traced
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cachetier.service import service as services
from cachetier.telemetry.tracing import VARIABLE, open_tracing
from cachetier.testing.moto_server import moto_server
from cachetier.testing.s3_endpoint import S3Endpoint
from examples.trace_tree import tree
from tests.integration.serving import node_settings, running
from tests.integration.test_leaving import ended, started

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LARGE = os.urandom(9 << 20)
SECONDS = 50.0
WHOLE = {"checkpoint", "put", "stage", "commit", "seal", "drain", "read", "send", "verify"}
WHOLE |= {"write_part", "publish"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[S3Endpoint]:
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture
def settings(
    tmp_path: Path, endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    monkeypatch.setenv(VARIABLE, "otlp")
    remote = f"s3://{endpoint.bucket}/{tmp_path.name}"
    return {**node_settings(tmp_path, endpoint, remote, monkeypatch)}


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Keep what services send, over their restarts."""
    kept = InMemorySpanExporter()
    kept.shutdown = lambda: None  # type: ignore[method-assign]

    def traced_here(store_id: str, directory: Path) -> Any:
        return open_tracing(store_id, directory, exporter=kept)

    monkeypatch.setattr(services, "open_tracing", traced_here)
    return kept


def test_a_step_that_outlives_a_restart_is_one_trace(
    settings: dict[str, Any], exporter: InMemorySpanExporter
) -> None:
    with running({**settings, "max_rate": "00:00-24:00 0"}) as service:  # nothing is sent yet
        with Client(f"unix://{service.socket}") as client, traced(CALLER):
            client.put_shard(LARGE, run="run", step=7, name="large", rank=0, world_size=1)
            client.seal("run", 7, rank=0, world_size=1)
    before = {span.name for span in exporter.get_finished_spans()}
    assert before == {"put", "stage", "commit", "seal"}

    with running(settings) as service, Client(f"unix://{service.socket}") as client:
        client.wait("run", 7, timeout_seconds=SECONDS)
    spans = exporter.get_finished_spans()
    assert {span.name for span in spans} >= WHOLE
    assert {f"{span.context.trace_id:032x}" for span in spans} == {CALLER.split("-")[1]}
    (root,) = (span for span in spans if span.name == "checkpoint")
    assert root.parent is not None and f"{root.parent.span_id:016x}" == CALLER.split("-")[2]
    above = {span.name: span.parent.span_id for span in spans if span.parent is not None}
    for name in ("put", "seal", "drain", "write_part", "publish"):
        assert above[name] == root.context.span_id, name
    for span in spans:
        assert span.start_time is not None and span.end_time is not None
        assert span.start_time <= span.end_time


def test_nothing_is_traced_unless_it_is_wanted(
    settings: dict[str, Any], exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "none")
    with running(settings) as service:
        with Client(f"unix://{service.socket}") as client:
            client.put_shard(b"x", run="run", step=7, name="x", rank=0, world_size=1)
    assert exporter.get_finished_spans() == ()


# --- the real exporter ---------------------------------------------------------------------------


class Collector:
    """Takes traces by OTLP over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.service_names: set[str] = set()
        collector = self

        class Door(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def take(self, sent: ExportTraceServiceRequest) -> None:
        for resource in sent.resource_spans:
            named = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.service_names.add(named["service.name"])
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def names(self) -> set[str]:
        return {span.name for span in self.spans}


@pytest.fixture
def collector() -> Iterator[Collector]:
    collecting = Collector()
    with collecting.server:
        thread = Thread(target=collecting.server.serve_forever, args=(0.05,))
        thread.start()
        yield collecting
        collecting.server.shutdown()
        thread.join()


def test_the_service_sends_its_traces_to_a_collector(
    tmp_path: Path,
    endpoint: S3Endpoint,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in endpoint.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(VARIABLE, "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    remote = {"remote": f"s3://{endpoint.bucket}/{tmp_path.name}"}
    remote["remote_assume"] = endpoint.verify
    process, ready = started(tmp_path, endpoint.url, **remote, http="127.0.0.1:0")
    try:
        with Client(ready["http"]) as client, traced(CALLER):
            client.put_shard(LARGE, run="run", step=7, name="large", rank=0, world_size=1)
            client.seal("run", 7, rank=0, world_size=1)
            client.wait("run", 7, timeout_seconds=SECONDS)
    finally:
        process.send_signal(signal.SIGTERM)
        assert ended(process) == 0  # what was not sent yet is sent at the end
    assert collector.names() >= WHOLE
    assert collector.service_names == {"cachetier"}
    assert {span.trace_id.hex() for span in collector.spans} == {CALLER.split("-")[1]}
    (put,) = (span for span in collector.spans if span.name == "put")
    told = {each.key: each.value for each in put.attributes}
    assert told["cachetier.name"].string_value == "large"
    assert told["cachetier.size_bytes"].int_value == len(LARGE)
    (root,) = (span for span in collector.spans if span.name == "checkpoint")
    printed = list(tree(root, collector.spans))
    assert len(printed) == len(collector.spans)
    assert printed[0].split()[4] == "checkpoint" and "state=published" in printed[0]


def test_a_collector_that_is_away_holds_nothing_up(
    tmp_path: Path, endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in endpoint.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(VARIABLE, "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    remote = {"remote": f"s3://{endpoint.bucket}/{tmp_path.name}"}
    remote["remote_assume"] = endpoint.verify
    process, ready = started(tmp_path, endpoint.url, **remote)
    try:
        with Client(f"unix://{ready['socket']}") as client:
            with client.checkpoint("run", 7, rank=0, world_size=1) as checkpoint:
                checkpoint.put(b"x", "x")
            client.wait("run", 7, timeout_seconds=SECONDS)
    finally:
        process.send_signal(signal.SIGTERM)
        assert ended(process) == 0


# --- what it costs when it is off ----------------------------------------------------------------

_OFF = """
import sys
from pathlib import Path
import cachetier.service, cachetier.cli.node
from cachetier.telemetry.tracing import open_tracing
open_tracing("store", Path("."))()
found = [name for name in sys.modules
         if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))
         or name == "cachetier.telemetry.spans"]
assert not found, found
"""

_QUEUES = """import os
os.environ |= {"OTEL_BSP_MAX_QUEUE_SIZE": "8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "9"}
"""

_AWAY = """
import os, sys
from pathlib import Path
os.environ["OTEL_TRACES_EXPORTER"] = "otlp"
sys.modules["opentelemetry.sdk"] = None
from cachetier.errors import ConfigError
from cachetier.telemetry.tracing import open_tracing
try:
    open_tracing("store", Path("."))
except ConfigError as error:
    assert "extra `otel`" in error.hint, error.hint
else:
    raise AssertionError("it was opened")
"""


_NO_EXPORTER = _AWAY.replace("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
_NO_SENSE = _AWAY.replace('sys.modules["opentelemetry.sdk"] = None', _QUEUES).replace(
    "extra `otel`", "OTEL_*"
)


@pytest.mark.parametrize(
    "program",
    [_OFF, _AWAY, _NO_EXPORTER, _NO_SENSE],
    ids=["off", "not installed", "no exporter", "settings without sense"],
)
def test_the_sdk_is_imported_only_where_traces_are_wanted(program: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert ended.returncode == 0, ended.stderr
