"""Take traces by OTLP over HTTP and print each checkpoint's as a tree: a look without a collector.

    python -m examples.trace_tree 4318                                        # one terminal
    export OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318    # another
    cachetier serve ...

Needs the extra `otel`: docs/install.md.
"""

from __future__ import annotations

import gzip
import sys
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

SHOWN = ("name", "size_bytes", "stored_bytes", "remote", "code", "busy_seconds", "state")


class Door(BaseHTTPRequestHandler):
    """Keeps spans by trace, and prints a trace when its root arrives."""

    traces: ClassVar[defaultdict[bytes, list[Any]]] = defaultdict(list)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        sent = ExportTraceServiceRequest.FromString(body)
        scopes = (scope for resource in sent.resource_spans for scope in resource.scope_spans)
        spans = [span for scope in scopes for span in scope.spans]
        for span in spans:
            self.traces[span.trace_id].append(span)
        for root in (span for span in spans if span.name == "checkpoint"):
            print(f"trace {root.trace_id.hex()}")
            print("\n".join(tree(root, self.traces.pop(root.trace_id, []))), flush=True)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing of requests."""


def tree(root: Any, spans: list[Any]) -> Iterator[str]:
    """Yield a line for each span: when it began, how long it took, what it tells of."""
    children: defaultdict[bytes, list[Any]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start_time_unix_nano):
        children[span.parent_span_id].append(span)

    def lines(span: Any, depth: int) -> Iterator[str]:
        began = (span.start_time_unix_nano - root.start_time_unix_nano) / 1e9
        took = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        yield f"{began:7.3f} s {took:7.3f} s  {'  ' * depth}{span.name:<11} {shown(span)}".rstrip()
        for child in children[span.span_id]:
            yield from lines(child, depth + 1)

    return lines(root, 0)


def shown(span: Any) -> str:
    """Return the attributes that say most about a span."""
    values = {each.key.removeprefix("cachetier."): each.value for each in span.attributes}
    return " ".join(f"{name}={value_of(values[name])}" for name in SHOWN if name in values)


def value_of(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 4318
    with HTTPServer(("127.0.0.1", port), Door) as server:
        server.serve_forever()
