"""The caller's span that calls bring along, if the caller says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cachetier_client import Client, traced

from tests.client.fake_http import FakeHttpService
from tests.client.fake_service import FakeService

SPAN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def http() -> Iterator[FakeHttpService]:
    with FakeHttpService().running() as fake:
        yield fake


def test_requests_say_nothing_of_the_caller_by_themselves(
    service: FakeService, client: Client
) -> None:
    client.put_shard(b"x", step=7, name="s")
    assert all("traceparent" not in request for request in service.requests)


def test_calls_inside_of_a_span_bring_it_along(service: FakeService, client: Client) -> None:
    with traced(SPAN):
        client.put_shard(b"x" * 100_000, step=7, name="s")
        client.seal(None, 7)
    client.put_shard(b"x", step=8, name="s")
    brought = {request["op"]: request.get("traceparent") for request in service.requests}
    assert {brought[op] for op in ("begin", "commit", "seal")} == {SPAN}
    assert brought["put"] is None


def test_over_http_it_is_the_usual_header(http: FakeHttpService) -> None:
    with Client(http.url, run="a-run") as client, traced(SPAN):
        client.put_shard(b"x", step=7, name="s")
    (put,) = (seen for seen in http.seen if seen.method == "PUT")
    assert put.headers["traceparent"] == SPAN


@pytest.mark.parametrize("text", ["", "00-12-34-01", SPAN.upper(), "00-" + "0" * 32 + SPAN[35:]])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="traceparent"), traced(text):
        pass
