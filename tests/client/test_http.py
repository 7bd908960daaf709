"""The same client over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from cachetier_client import (
    BackgroundError,
    BackpressureError,
    BusyError,
    CachetierClientError,
    Client,
    DeadlineError,
    DigestMismatchError,
    ForbiddenError,
    IntegrityError,
    InvalidRequestError,
    NotDurableError,
    NotFoundError,
    ProtocolMismatchError,
    ServiceUnavailableError,
    SizeMismatchError,
)
from cachetier_client.io.digests import BLOCK_BYTES

from tests.client.fake_http import Answer, FakeHttpService
from tests.client.fakes import FakeClock
from tests.client.test_background import INCIDENT
from tests.client.test_checkpoints import STEP
from tests.client.test_forks import run_in_child
from tests.client.test_puts import patterned

SHARD = "/v1/runs/a-run/steps/7/shards/s"
SIZES = (0, 1, 70_000, BLOCK_BYTES + 1)


@pytest.fixture
def service() -> Iterator[FakeHttpService]:
    with FakeHttpService().running() as fake:
        yield fake


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def client(service: FakeHttpService, clock: FakeClock) -> Iterator[Client]:
    with Client(service.url, run="a-run", clock=clock) as made:
        yield made


@pytest.mark.parametrize("size_bytes", SIZES)
def test_a_shard_goes_there_and_back(
    service: FakeHttpService, client: Client, size_bytes: int
) -> None:
    data = patterned(size_bytes)

    receipt = client.put_shard(data, step=7, name="s", rank=1, world_size=2, save_id="one")

    assert service.shards[SHARD] == data
    assert (receipt.size_bytes, receipt.save_id) == (size_bytes, "one")
    query = service.seen[0].query
    assert (query["rank"], query["world_size"], query["overwrite"]) == ("1", "2", "false")
    assert query["client_id"]
    assert client.get_shard("a-run", 7, "s") == data
    out = bytearray(size_bytes)
    client.get_shard("a-run", 7, "s", out=out)
    assert out == data


def test_names_are_quoted_segment_by_segment(service: FakeHttpService, client: Client) -> None:
    client.put_shard(b"x", step=7, name="a+b/c=d@e")

    assert service.seen[0].path == "/v1/runs/a-run/steps/7/shards/a%2Bb/c%3Dd%40e"


def test_the_connection_is_kept(service: FakeHttpService, client: Client) -> None:
    for _ in range(3):
        client.put_shard(patterned(70_000), step=7, name="s")
        client.get_shard("a-run", 7, "s")
        with pytest.raises(NotFoundError):
            client.get_shard("a-run", 7, "none")

    assert service.connections == 1


def test_a_service_that_closes_each_connection_is_fine(
    service: FakeHttpService, client: Client
) -> None:
    service.closes_each = True
    for _ in range(3):
        client.put_shard(b"x", step=7, name="s")

    assert service.connections == 3


def test_the_token_goes_along(service: FakeHttpService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHETIER_TOKEN", "secret")
    with Client(f"{service.url}/prefix/", run="a-run") as client:
        service.answers["GET", "/prefix/v1/runs"] = [Answer.document(runs=["a"])]
        assert client.runs() == ["a"]

    assert service.seen[0].headers["Authorization"] == "Bearer secret"


def test_bytes_that_change_on_the_way_in_are_refused(
    service: FakeHttpService, client: Client
) -> None:
    service.on_the_way_in = lambda body: body[:-1]

    with pytest.raises(DigestMismatchError):
        client.put_shard(b"xyz", step=7, name="s")


def test_bytes_that_change_on_the_way_out_are_never_data(
    service: FakeHttpService, client: Client
) -> None:
    client.put_shard(b"xyz", step=7, name="s")
    service.damage = lambda content: b"xy?"

    with pytest.raises(IntegrityError):
        client.get_shard("a-run", 7, "s")


def test_a_buffer_of_another_size_is_refused_untouched(
    service: FakeHttpService, client: Client
) -> None:
    client.put_shard(b"xyz", step=7, name="s")
    out = bytearray(b"untouched")

    with pytest.raises(SizeMismatchError):
        client.get_shard("a-run", 7, "s", out=out)

    assert out == b"untouched"
    assert bytes(client.get_shard("a-run", 7, "s")) == b"xyz"  # on another connection


@pytest.mark.parametrize(
    ("answer", "expected", "told"),
    [
        (Answer.problem(507, "backpressure", run="a-run"), BackpressureError, "as told"),
        (Answer.problem(500, "brand_new"), CachetierClientError, "hint of brand_new"),
        (Answer(401, b"who are you"), ForbiddenError, "who are you"),
        (Answer(302, b""), InvalidRequestError, "redirects are not followed"),
        (Answer(418, b"<html>"), CachetierClientError, "418"),
        (Answer(200, b"<html>"), ProtocolMismatchError, "JSON"),
        (Answer(200, b"[1]"), ProtocolMismatchError, "JSON"),
        (Answer(200, b"{}"), ProtocolMismatchError, "not understood"),
    ],
)
def test_what_goes_wrong_is_the_same_errors(
    service: FakeHttpService,
    client: Client,
    answer: Answer,
    expected: type[Exception],
    told: str,
) -> None:
    service.answers["PUT", SHARD] = [answer]

    with pytest.raises(expected, match="put_shard run=a-run step=7 rank=0 shard=s") as caught:
        client.put_shard(b"x", step=7, name="s")

    assert told in str(caught.value)


def test_retry_after_is_kept(service: FakeHttpService, client: Client) -> None:
    refused = Answer.problem(507, "backpressure")
    refused.headers["Retry-After"] = "7"
    service.answers["PUT", SHARD] = [refused]

    with pytest.raises(BackpressureError) as caught:
        client.put_shard(b"x", step=7, name="s")

    assert caught.value.retry_after_seconds == 7.0


@pytest.mark.parametrize(
    "answer", [Answer(502, b"bad gateway"), Answer.problem(503, "backpressure")]
)
def test_a_door_that_is_busy_or_behind_a_proxy_is_tried_again(
    service: FakeHttpService, client: Client, clock: FakeClock, answer: Answer
) -> None:
    service.answers["PUT", SHARD] = [answer]

    client.put_shard(b"x", step=7, name="s")

    assert service.shards[SHARD] == b"x"
    assert len(clock.naps) == 1


def test_a_door_that_stays_busy_is_told(service: FakeHttpService, client: Client) -> None:
    service.answers["PUT", SHARD] = [Answer.problem(503, "backpressure") for _ in range(50)]

    with pytest.raises(BusyError):
        client.put_shard(b"x", step=7, name="s", timeout_seconds=1)


def test_a_connection_lost_is_made_again(service: FakeHttpService, client: Client) -> None:
    client.put_shard(b"x", step=7, name="s")
    service.hang_ups = 2

    client.put_shard(patterned(BLOCK_BYTES), step=7, name="s")

    assert service.shards[SHARD] == patterned(BLOCK_BYTES)
    assert service.hang_ups == 0


def test_nobody_there_is_told_after_the_deadline(clock: FakeClock) -> None:
    with Client("http://127.0.0.1:1", run="a-run", clock=clock) as client:
        with pytest.raises(ServiceUnavailableError, match="refused"):
            client.put_shard(b"x", step=7, name="s", timeout_seconds=5)

    assert 3 <= sum(clock.naps) <= 5


def test_a_deadline_that_passes_is_told(service: FakeHttpService) -> None:
    clock = FakeClock()

    def late(content: bytes) -> bytes:
        clock.time += 100
        return content

    service.shards[SHARD] = patterned(3 << 20)
    service.damage = late
    with Client(service.url, run="a-run", clock=clock) as client:
        with pytest.raises(DeadlineError):
            client.get_shard("a-run", 7, "s", timeout_seconds=50)


@pytest.mark.parametrize("size_bytes", [*SIZES, 3 * BLOCK_BYTES + 9])
def test_a_stream_goes_in_chunks(service: FakeHttpService, client: Client, size_bytes: int) -> None:
    data = patterned(size_bytes)

    with client.open_shard("a-run", 7, "s") as stream:
        for start in range(0, size_bytes, 1 << 20):
            stream.write(data[start : start + (1 << 20)])

    assert service.shards[SHARD] == data
    assert stream.receipt is not None
    chunked = service.seen[0].headers.get("Transfer-Encoding") == "chunked"
    assert chunked == (size_bytes > BLOCK_BYTES)  # what fits into a block is put whole


def test_a_stream_that_changes_on_the_way_is_taken_back(
    service: FakeHttpService, client: Client
) -> None:
    service.on_the_way_in = lambda body: body[:-1]

    with pytest.raises(DigestMismatchError):
        with client.open_shard("a-run", 7, "s") as stream:
            stream.write(patterned(BLOCK_BYTES + 1))

    assert SHARD not in service.shards
    assert service.seen[-1].method != "PUT"


def test_a_stream_left_by_an_exception_leaves_nothing(
    service: FakeHttpService, client: Client
) -> None:
    with pytest.raises(ZeroDivisionError):
        with client.open_shard("a-run", 7, "s") as stream:
            stream.write(patterned(2 * BLOCK_BYTES))
            raise ZeroDivisionError

    assert not service.shards


def test_parts_are_read_in_ranges(service: FakeHttpService, client: Client) -> None:
    data = patterned(2 * BLOCK_BYTES + 5)
    service.shards[SHARD] = data

    with client.open_shard("a-run", 7, "s", "rb") as stream:
        stream.seek(BLOCK_BYTES - 2)
        assert stream.read(4) == data[BLOCK_BYTES - 2 : BLOCK_BYTES + 2]
        service.shards[SHARD] = data[::-1]
        stream.seek(0)
        with pytest.raises(IntegrityError, match="replaced"):
            stream.seek(2 * BLOCK_BYTES)
            stream.read(5)


def test_an_unknown_shard_cannot_be_opened(client: Client) -> None:
    with pytest.raises(NotFoundError):
        client.open_shard("a-run", 7, "none", "rb")


def test_another_server_that_knows_nothing_of_all_this_is_not_taken_for_the_service(
    service: FakeHttpService, client: Client
) -> None:
    service.answers[("GET", "/v1/status")] = [Answer(404)]
    with pytest.raises(CachetierClientError, match="CACHETIER_URL is the address of") as caught:
        client.status()
    assert not isinstance(caught.value, NotFoundError)


def test_steps_are_asked_by_their_routes(service: FakeHttpService, client: Client) -> None:
    steps = "/v1/runs/a-run/steps"
    service.answers = {
        ("GET", steps): [Answer.document(steps=[STEP])],
        ("GET", "/v1/runs/a-run/latest"): [Answer.document(step=None)],
        ("GET", f"{steps}/7"): [Answer.document(step={**STEP, "shards": []})],
        ("DELETE", f"{steps}/7"): [Answer.document(deleted_shards=2)],
        ("POST", f"{steps}/7/seal"): [Answer.document(sealed_ranks=[0])],
        ("GET", f"{steps}/7/wait"): [Answer.document(level="durable", age_seconds=1)],
        ("POST", "/v1/flush"): [Answer.problem(504, "not_durable")],
        ("GET", "/v1/status"): [Answer.document(dirty_bytes=3)],
        ("POST", f"{steps}/8/abort"): [Answer.document()],
    }

    assert client.steps(level="local")[0].step == 7
    assert client.latest() is None
    assert client.step("a-run", 7).shards == ()
    assert client.delete_step("a-run", 7) == 2
    assert client.seal("a-run", 7, save_id="one") == (0,)
    assert client.wait("a-run", 7, name="s").level == "durable"
    assert client.status() == {"dirty_bytes": 3}
    with pytest.raises(NotDurableError):
        client.flush("a-run", 7)
    with pytest.raises(ZeroDivisionError), client.checkpoint("a-run", 8):
        raise ZeroDivisionError

    assert not any(service.answers.values())
    by_path = {seen.path: seen for seen in service.seen}
    assert by_path[steps].query == {"level": "local"}
    assert by_path[f"{steps}/7/wait"].query["name"] == "s"
    assert json.loads(by_path[f"{steps}/7/seal"].body)["save_id"] == "one"


def test_background_failures_are_heard_of(service: FakeHttpService) -> None:
    with Client(service.url, run="a-run") as client:
        service.incidents.append(INCIDENT)
        client.put_shard(b"x", step=7, name="s")

        with pytest.raises(BackgroundError):
            client.put_shard(b"x", step=8, name="s")

    asked = [seen for seen in service.seen if seen.path == "/v1/incidents"]
    document = json.loads(asked[0].body)
    assert document["clear"] is True
    assert document["client_id"]


def test_a_child_makes_connections_of_its_own(service: FakeHttpService, client: Client) -> None:
    client.put_shard(b"x", step=7, name="s")

    assert run_in_child(lambda: client.put_shard(b"y", step=7, name="child")) == 0

    client.put_shard(b"z", step=7, name="s")
    assert service.connections == 2
    assert service.shards[SHARD] == b"z"
