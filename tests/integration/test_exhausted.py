"""A table of descriptors that is full, no thread, a dead disk: told as that, with a next move."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from typing import Any

import apsw
import pytest
from cachetier_client import CachetierClientError, Client

from tests.client.fakes import FakeClock
from tests.integration.serving import Served, serving, shard_path
from tests.integration.test_http_routes import served

__all__ = ["served"]

FULL_TABLE = """
import os, resource, sys
from cachetier_client import Client
url = sys.argv[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
known = Client(url, run="r")
known.put_shard(bytes(3 << 20), step=1, name="x")

def filled(free):
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for _ in range(free):
        os.close(held.pop())
    return held

for fresh in (False, True):
    for free in (0, 1, 2):
        client = Client(url, run="r") if fresh else known
        for call in (
            lambda: client.put_shard(bytes(3 << 20), step=2, name=f"{fresh}-{free}"),
            lambda: client.get_shard("r", 1, "x"),
            lambda: client.status(),
        ):
            held = filled(free)
            try:
                call()
                outcome = "done"
            except Exception as error:
                outcome = f"{type(error).__name__}: {error}"
            for each in held:
                os.close(each)
            print(outcome.splitlines()[0])
"""


@pytest.mark.parametrize("door", ["unix", "http"])
def test_a_full_table_of_a_rank_is_told_by_every_call(served: Served, door: str) -> None:
    url = served.unix_url if door == "unix" else str(served.service.url)
    token = served.call.bearer["Authorization"].split()[1]
    environment = {**os.environ, "CACHETIER_TOKEN": token, "CACHETIER_SAVE_ID": "s"}
    done = subprocess.run(
        [sys.executable, "-c", FULL_TABLE, url],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    outcomes = done.stdout.splitlines()
    failures = [each for each in outcomes if each != "done"]
    assert len(outcomes) == 18
    assert failures
    for each in failures:
        assert each.startswith("ExhaustedError: "), outcomes
        assert "this process has no file descriptor left" in each
        assert "ulimit -n" in each


def broken(error: BaseException) -> Any:
    def raises(*_arguments: object, **_more: object) -> None:
        raise error

    return raises


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "busy", "no file descriptor left"),
        (RuntimeError("can't start new thread"), "busy", "no thread or process is left"),
        (OSError(errno.EIO, "Input/output error"), "staged_io", "the disk fails"),
    ],
)
def test_each_door_of_a_service_names_what_it_lacks(
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    code: str,
    said: str,
) -> None:
    monkeypatch.setattr(served.service.operations.restore, "look", broken(error))
    monkeypatch.setattr(served.service.operations.checkpoints, "runs", broken(error))
    for path in (shard_path("x"), "/v1/runs"):
        answer = served.call("GET", path)
        assert (answer.status, answer.code) == (503, code)
        assert said in answer.json["detail"]
        assert answer.json["hint"]
    with (
        Client(served.unix_url, fallback="fail", clock=FakeClock()) as client,
        pytest.raises(Exception, match=said),
    ):
        client.runs()
    assert "the service failed" not in caplog.text, "it is no defect"


class Failing:
    """A connection to a catalog whose files fail."""

    def __init__(self, number: int) -> None:
        self.system_errno = number


@pytest.mark.parametrize(
    ("error", "number", "code"),
    [
        (apsw.IOError("disk I/O error"), errno.EIO, "staged_io"),
        (apsw.CantOpenError("unable to open database file"), errno.EMFILE, "busy"),
        (apsw.IOError("disk I/O error"), 0, "catalog_damaged"),
        (apsw.CorruptError("malformed"), errno.EIO, "catalog_damaged"),
    ],
)
def test_a_catalog_on_a_dead_disk_is_not_called_damaged(
    served: Served, monkeypatch: pytest.MonkeyPatch, error: Exception, number: int, code: str
) -> None:
    monkeypatch.setattr(served.service.store, "_reader", Failing(number))
    with pytest.raises(CachetierClientError) as caught:
        served.service.store.read(broken(error))
    assert caught.value.code == code
    monkeypatch.undo()


def test_looking_waits_for_no_commit() -> None:
    with serving() as served:
        assert served.service._http is not None
        quick, release = served.service._http._pools._quick, threading.Event()
        commits = [quick.submit(release.wait, 30) for _ in range(8)]
        try:
            assert served.call("GET", "/v1/status").status == 200
            assert served.call("GET", "/metrics").status == 200
        finally:
            release.set()
        assert all(each.result(30) for each in commits)
