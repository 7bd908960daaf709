"""Processes of this machine, told apart even after a number is used again.

Source: proc(5).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

_PARENT_FIELD = 1  # counted from the state, which follows the command's closing parenthesis
_START_FIELD = 19


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes as ``/proc`` lists them."""

    root: Path = Path("/proc")

    def machine(self) -> str:
        """Return what names this boot of this machine and the namespace of its process numbers."""
        boot = (self.root / "sys/kernel/random/boot_id").read_text().strip()
        space = ""
        with contextlib.suppress(OSError):
            space = (self.root / "self/ns/pid").readlink().name
        return f"{boot}/{space}"

    def identity(self, pid: int) -> str:
        """Return the process's number with the instant of its start: no other ever has both."""
        return f"{pid}.{self._stat(pid)[_START_FIELD]}"

    def is_alive(self, identity: str) -> bool:
        """Return whether that very process still runs."""
        pid = identity.partition(".")[0]
        try:
            return self.identity(int(pid)) == identity
        except OSError:
            return False

    def launcher(self, pid: int, rank_variable: str) -> str:
        """Return the identity of the process that started all ranks of this node.

        That is the nearest ancestor not itself started with ``rank_variable``: wrappers (shells,
        profilers) and the rank above a helper process were. Where an environment may not be read,
        its process is taken.
        """
        while True:
            parent = int(self._stat(pid)[_PARENT_FIELD])
            if parent == 0:
                return self.identity(pid)
            pid = parent
            if not self._started_with(pid, rank_variable):
                return self.identity(pid)

    def _started_with(self, pid: int, variable: str) -> bool:
        try:
            environ = (self.root / str(pid) / "environ").read_bytes()
        except OSError:
            return False
        return any(entry.startswith(f"{variable}=".encode()) for entry in environ.split(b"\0"))

    def _stat(self, pid: int) -> list[str]:
        stat = (self.root / str(pid) / "stat").read_text(errors="replace")
        return stat.rpartition(")")[2].split()
