"""Drains of services in this process are forked by one that has imported what a drain needs.

To import it takes a drain 0.9 s of processor time, which was most of many a test. Nor does it step
behind everybody else, but in tests of that: beside workers that are busy it would hardly run, and
outcomes depend on speed. Otherwise it is what it is on a node: a process in a session of its own,
with the environment of a drain. Services in processes of their own start theirs as anywhere.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import botocore.session

from cachetier.drain.priority import apply
from cachetier.drain.process import main
from cachetier.drain.serve import supervisor

_MESSAGE_BYTES = 256 << 10
PATHS = "PYTHONPATH"
_one_forker = threading.Lock()


class ForkedDrain:
    """A drain as ``subprocess.Popen`` shows it, as far as its supervisor looks."""

    is_courteous = False

    def __init__(self, theirs: socket.socket, arguments: list[str]) -> None:
        self.returncode: int | None = None
        reader, writer = os.pipe()
        self.stderr: IO[bytes] = os.fdopen(reader, "rb")
        self._told, told = socket.socketpair()
        environment = supervisor.environment_of_drain(os.environ)
        message = json.dumps([arguments, environment, self.is_courteous]).encode()
        with told, os.fdopen(writer, "wb"):
            descriptors = [theirs.fileno(), writer, told.fileno()]
            with _one_forker:  # the drains of two remotes start at once
                forker, _ = _forker()
            socket.send_fds(forker, [message], descriptors)
        self._lines = self._told.makefile("r")
        self.pid = int(self._lines.readline())

    def wait(self) -> int:
        """Return how it ended, once it has."""
        if self.returncode is None:
            self.returncode = int(self._lines.readline())
            self._lines.close()
            self._told.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return how it ended, if it has."""
        if self.returncode is None and not os.path.exists(f"/proc/{self.pid}"):
            self.wait()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def _forker() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start the process that forks, which ends when this one does; return the way to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
            env={**os.environ, **supervisor.ENVIRONMENT},
        )
    return ours, process


def fork_for(asked: socket.socket) -> None:
    """Fork a drain for each message, until there can be no more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # of those that wait for a drain
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, _MESSAGE_BYTES, 3)
        if not message:
            return
        if os.fork() == 0:
            asked.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os._exit(_fork_one(message, *descriptors))
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_one(message: bytes, channel: int, errors: int, told: int) -> int:
    """Fork a drain, and tell its number and, when it has ended, how."""
    arguments, environment, is_courteous = json.loads(message)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(told)
        os.setsid()
        os.dup2(errors, sys.stderr.fileno())
        os.close(errors)
        os.environ.clear()
        os.environ.update(environment)
        if not is_courteous:
            stay_in_line()
        os._exit(_drain(channel, parent, arguments))
    os.close(channel)
    os.close(errors)
    os.write(told, b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    os.write(told, b"%d\n" % os.waitstatus_to_exitcode(status))
    return 0


def in_line() -> dict[str, str]:
    """Return the environment of a service whose drains do not step behind everybody else either."""
    tests = Path(__file__).parent
    paths = [str(tests / "in_line"), str(tests.parent), *filter(None, [os.environ.get(PATHS)])]
    return {PATHS: os.pathsep.join(paths)}


def stay_in_line() -> None:
    """Let none of the measures of courtesy take effect, as where the system refuses them all."""
    for measure in ("_nice", "_io_idle", "_autogroup", "_entered_group"):
        setattr(apply, measure, lambda *_: None)


def _drain(channel: int, parent: int, arguments: list[str]) -> int:
    group, cpus = arguments
    try:
        return main(channel, parent, group, [int(cpu) for cpu in cpus.split(",") if cpu])
    except SystemExit as end:
        print(end.code, file=sys.stderr, flush=True)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1


if __name__ == "__main__":
    # Megabytes of JSON are read once, not by each client.
    botocore.session.create_loader = functools.cache(botocore.session.create_loader)
    # The test that needs the first drain may have spoilt where credentials come from.
    session = botocore.session.Session()
    session.create_client("s3", "us-east-1", aws_access_key_id="n", aws_secret_access_key="n")
    fork_for(socket.socket(fileno=int(sys.argv[1])))
