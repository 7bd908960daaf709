"""Thousands of mutants of valid traffic at both doors, while an honest client works beside them."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cachetier.doors.unix.session import _OPERATIONS
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.faults.counting import count
from tests.faults.slices import SLICES, VARIABLE, everything
from tests.fuzz import doors
from tests.fuzz.campaign import Recorded, campaign, recorded
from tests.fuzz.doors import SEND, LetInError, send_http, send_unix
from tests.fuzz.honest import RUN, Honest
from tests.fuzz.mutants import BYTE_CHANGES, FRAME_CHANGES, REQUEST_CHANGES, Mutant, mutant_of
from tests.fuzz.recording import DOORS, TOKEN, frame, header_of
from tests.fuzz.target import SECRET, troubles
from tests.integration.needs import needs_weed
from tests.integration.serving import serving

REQUESTS, MANY = 5_000, 20_000


@pytest.fixture(scope="module")
def traffic() -> Recorded:
    return recorded()


def test_every_operation_of_the_socket_is_recorded(traffic: Recorded) -> None:
    asked = {header_of(each)["op"] for exchange in traffic["unix"] for each in exchange.messages}

    assert asked == {*_OPERATIONS, "block"}


def test_every_mutant_can_be_made_again_and_every_change_is_made(traffic: Recorded) -> None:
    for door, known in (("unix", FRAME_CHANGES), ("http", REQUEST_CHANGES)):
        made = [mutant_of(door, traffic[door], 1, number) for number in range(1000)]

        assert made == [mutant_of(door, traffic[door], 1, number) for number in range(1000)]
        words = {word for mutant in made for word in mutant.name.split()}
        assert words >= {*known, *BYTE_CHANGES}


def test_what_is_recorded_is_taken_when_it_is_played_back(
    traffic: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "PATIENCE_SECONDS", 20.0)
    # Nothing drains here, blocks are for a node that is full, and there is no such token.
    never = {"wait", "flush", "begin-extend-block-commit", "GET v1/wait", "POST v1/flush"}
    never |= {"token_revoke", "DELETE v1/tokens/00000000"}
    never |= {"objects", "s3_key_create", "s3_settle"}  # it has no S3 door
    never |= {"forget", "POST v1/forget"}  # there is no other node
    never |= {"restore_step", "POST v1/restore"}  # nor anything at a remote
    for door in DOORS:
        with serving(token=TOKEN) as served:
            url = served.unix_url if door == "unix" else str(served.service.url)
            for each in traffic[door]:
                if each.name not in never:
                    came = SEND[door](url, Mutant(each.name, each.messages, -1, ends=False))
                    assert came == "taken", (each.name, came)


# --- that the judge sees it ----------------------------------------------------------------------


@contextmanager
def door_that_says(answer: bytes, kind: socket.AddressFamily, path: Path) -> Iterator[str]:
    """Lend the address of a door with one answer, to whatever it hears."""
    with socket.socket(kind) as listener:
        listener.bind(str(path / "s") if kind == socket.AF_UNIX else ("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            connection, _address = listener.accept()
            with connection:
                connection.recv(1 << 20)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        tcp = kind == socket.AF_INET
        yield f"http://127.0.0.1:{listener.getsockname()[1]}" if tcp else f"unix://{path}/s"
        thread.join()


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
ASKED = b"GET /v1/runs HTTP/1.1\r\n\r\n"
KNOWN = ASKED[:-2] + b"Authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (ASKED, OK),
        (KNOWN, OK + OK),
        (KNOWN, OK[:-2] + SECRET),
    ],
    ids=["no token", "a second request without one", "what lies beside"],
)
def test_an_answer_that_nobody_has_a_right_to_is_noticed(
    sent: bytes, answer: bytes, tmp_path: Path
) -> None:
    with door_that_says(answer, socket.AF_INET, tmp_path) as url:
        with pytest.raises(LetInError):
            send_http(url, Mutant("it", (sent,), 0, ends=False))


def test_a_service_that_fails_is_noticed(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"
    with door_that_says(answer, socket.AF_INET, tmp_path) as url:
        with pytest.raises(AssertionError, match="500"):
            send_http(url, Mutant("it", (KNOWN,), 0, ends=False))


@pytest.mark.parametrize(
    ("header", "error"),
    [
        ({"ok": True, "runs": []}, LetInError),
        ({"ok": False, "error": {"code": "internal"}}, AssertionError),
    ],
    ids=["served without a greeting", "failed"],
)
def test_a_socket_that_serves_or_fails_whoever_comes_is_noticed(
    header: dict[str, object], error: type[Exception], tmp_path: Path
) -> None:
    with door_that_says(frame(header), socket.AF_UNIX, tmp_path) as url:
        with pytest.raises(error):
            send_unix(url, Mutant("hello flip", (frame({"op": "runs"}),), 0, ends=False))


def test_an_error_in_the_log_is_noticed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('{"level": "info"}\n{"level": "error", "event": "request.failed"}\nTraceback\n')

    assert [each[:9] for each in troubles(log)] == ['{"level":', "Traceback"]


def test_a_loss_of_the_honest_client_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHETIER_TOKEN", TOKEN)
    with serving(token=TOKEN) as served:
        honest = Honest([served.unix_url, str(served.service.url)])
        for step in range(2):
            honest.save(step)
        honest.read_all()
        assert honest.account.puts == 8
        assert not honest.account.lost

        served.service.operations.checkpoints.delete_step(RUN, 1)
        honest.read_all()
        honest.close()

    assert len(honest.account.lost) == 4


# --- the campaign --------------------------------------------------------------------------------


@needs_weed
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_mutant_is_let_in_or_harms_the_service_or_an_honest_client(
    traffic: Recorded, seaweed_s3: S3Endpoint, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    number = MANY if everything() else REQUESTS
    seed = SLICES if everything() else int(os.environ[VARIABLE])

    outcome = campaign(tmp_path, seaweed_s3, traffic, seed, number)

    print(outcome)
    for door, tally in outcome.tallies.items():
        assert tally.tried == number
        assert tally.refused > number / 4, "hardly anything was refused"
        assert tally.answers["taken"] > number / 50, "hardly anything was understood"
        name = {"http": "HTTP", "unix": "the socket"}[door]
        count(request, f"fuzzed requests of {name}", number, seed)
        count(request, f"of {name} refused", tally.refused)
        count(request, f"of {name} let in", tally.let_in)
    count(request, "MiB of serve at its peak", outcome.peak_bytes >> 20)
    count(request, "MiB of serve more after than before", outcome.gained_bytes >> 20)
    count(request, "descriptors more after than before", outcome.gained_files)
    worst = round(1000 * outcome.honest.worst_seconds)
    count(request, "ms that an honest client waited at worst", worst)
