"""The page of a cluster: what the nodes that the settings list say of themselves to Prometheus.

There is no coordinator: each console asks each node for its metrics, with a credential that opens
nothing else, and shows the answers beside each other, the worst first.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from cachetier_client.transport.tls import context_of_environment
from cachetier_client.units import shown_size
from prometheus_client.parser import text_string_to_metric_families

from cachetier.status.rates import Node
from cachetier.status.view import fleet, fleet_tiles

ANSWER_SECONDS = 2.0
ANSWER_LIMIT_BYTES = 4 << 20
AT_ONCE = 16
ROWS_SHOWN = 100
KEPT_SECONDS = 2.0  # for which all who watch share one round

REASONS: Mapping[type[Exception], str] = {
    TimeoutError: f"no answer within {ANSWER_SECONDS:g} s",
    ConnectionRefusedError: "nobody listens there",
    socket.gaierror: "nobody knows its name",
    http.client.BadStatusLine: "it speaks no HTTP here",
}

Fetch = Callable[[str, str | None], str]


def status_in(text: str, at: float) -> dict[str, Any]:
    """Return what a node's metrics say, as far as the view of several nodes needs a status object.

    ``at`` is monotonic, and stands for how long the node runs: rates are differences of it.

    Raises:
        ValueError: They are not those of a cachetier service.
    """
    found: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name.removeprefix("cachetier_")].append((sample.labels, sample.value))
    if "capacity_bytes" not in found:
        raise ValueError("this is not a cachetier service")

    def one(name: str, remote: str | None = None) -> float:
        each = (value for labels, value in found[name] if labels.get("remote") in (remote, None))
        return sum(each)

    def exposed(noun: str) -> list[dict[str, Any]]:
        return [
            {noun: labels[noun], "exposure_seconds": value}
            for labels, value in found[f"{noun}_exposure_seconds"]
        ]

    states = {labels["remote"]: labels["state"] for labels, value in found["remote_state"] if value}
    etas = {labels["remote"]: value for labels, value in found["drain_eta_seconds"]}
    return {
        "version": next((labels.get("version", "") for labels, _ in found["build_info"]), ""),
        "state": "fenced" if one("fenced") else "ready",
        "started_at": one("start_time_seconds"),
        "uptime_seconds": at,
        "exposure": exposed("run"),
        "mounts": exposed("mount"),
        "exposure_objective_seconds": one("exposure_objective_seconds"),
        "dirty_bytes": one("dirty_bytes"),
        "eta_seconds": etas.get("durable"),
        "used_bytes": one("used_bytes"),
        "capacity_bytes": one("capacity_bytes"),
        "flow": {"put_bytes": one("put_bytes_total"), "restored_bytes": 0},
        "drain": {"drained_bytes": one("drained_bytes_total", "durable")},
        "remotes": [{"name": "durable", "role": "durable", "state": states.get("durable", "ok")}],
        "warnings": (),
    }


@dataclass
class Cluster:
    """The nodes that the settings list; ``token`` opens their metrics. Thread-safe."""

    urls: tuple[str, ...] = ()
    token: str | None = None
    fetch: Fetch = field(default_factory=lambda: metrics_of)
    monotonic: Callable[[], float] = time.monotonic
    _asked_at: float = -KEPT_SECONDS
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.nodes = [Node(url) for url in self.urls]

    def shown(self, words: str = "") -> dict[str, Any]:
        """Ask all nodes at once, for a few seconds at most; return what the page shows of them.

        Of the nodes those are listed whose rows have all ``words``.
        """
        with self._lock:
            if self.monotonic() - self._asked_at >= KEPT_SECONDS and self.nodes:
                with ThreadPoolExecutor(min(AT_ONCE, len(self.nodes)), "console-cluster") as pool:
                    list(pool.map(self._ask, self.nodes))
                self._asked_at = self.monotonic()
            nodes, wanted = fleet(self.nodes, self.monotonic()).without("warn"), words.split()
            texts = ((row, " ".join(cell.text for cell in row)) for row in nodes.rows)
            rows = [row for row, text in texts if all(word in text for word in wanted)]
            nodes = replace(nodes, rows=rows).first(ROWS_SHOWN)
            return {"nodes": nodes, "tiles": fleet_tiles(self.nodes), "listed": len(self.nodes)}

    def _ask(self, node: Node) -> None:
        try:
            text = self.fetch(node.url, self.token)
            node.answered(status_in(text, self.monotonic()))
        except Exception as error:  # whatever it is, its row says it
            words = REASONS.get(type(error)) or str(error) or type(error).__name__
            refused = isinstance(error, PermissionError)
            node.failed(words[:300], self.monotonic(), refused=refused)


def metrics_of(url: str, token: str | None) -> str:
    """Return the metrics of the node at ``url``, within two seconds and 4 MiB.

    Raises:
        OSError, ValueError, HTTPException: It did not answer, or not with its metrics.
    """
    parts = urlsplit(url)
    is_secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
    tls: dict[str, Any] = {"context": context_of_environment()} if is_secure else {}
    connection = kind(parts.hostname or "", parts.port, timeout=ANSWER_SECONDS, **tls)
    deadline = time.monotonic() + ANSWER_SECONDS
    with closing(connection):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        if answer.status in (401, 403):
            raise PermissionError("it refuses our `scrape_token`: give both nodes the same")
        if answer.status != 200:
            raise ValueError(f"it answers with status {answer.status}")
        body = bytearray()
        while piece := answer.read1(64 << 10):
            body += piece
            if len(body) > ANSWER_LIMIT_BYTES:
                raise ValueError(f"its answer is larger than {shown_size(ANSWER_LIMIT_BYTES)}")
            if time.monotonic() > deadline:
                raise TimeoutError
        return body.decode()
