"""A copy of the tree in which a mutant stands while tests run; the tree itself is never changed."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.sites import Mutant

NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"
)
TIMEOUT = "timeout"
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", re.MULTILINE)
ALL_PASSED, SOME_FAILED, INTERRUPTED, NO_SUCH_TEST, NO_TEST = 0, 1, 2, 4, 5


class Worker:
    """A copy of a tree; `close` removes it."""

    def __init__(self, root: Path, environment: dict[str, str]) -> None:
        # Short, as the path of a socket may have 107 bytes.
        self.place = Path(tempfile.mkdtemp(prefix="mut", dir="/tmp"))
        self.tree = self.place / "t"
        shutil.copytree(root, self.tree, ignore=NOT_COPIED, symlinks=True)
        if (root / ".venv").exists():
            (self.tree / ".venv").symlink_to((root / ".venv").resolve())
        paths = os.pathsep.join([os.fspath(self.tree), os.fspath(self.tree / "client")])
        self._environment = {**os.environ, **environment, "PYTHONPATH": paths}

    def close(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Have the mutant in the copy; every process that starts meanwhile imports it."""
        path = self.tree / mutant.site.path
        text = path.read_text(encoding="utf-8")
        try:
            self._write(path, mutant.applied_to(text))
            yield
        finally:
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        """Write a module, and drop what was compiled: of one second and size it would be used."""
        path.write_text(text, encoding="utf-8")
        Path(importlib.util.cache_from_source(os.fspath(path))).unlink(missing_ok=True)

    def first_failure(self, tests: Sequence[str], seconds: float) -> str:
        """Run tests until one fails, and return which.

        Returns:
            The id of a test or module; `TIMEOUT` if the whole took longer than ``seconds``; ""
            if none failed, or none of them exists.
        """
        code, output = self._pytest(["-x", *tests], seconds)
        if code is None:
            return TIMEOUT
        if code in (ALL_PASSED, NO_TEST, NO_SUCH_TEST):
            return ""
        failed = FAILED.findall(output)
        if not failed:
            return tests[0]  # the process ended on its own
        return str(failed[0])

    def failures(self, tests: Sequence[str], seconds: float) -> set[str]:
        """Run all of the tests, and return which failed."""
        return set(FAILED.findall(self._pytest(tests, seconds)[1])) if tests else set()

    def _pytest(self, arguments: Sequence[str], seconds: float) -> tuple[int | None, str]:
        """Return exit code and output; None as the code if it took too long."""
        command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-rfE", "--timeout=90"]
        command += ["-p", "no:cacheprovider", f"--basetemp={self.place / 'b'}", *arguments]
        process = subprocess.Popen(
            command,
            cwd=self.tree,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            self._end(process)

    def _end(self, process: subprocess.Popen[str]) -> None:
        """End the process and those that it left behind."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
