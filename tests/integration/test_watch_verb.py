"""``cachetier adopt`` as a process of its own: what it costs, and what a kill leaves."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client, NotFoundError

from tests.fakes.bodies import noise
from tests.integration.page_cache import drop_from_cache, resident_bytes
from tests.integration.serving import Served, serving
from tests.integration.trainer import MARKER, MIB, on_disk, save, stored

SECONDS = 60.0
ALONE = ("--rank", "0", "--world-size", "1")
IOPRIO_GET = {"x86_64": 252, "aarch64": 31}
IDLE_CLASS = 3


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with Client(served.unix_url, run="r") as client:
        yield client


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def command(served: Served, root: Path, *more: str) -> list[str]:
    words = ["adopt", str(root), "r", "--url", served.unix_url, "--json", *more]
    return [sys.executable, "-m", "cachetier", *words]


def watched(served: Served, root: Path, *more: str) -> tuple[int, list[dict[str, Any]], str]:
    """Let the verb run to its end; return its exit code, what it told, and its errors."""
    done = subprocess.run(
        command(served, root, *more), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@contextmanager
def running(served: Served, root: Path) -> Iterator[subprocess.Popen[str]]:
    words = command(served, root, *ALONE)
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_once_takes_what_has_ended_warns_of_the_rest_and_leaves(
    served: Served, client: Client, root: Path
) -> None:
    folder = save(root / "checkpoint-1", {"model": noise(5 * MIB)})
    save(root / "checkpoint-2", {"model": b"x"}, "config")
    code, told, errors = watched(served, root, *ALONE, "--once")
    assert code == 0, errors
    by_path = {each["path"]: each for each in told}
    assert {each["name"] for each in by_path["checkpoint-1"]["receipts"]} == {"model", MARKER}
    assert "says that it has ended" in by_path["checkpoint-2"]["trouble"]
    assert "--quiet-commits" in errors
    assert stored(client, "r", 1) == on_disk(folder)
    assert [path.name for path in sorted(root.iterdir())] == ["checkpoint-1", "checkpoint-2"]


def test_a_step_that_cannot_be_taken_makes_it_fail(served: Served, root: Path) -> None:
    save(root / "checkpoint-1", {"not a name": b"x"})
    code, told, _ = watched(served, root, *ALONE, "--once")
    assert code == 1
    assert [each["failed"] for each in told] == [True]


def test_the_number_of_watchers_is_demanded_or_the_environments(
    served: Served, client: Client, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, errors = watched(served, root, "--once")
    assert code == 2
    assert "--rank 0 --world-size 1" in errors
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "CACHETIER_SAVE_ID": "job"}.items():
        monkeypatch.setenv(name, value)
    save(root / "checkpoint-1", {"model": b"x"})
    code, _, errors = watched(served, root, "--once")
    assert code == 0, errors
    shown = client.step("r", 1)
    assert (shown.save_id, shown.ranks, shown.world_size) == ("job", (1,), 2)


def test_a_folder_that_is_not_there_is_said_at_once(served: Served, tmp_path: Path) -> None:
    code, _, errors = watched(served, tmp_path / "none", *ALONE)
    assert code == 2
    assert "there is no folder" in errors.lower()


def test_names_markers_and_quiet_are_the_users_to_say(
    served: Served, client: Client, root: Path
) -> None:
    save(root / "round-3", {"a": b"x"}, "random_states_0.pkl")
    save(root / "round-4", {"a": b"x"}, "b")
    rules = ("--step-name", "round-{step}", "--marker", "random_states_*.pkl")
    code, _, errors = watched(served, root, *ALONE, *rules, "--once", "--quiet-commits", "0s")
    assert code == 0, errors
    assert [each.step for each in client.steps("r")] == [3, 4]


def test_a_killed_watcher_loses_nothing_and_the_next_sends_only_the_rest(
    served: Served, client: Client, root: Path
) -> None:
    files = {f"shard-{number}": noise(48 * MIB) for number in range(8)}
    folder = save(root / "checkpoint-1", files)
    with running(served, root) as process:
        before = _files_when_some_are_stored(client, served)
        process.send_signal(signal.SIGKILL)
        process.wait(SECONDS)
    assert client.latest("r", level="local") is None  # it was killed in the midst of the step
    code, told, errors = watched(served, root, *ALONE, "--once")
    assert code == 0, errors
    assert stored(client, "r", 1) == on_disk(folder)
    assert before <= {(path.name, path.stat().st_ino) for path in served.data_files()}
    assert [path.name for path in root.iterdir()] == ["checkpoint-1"]

    code, told, _ = watched(served, root, *ALONE, "--once")  # and again: nothing is sent
    assert (code, len(told[0]["receipts"])) == (0, len(files) + 1)


def _files_when_some_are_stored(client: Client, served: Served) -> set[tuple[str, int]]:
    """Return the data files of the shards that are stored, as soon as there are two."""
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        try:
            shards = client.step("r", 1).shards
        except NotFoundError:
            shards = ()
        if len(shards) >= 2:
            found = sorted(served.data_files(), key=lambda path: path.stat().st_mtime_ns)
            return {(path.name, path.stat().st_ino) for path in found[:2]}
        time.sleep(0.005)
    raise AssertionError("nothing was stored")


def test_it_gives_way_to_training_and_holds_little_memory_and_no_page_of_the_files(
    served: Served, client: Client, root: Path
) -> None:
    """The compressor that polled held each file whole, filled the page cache and took the CPU."""
    size_bytes = 400 * MIB
    path = root / "step-1.ckpt"
    with path.open("wb") as file:
        for _ in range(size_bytes // (50 * MIB)):
            file.write(noise(50 * MIB))
    drop_from_cache(path)
    with running(served, root) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["receipts"][0]["size_bytes"] == size_bytes
        proc = Path(f"/proc/{process.pid}")
        threads = [int(thread.name) for thread in (proc / "task").iterdir()]
        assert len(threads) > 2  # those that write blocks among them
        assert {_nice(proc / "task" / str(thread)) for thread in threads} == {19}
        assert {_io_class(thread) for thread in threads} == {IDLE_CLASS}
        status = (proc / "status").read_text()
        peak_kib = int(status.partition("VmHWM:")[2].split()[0])
    assert resident_bytes(path) == 0
    assert peak_kib < 150 * 1024


def _nice(task: Path) -> int:
    return int((task / "stat").read_text().rpartition(")")[2].split()[16])


def _io_class(thread: int) -> int:
    number = IOPRIO_GET.get(os.uname().machine)
    if number is None:
        pytest.skip("the number of the call is not known here")
    return int(ctypes.CDLL(None).syscall(number, 1, thread)) >> 13


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_the_folder_is_as_it_was(
    served: Served, client: Client, root: Path, number: signal.Signals
) -> None:
    save(root / "checkpoint-1", {"model": b"x"})
    with running(served, root) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["step"] == 1
        process.send_signal(number)
        assert process.wait(SECONDS) == 128 + number
    assert [path.name for path in root.iterdir()] == ["checkpoint-1"]
