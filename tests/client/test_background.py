"""Failures in the background reach the program."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from cachetier_client import BackgroundError, Client, NotFoundError
from cachetier_client.calls.background import last_words

from tests.client.fake_service import FakeService

INCIDENT = {
    "code": "integrity",
    "message": "the bytes on the disk are damaged",
    "hint": "Save again.",
    "run": "a-run",
    "step": 7,
    "rank": 0,
    "name": "model",
}


def test_the_present_call_keeps_its_result_and_the_next_raises(
    service: FakeService,
) -> None:
    with Client(service.url, run="a-run") as client:
        client.put_shard(b"x", step=7, name="s")
        service.incidents.append(INCIDENT)

        assert client.put_shard(b"y", step=8, name="s").step == 8
        with pytest.raises(BackgroundError) as caught:
            client.put_shard(b"z", step=9, name="s")

        assert ("a-run", 9, "s") not in service.shards
        assert caught.value.incidents[0].name == "model"
        assert "the bytes on the disk are damaged" in str(caught.value)
        assert (caught.value.step, caught.value.name) == (7, "model")
        client.put_shard(b"z", step=9, name="s")  # told once


def test_a_failed_call_hears_of_them_too(service: FakeService) -> None:
    with Client(service.url, run="a-run") as client:
        client.put_shard(b"x", step=7, name="s")
        service.incidents.append(INCIDENT)
        with pytest.raises(NotFoundError):
            client.get_shard("a-run", 7, "none")
        with pytest.raises(BackgroundError):
            client.get_shard("a-run", 7, "s")


def test_a_checkpoint_is_not_broken_by_what_befell_an_older_one(service: FakeService) -> None:
    client = Client(service.url, run="a-run")
    with client.checkpoint("a-run", 7) as checkpoint:
        service.incidents.append(INCIDENT)
        checkpoint.put(b"x", "a")
        checkpoint.put(b"y", "b")

    assert len(service.sealed) == 1
    with pytest.raises(BackgroundError):
        client.checkpoint("a-run", 8)
    client.close()


def test_status_may_be_asked_without_being_told(service: FakeService) -> None:
    service.answers["status"] = {"status": {}}
    client = Client(service.url, run="a-run")
    client.put_shard(b"x", step=7, name="s")
    service.incidents.append(INCIDENT)
    client.put_shard(b"x", step=8, name="s")

    assert client.status() == {}

    with pytest.raises(BackgroundError):
        client.close()


def test_close_asks_once_more(service: FakeService) -> None:
    client = Client(service.url, run="a-run")
    client.put_shard(b"x", step=7, name="s")
    service.incidents.append(INCIDENT)

    with pytest.raises(BackgroundError, match="1 failed in the background"):
        client.close()

    assert client.closed


def test_a_client_that_only_reads_is_not_asked_for_failures(service: FakeService) -> None:
    service.answers["runs"] = {"runs": []}
    with Client(service.url, run="a-run") as client:
        client.runs()

    assert "incidents" not in service.ops


def test_leaving_by_an_exception_notes_it_on_that(service: FakeService) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        with Client(service.url, run="a-run") as client:
            client.put_shard(b"x", step=7, name="s")
            service.incidents.append(INCIDENT)
            raise ZeroDivisionError

    assert "damaged" in caught.value.__notes__[0]


def test_closing_without_the_service_is_quick_and_quiet(service: FakeService) -> None:
    client = Client(service.url, run="a-run")
    client.put_shard(b"x", step=7, name="s")
    service.stop()

    client.close()


def test_what_nobody_was_told_of_is_said_at_exit(service: FakeService) -> None:
    client = Client(service.url, run="a-run")
    client.put_shard(b"x", step=7, name="s")
    service.incidents.append(INCIDENT)

    words = last_words()

    assert "cachetier: run=a-run step=7 rank=0 shard=model" in words
    assert "Save again." in words
    assert last_words() == ""
    client.close()


def test_a_program_that_ends_with_an_untold_failure_does_not_end_well(
    service: FakeService,
) -> None:
    def fail_later() -> None:
        service.before.pop("put")
        service.incidents.append(INCIDENT)

    program = """
        import logging, sys
        from cachetier_client import Client
        logging.disable(logging.WARNING)
        client = Client(sys.argv[1], run="a-run")
        client.put_shard(b"x", step=7, name="s")
        print("all is well")
    """
    command = [sys.executable, "-c", textwrap.dedent(program), service.url]
    unharmed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (unharmed.returncode, unharmed.stderr) == (0, "")
    service.before["put"] = fail_later

    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 1
    assert ended.stdout == "all is well\n"
    assert "the bytes on the disk are damaged" in ended.stderr
