"""Child processes that are always ended: by their process id, with all that they started."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
STOP_SECONDS = 10.0
LOG_TAIL_CHARACTERS = 8000


class ChildError(RuntimeError):
    """A child ended, or did not do what it was started for; the message ends with its log."""


class Child:
    """One child process, in a session of its own: Ctrl-C in the terminal reaches the demo alone."""

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=ROOT,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._family = [psutil.Process(self.pid)]

    @property
    def exit_status(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def family(self) -> list[psutil.Process]:
        """Return the process and all that it started, directly or not, and that is known to run."""
        known = dict.fromkeys(self._family)
        for process in list(known):
            with suppress(psutil.NoSuchProcess):
                known |= dict.fromkeys(process.children(recursive=True))
        self._family = [process for process in known if process.is_running()]
        return self._family

    def keep_to(self, cores: set[int]) -> None:
        """Let it, and all that it starts from now on, run on these cores only."""
        for process in self.family():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                for thread in process.threads():
                    os.sched_setaffinity(thread.id, cores)

    def kill(self) -> None:
        """Send SIGKILL to the whole family at once, and wait until it is gone."""
        family = self.family()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        psutil.wait_procs(family, timeout=STOP_SECONDS)

    def stop(self) -> None:
        """Ask it to stop, and kill what has not stopped in time. Does nothing if it has ended."""
        self.family()
        if self.exit_status is None:
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self.kill()

    def failed(self, what: str) -> ChildError:
        """Return the error that says what went wrong, with the end of the child's log."""
        status = "" if self.exit_status is None else f" (exit status {self.exit_status})"
        tail = self._log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]
        return ChildError(f"{self.name}: {what}{status}\n--- {self._log}\n{tail}")
