"""A machine without descriptors, threads or disk is told as that at each door."""

from __future__ import annotations

import errno
import os

import pytest

from cachetier.doors.operations import internal
from cachetier.doors.s3.errors import STATUS, s3_code_of
from cachetier.errors import ExhaustedError, FencedError, StagedIOError, machine_failure


@pytest.mark.parametrize(
    ("error", "kind", "cause", "hint"),
    [
        (OSError(errno.EMFILE, "x"), ExhaustedError, "no file descriptor left", "ulimit -n"),
        (OSError(errno.ENFILE, "x"), ExhaustedError, "no file descriptor left", "fs.file-max"),
        (RuntimeError("can't start new thread"), ExhaustedError, "no thread", "pids.max"),
        (OSError(errno.EIO, os.strerror(errno.EIO)), StagedIOError, "the disk fails", "kernel log"),
    ],
)
def test_the_cause_and_the_next_move_are_named(
    error: Exception, kind: type[Exception], cause: str, hint: str
) -> None:
    found = machine_failure(error, "the service")
    assert isinstance(found, kind)
    assert cause in found.message
    assert hint in found.hint
    assert (found.http_status, STATUS[s3_code_of(found)], s3_code_of(found)) == (
        503,
        503,
        "SlowDown",
    )


@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("x"), OSError(errno.EPERM, "x")])
def test_all_else_is_a_defect_as_before(error: Exception) -> None:
    assert machine_failure(error, "the service") is None
    assert s3_code_of(internal()) == "InternalError"


def test_a_fenced_node_tells_s3_clients_to_slow_down() -> None:
    assert s3_code_of(FencedError("a sync failed")) == "SlowDown"
