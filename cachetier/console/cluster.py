"""The page of a cluster: what the nodes that the settings list say of themselves to Prometheus.

There is no coordinator: each console asks each node for its metrics, with a credential that opens
nothing else, and shows the answers beside each other, the worst first.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from cachetier_client.identity.names import MOUNT_MARK
from cachetier_client.transport.tls import context_of_environment
from cachetier_client.units import shown_size, shown_span
from prometheus_client.parser import text_string_to_metric_families

from cachetier.console.node import BAD, GOOD, REMOTE_TONES, eta_words, size_or_dash, speed
from cachetier.status.words import WELL_STATES, danger

ANSWER_SECONDS = 2.0
ANSWER_LIMIT_BYTES = 4 << 20
AT_ONCE = 16
KEPT_SECONDS = 2.0  # for which all who watch share one round
TONES = {"ready": GOOD, **REMOTE_TONES}

Fetch = Callable[[str, str | None], str]


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """What one node says; ``at`` is monotonic, ``worst`` (seconds, run) what it exposes most."""

    url: str
    at: float
    version: str = ""
    state: str = "ready"
    worst: tuple[float, str] = (0.0, "")
    objective: float = 0.0
    dirty_bytes: float = 0.0
    eta_seconds: float | None = None
    put_bytes: float = 0.0
    drained_bytes: float = 0.0
    used_share: float = 0.0
    started_at: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node as the page shows it; ``error`` says why it has not answered."""

    url: str
    label: str
    state: str
    tone: str
    exposed: str = ""
    exposed_tone: str = ""
    run: str = ""
    dirty: str = ""
    eta: str = ""
    put: str = ""
    drained: str = ""
    used: float = 0.0
    version: str = ""
    error: str = ""


def figures_in(text: str, url: str, at: float) -> NodeFigures:
    """Return what a node's metrics say.

    Raises:
        ValueError: They are not those of a cachetier service.
    """
    found: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name.removeprefix("cachetier_")].append((sample.labels, sample.value))
    if "capacity_bytes" not in found:
        raise ValueError("this is no cachetier service")

    def one(name: str) -> float:
        return sum(value for _, value in found.get(name, ()))

    exposed = [(value, labels["run"]) for labels, value in found["run_exposure_seconds"]]
    exposed += [
        (value, f"{MOUNT_MARK}{labels['mount']}")
        for labels, value in found["mount_exposure_seconds"]
    ]
    etas = [value for labels, value in found["drain_eta_seconds"] if labels["remote"] == "durable"]
    remote = [
        labels["state"]
        for labels, value in found["remote_state"]
        if value and labels["remote"] == "durable"
    ]
    bad = (each for each in remote if each not in WELL_STATES)
    state = "fenced" if one("fenced") else next(bad, "ready")
    return NodeFigures(
        url=url,
        at=at,
        version=next((labels.get("version", "") for labels, _ in found["build_info"]), ""),
        state=state,
        worst=max(exposed, default=(0.0, "")),
        objective=one("exposure_objective_seconds"),
        dirty_bytes=one("dirty_bytes"),
        eta_seconds=etas[0] if etas else None,
        put_bytes=one("put_bytes_total"),
        drained_bytes=sum(
            value
            for labels, value in found["drained_bytes_total"]
            if labels.get("remote") == "durable"
        ),
        used_share=one("used_bytes") / max(1.0, one("capacity_bytes")),
        started_at=one("start_time_seconds"),
    )


def row_of(now: NodeFigures, before: NodeFigures | None) -> NodeRow:
    """Return the row of a node that answered; its rates are since ``before``, if it ran on."""
    seconds, run = now.worst
    goes_on = before is not None and before.started_at == now.started_at and now.at > before.at

    def rate(name: str) -> str:
        if not goes_on or before is None:
            return "-"
        return speed((getattr(now, name) - getattr(before, name)) / (now.at - before.at))

    return NodeRow(
        url=now.url,
        label=urlsplit(now.url).netloc,
        state=now.state,
        tone=TONES.get(now.state, BAD),
        exposed=shown_span(seconds) if seconds else "-",
        exposed_tone=danger(seconds, now.objective),
        run=run if seconds else "",
        dirty=size_or_dash(now.dirty_bytes),
        eta=eta_words(now.eta_seconds),
        put=rate("put_bytes"),
        drained=rate("drained_bytes"),
        used=now.used_share,
        version=now.version,
    )


@dataclass
class Cluster:
    """The nodes that the settings list; ``token`` opens their metrics. Thread-safe."""

    urls: tuple[str, ...] = ()
    token: str | None = None
    fetch: Fetch = field(default_factory=lambda: metrics_of)
    monotonic: Callable[[], float] = time.monotonic
    _before: dict[str, NodeFigures] = field(default_factory=dict)
    _rows: tuple[float, list[NodeRow]] = (-KEPT_SECONDS, [])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def rows(self) -> list[NodeRow]:
        """Ask all nodes at once, for a few seconds at most; return their rows, the worst first."""
        with self._lock:
            at, rows = self._rows
            if self.monotonic() - at >= KEPT_SECONDS and self.urls:
                rows = self._asked()
                self._rows = self.monotonic(), rows
            return rows

    def _asked(self) -> list[NodeRow]:
        with ThreadPoolExecutor(min(AT_ONCE, len(self.urls)), "console-cluster") as pool:
            asked = {url: pool.submit(self._ask, url) for url in self.urls}
        found = [(_badness(each := self._row(url, answer)), each) for url, answer in asked.items()]
        return [row for _, row in sorted(found, key=lambda each: each[0], reverse=True)]

    def _ask(self, url: str) -> NodeFigures:
        text = self.fetch(url, self.token)
        return figures_in(text, url, self.monotonic())

    def _row(self, url: str, answer: Future[NodeFigures]) -> NodeRow:
        error: Any = answer.exception()
        if error is not None:
            words = str(error) or type(error).__name__
            return NodeRow(url, urlsplit(url).netloc, "away", BAD, error=words[:300])
        now, before = answer.result(), self._before.get(url)
        self._before[url] = now
        return row_of(now, before)


def _badness(row: NodeRow) -> tuple[bool, bool, bool, str]:
    return bool(row.error), row.exposed_tone == BAD, row.tone != GOOD, row.label


def ready_of(rows: Sequence[NodeRow]) -> int:
    return sum(row.state == "ready" for row in rows)


def metrics_of(url: str, token: str | None) -> str:
    """Return the metrics of the node at ``url``, within two seconds and 4 MiB.

    Raises:
        OSError, ValueError: It did not answer, or not with its metrics; says why.
    """
    parts = urlsplit(url)
    connection = _connection(parts.scheme, parts.hostname or "", parts.port)
    deadline = time.monotonic() + ANSWER_SECONDS
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        if answer.status in (401, 403):
            raise ValueError("it refuses our `scrape_token`: give both nodes the same")
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
    except TimeoutError:
        raise ValueError(f"no answer within {ANSWER_SECONDS:g} s") from None
    except http.client.HTTPException as error:
        raise ValueError(f"it speaks no HTTP here: {type(error).__name__}") from None
    except ConnectionRefusedError:
        raise ValueError("nobody listens there") from None
    except socket.gaierror:
        raise ValueError("nobody knows its name") from None
    finally:
        connection.close()


def _connection(scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
    if scheme == "https":
        context: ssl.SSLContext = context_of_environment()
        return http.client.HTTPSConnection(host, port, timeout=ANSWER_SECONDS, context=context)
    return http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)
