"""A cluster is what each node says of itself; one that does not answer says why, and is first."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from cachetier.console import cluster
from cachetier.console.cluster import ROWS_SHOWN, Cluster, metrics_of

METRICS = """
# TYPE cachetier_build_info gauge
cachetier_build_info{version="1.2"} 1
cachetier_capacity_bytes 1000
cachetier_used_bytes 250
cachetier_fenced 0
cachetier_dirty_bytes 300
cachetier_exposure_objective_seconds 1800
cachetier_start_time_seconds 5
cachetier_run_exposure_seconds{run="a"} 60
cachetier_run_exposure_seconds{run="b"} 3600
cachetier_mount_exposure_seconds{mount="m"} 5
cachetier_drain_eta_seconds{remote="durable"} 120
cachetier_drain_eta_seconds{remote="near"} 9
cachetier_remote_state{remote="durable",state="ok"} 1
cachetier_remote_state{remote="near",state="refused"} 1
# TYPE cachetier_put_bytes counter
cachetier_put_bytes_total %d
# TYPE cachetier_drained_bytes counter
cachetier_drained_bytes_total{remote="durable"} %d
cachetier_drained_bytes_total{remote="near"} 999
"""


class Nodes:
    """Nodes of which each says what it should next."""

    def __init__(self) -> None:
        self.now = 100.0
        self.says: dict[str, str | Exception] = {}

    def fetch(self, url: str, token: str | None) -> str:
        assert token == "scrape"
        said = self.says[url]
        if isinstance(said, Exception):
            raise said
        return said

    def cluster(self) -> Cluster:
        return Cluster(tuple(self.says), "scrape", self.fetch, lambda: self.now)


def rows(asked: Cluster) -> list[dict[str, str]]:
    """Return the rows of the page, by the titles of their columns."""
    shown = asked.shown()["nodes"]
    titles = [each.strip("<~") for each in shown.titles]
    return [dict(zip(titles, (cell.text for cell in row), strict=True)) for row in shown.rows]


WHY = "why"


def test_a_node_says_its_worst_exposure_and_its_durable_remote() -> None:
    nodes = Nodes()
    nodes.says = {"http://a:7070": METRICS % (0, 0)}
    (row,) = rows(nodes.cluster())
    assert (row["exposed"], row[WHY]) == ("1.0 h", "b")
    assert (row["done in"], row["state"], row["version"]) == ("2.0 min", "ready", "1.2")
    assert row["used"] == "25 %"


def test_rates_are_between_two_rounds_and_begin_anew_with_a_restart() -> None:
    nodes = Nodes()
    nodes.says = {"http://a:7070": METRICS % (1000, 500)}
    asked = nodes.cluster()
    assert rows(asked)[0]["put"] == "-"
    nodes.says["http://a:7070"] = METRICS % (21_000, 10_500)
    nodes.now += 10
    (second,) = rows(asked)
    assert (second["put"], second["drained"]) == ("2.0 kB/s", "1.0 kB/s")
    nodes.says["http://a:7070"] = (METRICS % (10, 5)).replace(
        "start_time_seconds 5", "start_time_seconds 9"
    )
    nodes.now += 10
    assert rows(asked)[0]["put"] == "-"


def test_who_does_not_answer_comes_first_and_says_why() -> None:
    nodes = Nodes()
    nodes.says = {
        "http://well:7070": METRICS % (0, 0),
        "http://gone:7070": ValueError("nobody listens there"),
        "http://other:7070": "up 1\n",
    }
    asked = nodes.cluster()
    found = rows(asked)
    assert {row["node"]: row[WHY] for row in found} == {
        "gone:7070": "nobody listens there",
        "other:7070": "this is not a cachetier service",
        "well:7070": "b",
    }
    assert found[-1]["node"] == "well:7070"
    shown = {tile.label: (tile.value, tile.note) for tile in asked.shown()["tiles"]}
    assert shown["nodes"] == ("3", "1 ready")
    assert shown["dirty"] == ("300 B", "")
    assert shown["used"] == ("250 B", "of 1.0 kB")


def test_a_node_that_is_away_keeps_the_dirty_bytes_that_it_had() -> None:
    nodes = Nodes()
    nodes.says = {"http://a:7070": METRICS % (0, 0)}
    asked = nodes.cluster()
    rows(asked)
    nodes.says["http://a:7070"] = ValueError("nobody listens there")
    nodes.now += 10
    (row,) = rows(asked)
    assert (row["dirty"], row[WHY]) == ("300 B", "nobody listens there")


def test_a_node_that_refuses_our_token_is_not_away() -> None:
    nodes = Nodes()
    nodes.says = {"http://a:7070": PermissionError("it refuses our `scrape_token`")}
    (row,) = rows(nodes.cluster())
    assert row["state"] == "refuses us 0.0 s"


def test_of_many_nodes_those_are_shown_that_somebody_looks_for_and_all_are_summed() -> None:
    nodes = Nodes()
    nodes.says = {f"http://node{at}:7070": METRICS % (0, 0) for at in range(200)}
    asked = nodes.cluster()
    shown = asked.shown()["nodes"]
    assert (len(shown.rows), shown.more) == (ROWS_SHOWN - 1, 200 - ROWS_SHOWN + 1)
    found = asked.shown("ready node17:")
    assert [row[0].text for row in found["nodes"].rows] == ["node17:7070"]
    assert [tile.value for tile in found["tiles"][:2]] == ["200", "60.0 kB"]
    assert not asked.shown("away")["nodes"].rows


def test_many_who_watch_share_a_round() -> None:
    nodes = Nodes()
    nodes.says = {"http://a:7070": METRICS % (0, 0)}
    asked = nodes.cluster()
    rows(asked)
    nodes.says["http://a:7070"] = ValueError("asked twice")
    assert rows(asked)[0]["state"] == "ready"


@contextmanager
def listening(body: bytes, status: int = 200) -> Iterator[str]:
    class Node(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers["Authorization"] == "Bearer scrape"
            self.send_response(status if wanted else 401)
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:
                pass  # it was too much for them

        def log_message(self, *_what: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Node) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_metrics_are_fetched_with_the_scrape_credential() -> None:
    with listening(b"up 1\n") as url:
        assert metrics_of(url, "scrape") == "up 1\n"
        with pytest.raises(PermissionError, match="scrape_token"):
            metrics_of(url, "wrong")


def test_an_answer_that_is_too_large_is_not_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "ANSWER_LIMIT_BYTES", 1000)
    with (
        listening(b"x" * 5_000_000) as url,
        pytest.raises(ValueError, match=r"larger than 1\.0 kB"),
    ):
        metrics_of(url, "scrape")


def test_an_error_of_a_node_is_said() -> None:
    with listening(b"", 503) as url, pytest.raises(ValueError, match="status 503"):
        metrics_of(url, "scrape")
    (row,) = rows(Cluster((url,), "scrape"))
    assert (row["state"][:4], row[WHY]) == ("away", "nobody listens there")
