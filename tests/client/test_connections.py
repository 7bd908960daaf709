"""A service that is away, comes back, is slow, or is another's."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cachetier_client import (
    BusyError,
    Client,
    DeadlineError,
    ForbiddenError,
    ProtocolMismatchError,
    ServiceUnavailableError,
    StoppingError,
)
from cachetier_client.io.digests import BLOCK_BYTES
from cachetier_client.transport.retrying import LONGEST_PAUSE_SECONDS
from cachetier_client.transport.wire import send_frame

from tests.client.fake_service import FakeService, Refusal
from tests.client.fakes import FakeClock
from tests.client.test_forks import run_in_child
from tests.client.test_puts import kept, patterned

NOBODY = 65534


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Release what a fake holds back when the test is over."""
    event = threading.Event()
    yield event
    event.set()


@contextmanager
def answering_once(answer: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        thread.join(60)


def test_a_service_that_is_not_there_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    clock = FakeClock()
    with Client(f"unix://{tmp_path}/none", run="r", clock=clock) as client:
        with pytest.raises(ServiceUnavailableError) as caught:
            client.put_shard(b"x", step=1, name="s", timeout_seconds=30)

    assert 25 < sum(clock.naps) <= 30
    assert len(clock.naps) > 10
    assert max(clock.naps) <= LONGEST_PAUSE_SECONDS
    assert "No such file" in str(caught.value)
    assert "CACHETIER_URL" in caught.value.hint


def test_a_service_that_comes_back_gets_the_put(service: FakeService) -> None:
    service.stop()
    clock = FakeClock(on_sleep=service.start)
    with Client(service.url, run="a-run", clock=clock) as client:
        client.put_shard(b"x", step=7, name="s")

    assert kept(service) == b"x"
    assert len(clock.naps) == 1


def test_with_fallback_fail_nobody_waits(tmp_path: Path) -> None:
    clock = FakeClock()
    with Client(f"unix://{tmp_path}/none", run="r", clock=clock, fallback="fail") as client:
        with pytest.raises(ServiceUnavailableError):
            client.put_shard(b"x", step=1, name="s")

    assert clock.naps == []


@pytest.mark.parametrize("op", ["begin", "commit"])
def test_a_connection_lost_in_a_put_repeats_it_whole(service: FakeService, op: str) -> None:
    data = patterned(BLOCK_BYTES + 5)
    service.hang_ups.append(op)
    clock = FakeClock()
    with Client(service.url, run="a-run", clock=clock) as client:
        client.put_shard(data, step=7, name="s")

    assert kept(service) == data
    assert service.ops.count("begin") == 2
    assert not service.hang_ups
    assert not service.staged


@pytest.mark.parametrize("op", ["put", "commit", "seal"])
def test_a_lost_reply_repeats_the_call(service: FakeService, op: str) -> None:
    service.lost_replies.append(op)
    with Client(service.url, run="a-run", clock=FakeClock()) as client:
        with client.checkpoint("a-run", 7) as checkpoint:
            checkpoint.put(b"x", "small")
            checkpoint.put(bytes(70_000), "large")

    assert not service.lost_replies
    assert service.ops.count(op) >= 2
    assert not service.aborted


def test_a_service_restarted_between_calls_is_found_again_without_a_pause(
    service: FakeService,
) -> None:
    clock = FakeClock()
    with Client(service.url, run="a-run", clock=clock, fallback="fail") as client:
        client.put_shard(b"before", step=7, name="s")
        service.stop()
        service.start()

        client.put_shard(b"after", step=7, name="s")

    assert kept(service) == b"after"
    assert clock.naps == []


def test_a_stopping_service_is_waited_for_as_long_as_it_says(service: FakeService) -> None:
    service.refusals["put"] = [Refusal("stopping", retry_after_seconds=2.0)]
    clock = FakeClock()
    with Client(service.url, run="a-run", clock=clock) as client:
        client.put_shard(b"x", step=7, name="s")

    assert kept(service) == b"x"
    assert len(clock.naps) == 1


def test_a_service_that_stays_stopping_is_told_so(service: FakeService) -> None:
    service.refusals["put"] = [Refusal("stopping") for _ in range(100)]
    with Client(service.url, run="a-run", clock=FakeClock()) as client:
        with pytest.raises(StoppingError):
            client.put_shard(b"x", step=7, name="s", timeout_seconds=3)


def test_a_pause_that_lasts_past_the_deadline_ends_with_what_the_service_said(
    service: FakeService,
) -> None:
    service.refusals["put"] = [Refusal("busy") for _ in range(100)]
    clock = FakeClock()
    clock.on_sleep = lambda: setattr(clock, "time", clock.time + 60)
    with Client(service.url, run="a-run", clock=clock) as client:
        with pytest.raises(BusyError):
            client.put_shard(b"x", step=7, name="s", timeout_seconds=3)

    assert len(clock.naps) == 1


def test_a_service_that_does_not_answer_ends_at_the_deadline(
    service: FakeService, released: threading.Event
) -> None:
    service.before["put"] = lambda: released.wait(60)
    with Client(service.url, run="a-run") as client:
        with pytest.raises(DeadlineError, match=r"within 0\.2 s"):
            client.put_shard(b"x", step=7, name="s", timeout_seconds=0.2)
        released.set()

        client.put_shard(b"y", step=7, name="s")  # over a connection of its own

    assert service.connections >= 2


def test_a_deadline_passed_while_blocks_are_written_keeps_nothing(service: FakeService) -> None:
    clock = FakeClock()

    def late() -> None:
        clock.time += 100

    service.before["begin"] = late
    with Client(service.url, run="a-run", clock=clock) as client:
        with pytest.raises(DeadlineError):
            client.put_shard(bytes(2 * BLOCK_BYTES), step=7, name="s", timeout_seconds=60)

    assert not service.shards


def test_another_protocol_is_a_clear_error(service: FakeService) -> None:
    service.protocol = 2
    with Client(service.url, run="a-run") as client:
        with pytest.raises(ProtocolMismatchError, match="this service speaks 2") as caught:
            client.put_shard(b"x", step=7, name="s")

    assert caught.value.code == "protocol_mismatch"


def test_a_service_with_other_blocks_is_refused(service: FakeService) -> None:
    service.answers["hello"] = {"protocol": 1, "block_bytes": 1 << 20, "inline_bytes": 1}
    with Client(service.url, run="a-run") as client:
        with pytest.raises(ProtocolMismatchError, match="1048576"):
            client.put_shard(b"x", step=7, name="s")


def test_something_else_behind_the_socket_is_a_clear_error(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        with answering_once(answer), Client(f"unix://{tmp_path}/s", run="r") as client:
            with pytest.raises(ProtocolMismatchError, match="does not speak this protocol"):
                client.put_shard(b"x", step=1, name="s")
            listener.close()


def test_a_reply_that_lacks_something_is_of_another_protocol(service: FakeService) -> None:
    service.answers["put"] = {"run": "a-run"}
    with Client(service.url, run="a-run") as client:
        with pytest.raises(ProtocolMismatchError, match="not understood"):
            client.put_shard(b"x", step=7, name="s")


def test_a_service_that_turns_us_away_is_understood(tmp_path: Path) -> None:
    refused = {"code": "forbidden", "message": "user 5 may not", "hint": "ask"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                send_frame(peer, {"ok": False, "error": refused})

        with answering_once(answer), Client(f"unix://{tmp_path}/s", run="r") as client:
            with pytest.raises(ForbiddenError, match="user 5 may not"):
                client.put_shard(b"x", step=1, name="s")
            listener.close()


def test_a_socket_one_may_not_use_is_told_at_once(service: FakeService) -> None:
    service.path.chmod(0)

    def knock() -> None:
        if os.getuid() == 0:
            os.setuid(NOBODY)  # root may connect anywhere
        with Client(service.url, run="r") as client, pytest.raises(ForbiddenError):
            client.put_shard(b"x", step=1, name="s")

    assert run_in_child(knock) == 0


def test_threads_share_a_client(service: FakeService, client: Client) -> None:
    def put(number: int) -> None:
        client.put_shard(patterned(100_000 + number), step=7, name=f"s{number}")

    threads = [threading.Thread(target=put, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert all(kept(service, f"s{n}") == patterned(100_000 + n) for n in range(12))


def test_one_thread_uses_one_connection(service: FakeService, client: Client) -> None:
    for number in range(5):
        client.put_shard(bytes(70_000), step=7, name=f"s{number}")
        client.get_shard("a-run", 7, f"s{number}")

    assert service.connections == 1


@pytest.mark.parametrize(
    "url",
    ["", "ftp://x", "https://u:p@x", "unix://relative", "unix:///" + "x" * 120, "http://u:p@x"],
)
def test_an_address_that_is_none_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHETIER_URL", "nonsense")

    with pytest.raises(ValueError, match=r"nonsense|ftp|https|absolute|longer|TOKEN"):
        Client(url)


def test_a_closed_client_does_nothing_more(service: FakeService) -> None:
    client = Client(service.url, run="a-run")
    client.close()
    client.close()

    assert client.closed
    with pytest.raises(Exception, match="closed"):
        client.put_shard(b"x", step=7, name="s")
