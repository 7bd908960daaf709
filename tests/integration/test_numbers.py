"""Numbers beyond what anything here counts are refused at every door, and change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cachetier_client.transport.wire import receive_frame, send_frame

from tests.integration.serving import Served, serving
from tests.integration.test_waiters import greeted

ENORMOUS = [2**53, 2**63, 10**300, 10**4000]
WHO = {"run": "r", "step": 1, "save_id": "one", "rank": 0, "world_size": 1}
AT_THE_SOCKET: list[tuple[str, dict[str, Any], str]] = [
    ("put", {**WHO, "name": "a", "digest": "0" * 16}, "size_bytes"),
    ("put", {**WHO, "name": "a", "digest": "0" * 16, "size_bytes": 0}, "rank"),
    ("put", {**WHO, "name": "a", "digest": "0" * 16, "size_bytes": 0}, "world_size"),
    ("put", {**WHO, "name": "a", "digest": "0" * 16, "size_bytes": 0}, "step"),
    ("put", {**WHO, "name": "a", "digest": "0" * 16, "size_bytes": 0}, "element_size"),
    ("begin", {**WHO, "name": "a"}, "size_bytes"),
    ("open", {"run": "r", "step": 1, "name": "a", "restore": False}, "blocks"),
    ("read_block", {"run": "r", "step": 1, "name": "a"}, "block"),
    ("arrived", {"run": "r", "step": 1, "name": "a", "known": 0}, "version"),
    ("arrived", {"run": "r", "step": 1, "name": "a", "version": 1}, "known"),
    ("seal", WHO, "ranks_on_node"),
    ("wait", {"run": "r", "timeout_seconds": 0}, "step"),
    ("fallback", {"shards": 1}, "size_bytes"),
    ("fallback", {"size_bytes": 1}, "shards"),
    ("collect", {"dry_run": True}, "older_than_seconds"),
]
OVER_HTTP: list[tuple[str, str, dict[str, Any], str]] = [
    ("POST", "/v1/runs/r/steps/1/seal", {}, "rank"),
    ("POST", "/v1/runs/r/steps/1/seal", {}, "world_size"),
    ("POST", "/v1/runs/r/steps/1/seal", {}, "ranks_on_node"),
    ("POST", "/v1/runs/r/steps/1/abort", {}, "rank"),
    ("POST", "/v1/flush", {"run": "r", "timeout_seconds": 0}, "step"),
    ("POST", "/v1/fallback", {"shards": 1}, "size_bytes"),
    ("POST", "/v1/fallback", {"size_bytes": 1}, "shards"),
    ("POST", "/v1/collect", {"dry_run": True}, "older_than_seconds"),
]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as served:
        served.put("a", b"dirty")
        yield served


@pytest.mark.parametrize("number", ENORMOUS, ids=["2^53", "2^63", "10^300", "10^4000"])
@pytest.mark.parametrize(("op", "fields", "field"), AT_THE_SOCKET)
def test_an_enormous_number_is_refused_at_the_socket(
    served: Served, op: str, fields: dict[str, Any], field: str, number: int
) -> None:
    with greeted(served) as rank:
        send_frame(rank, {"op": op, **fields, field: number})
        answer = receive_frame(rank).header
        send_frame(rank, {"op": "runs"})
        assert receive_frame(rank).header["ok"]

    assert_refused_or_harmless(answer.get("error", {}).get("code"), field)


@pytest.mark.parametrize("number", ENORMOUS, ids=["2^53", "2^63", "10^300", "10^4000"])
@pytest.mark.parametrize(("method", "path", "fields", "field"), OVER_HTTP)
def test_an_enormous_number_is_refused_over_http(
    served: Served, method: str, path: str, fields: dict[str, Any], field: str, number: int
) -> None:
    answer = served.call.post(path, {**fields, field: number})

    assert method == "POST"
    assert answer.status < 500
    assert_refused_or_harmless(None if answer.status < 300 else answer.code, field)


def test_no_enormous_number_was_counted(served: Served) -> None:
    metrics = served.call("GET", "/metrics").body.decode()

    assert "Inf" not in "".join(line for line in metrics.splitlines() if "fallback" in line)


def assert_refused_or_harmless(code: str | None, field: str) -> None:
    """An age that is beyond all there is collects nothing, and that is right."""
    assert code in ("invalid_request", "invalid_name", "not_found", None), code
    if code is None:
        assert field == "older_than_seconds"
