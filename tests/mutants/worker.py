"""A copy of the tree in which a mutant stands while tests run; the tree itself is never changed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.mutants.sites import Mutant

NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"
)
WARM = Path(__file__).with_name("warm.py")
TIMEOUT = "timeout"
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", re.MULTILINE)
ALL_PASSED, NO_TEST = 0, 5


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
        self._warm = subprocess.Popen(
            [sys.executable, os.fspath(WARM)],
            cwd=self.tree,
            env={**os.environ, **environment, "PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def close(self) -> None:
        assert self._warm.stdin is not None and self._warm.stdout is not None
        self._warm.stdin.close()
        self._warm.wait()
        self._warm.stdout.close()
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
        failed = FAILED.findall(output)
        if failed:
            return str(failed[0])
        if code in (ALL_PASSED, NO_TEST) or "ERROR: not found" in output:
            return ""
        return f"{tests[0].partition('::')[0]}: pytest ends with {code}"

    def failures(self, tests: Sequence[str], seconds: float) -> set[str]:
        """Run all of the tests, and return which failed."""
        if not tests:
            return set()
        code, output = self._pytest(tests, seconds)
        failed = set(FAILED.findall(output))
        if code != ALL_PASSED and not failed:
            raise RuntimeError(f"pytest ends with {code}: {output[-2000:]}")
        return failed

    def _pytest(self, arguments: Sequence[str], seconds: float) -> tuple[int | None, str]:
        """Return exit code and output; None as the code if it took too long."""
        output = self.place / "output"
        options = ["-q", "--tb=no", "-rfE", "--timeout=90", "-p", "no:cacheprovider"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of plugins, by `warm`
        options.append(f"--basetemp={self.place / 'b'}")
        run = {"arguments": [*options, *arguments], "output": os.fspath(output)}
        asked, answers = self._warm.stdin, self._warm.stdout
        assert asked is not None and answers is not None
        asked.write(f"{json.dumps(run)}\n".encode())
        asked.flush()
        process = int(answers.readline())
        in_time = bool(select.select([answers], [], [], seconds)[0])
        with suppress(ProcessLookupError):  # it, or what it left behind
            os.killpg(process, signal.SIGKILL)
        code = int(answers.readline())
        return code if in_time else None, output.read_text(encoding="utf-8", errors="replace")
