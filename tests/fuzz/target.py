"""The service that is fuzzed: a process of its own, an honest client beside it, and its figures."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
from cachetier_client.identity import names
from click.testing import CliRunner

from benchmarks import processes
from benchmarks.node import Node, node
from cachetier.cli.app import app
from cachetier.doctor.node import SERVE_BYTES
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.fuzz.honest import Account
from tests.fuzz.recording import TOKEN
from tests.integration.hostile import listing

SECRET = b"of somebody else, and nobody's to read"
CALM_SECONDS = 60.0
ABOVE = 1.1  # of what `cachetier doctor` counts with for serve
GROWN_BYTES, GROWN_FILES, GROWN_THREADS = 64 << 20, 4, 24  # pools fill, and malloc keeps some
QUIET_LEVELS = frozenset({"debug", "info", "warning"})


@dataclass(frozen=True, slots=True)
class Figures:
    """What a process holds."""

    resident_bytes: int
    files: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Figures:
        proc = Path(f"/proc/{pid}")
        files, threads = (len(os.listdir(proc / each)) for each in ("fd", "task"))
        return cls(processes.resident_bytes(pid), files, threads)

    def has_grown(self, since: Figures) -> bool:
        return (
            self.resident_bytes > since.resident_bytes + GROWN_BYTES
            or self.files > since.files + GROWN_FILES
            or self.threads > since.threads + GROWN_THREADS
        )

    def __str__(self) -> str:
        memory = self.resident_bytes >> 20
        return f"{memory} MiB, {self.files} descriptors, {self.threads} threads"


@dataclass
class Target:
    """A running service."""

    node: Node
    cache_dir: Path

    @property
    def urls(self) -> Mapping[str, str]:
        return {"unix": self.node.url, "http": f"http://127.0.0.1:{self.node.http_port}"}

    def figures(self) -> Figures:
        return Figures.of(self.node.pid)

    def calmed(self, before: Figures) -> Figures:
        """Return what the service holds once it has let go of its guests, or as it is at last."""
        ends_at = time.monotonic() + CALM_SECONDS
        while time.monotonic() < ends_at:
            if not self.figures().has_grown(before) and not self.open_data_files():
                break
            time.sleep(0.1)
        return self.figures()

    def peak_bytes(self) -> int:
        return processes.peak_bytes(self.node.pid)

    def open_data_files(self) -> list[str]:
        """Return the data files that the service holds open, as it does for what is staged."""
        opened = []
        for each in Path(f"/proc/{self.node.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                opened.append(os.readlink(each))
        return [each for each in opened if each.startswith(str(self.cache_dir / "data"))]


@contextmanager
def fuzzed(root: Path, remote: S3Endpoint) -> Iterator[Target]:
    """Serve in ``root`` until the block ends, and judge then what it left.

    Raises:
        AssertionError: It reached out of its directory, took a name that is none, failed on a
            request, held what it should not, did not stop, or left what `fsck` complains of.
    """
    for name in ("beside", "deep/er/beside"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(SECRET)
    cache_dir = root / "deep" / "er" / "cache"
    log = cache_dir.with_name("cache.log")
    log.touch()
    settings = {
        "token": TOKEN,
        "principal": '[{"name": "another"}]',  # so that the metrics want a token too
        "remote": f"s3://{remote.bucket}/{secrets.token_hex(8)}",  # no other campaign's steps
        "capacity": "4 GB",
        "log": "info:json",
        "grace": "5s",
    }
    with node(cache_dir, remote=remote, settings=settings) as started:
        before = outside(root, cache_dir)
        yield Target(started, cache_dir)
        assert outside(root, cache_dir) == before, "it wrote outside of its directory"
    assert started._process.returncode == 0, f"it ended with {started._process.returncode}"
    assert not (told := troubles(log)), told
    assert not (odd := odd_names(cache_dir)), f"the catalog has names that are none: {odd[:5]}"
    checked = CliRunner().invoke(app, ["fsck", "--local", "--data", "--cache-dir", str(cache_dir)])
    assert checked.exit_code == 0, checked.output


def outside(root: Path, cache_dir: Path) -> list[tuple[str, int, int]]:
    log = str(cache_dir.with_name("cache.log"))
    return [each for each in listing(root, cache_dir) if each[0] != log]


def troubles(log: Path) -> list[str]:
    """Return the lines of a log that tell of a defect: errors, and whatever is not an event."""
    found = []
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:
            event = {}
        if event.get("level") not in QUIET_LEVELS and event.get("state") != "ready":
            found.append(line[:2000])
    return found


def odd_names(cache_dir: Path) -> list[str]:
    """Return the names in the catalog of a service that has stopped that are not in the grammar."""
    copy = cache_dir.with_name("autopsy")
    shutil.copytree(cache_dir, copy, ignore=lambda _path, found: {*found} & {"data"})
    connection = apsw.Connection(str(copy / "catalog.db"))
    try:
        found: list[tuple[Any, ...]] = list(
            connection.execute("SELECT run, step, save_id, NULL FROM saves")
        )
        found += connection.execute("SELECT 'run', 1, 'save', name FROM shards")
    finally:
        connection.close()
    return [str(row) for row in found if not _in_grammar(*row)]


def _in_grammar(run: str, step: int, save_id: str, name: str | None) -> bool:
    try:
        names.SaveIds(run, step, save_id)
        names.checked_name("name" if name is None else name)
    except Exception:
        return False
    return True


@contextmanager
def honest_client(target: Target) -> Iterator[Account]:
    """Have an honest client work beside; its account is whole when the block has ended."""
    environment = {**os.environ, "CACHETIER_TOKEN": TOKEN}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.honest", *target.urls.values()],
        cwd=Path(__file__).parents[2],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    account = Account()
    try:
        assert process.stdout.readline() == b"ready\n", "the honest client did not get in"
        yield account
        process.stdin.close()
        told = process.stdout.read()
        assert process.wait(60) == 0, "the honest client failed: see its traceback above"
        vars(account).update(json.loads(told))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def assert_within_the_cap(peak_bytes: int) -> None:
    assert peak_bytes <= SERVE_BYTES * ABOVE, f"serve held {peak_bytes >> 20} MiB"
