"""A watched folder: what a trainer has finished is stored, whatever happens to it meanwhile."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from cachetier_client import Client, ServiceUnavailableError
from cachetier_client.adopt import watcher as module
from cachetier_client.adopt.bridge import FOLDER, Bridge
from cachetier_client.adopt.inotify import FileEvent, Inotify
from cachetier_client.adopt.rules import SaveRules
from cachetier_client.adopt.sources import files_of
from cachetier_client.adopt.trainer_folder import LATE_SECONDS, StepFiles, TrainerFolder
from cachetier_client.adopt.watcher import Outcome, Watcher
from cachetier_client.results import Receipt

from tests.fakes.bodies import noise
from tests.fakes.fake_clock import FakeClock
from tests.integration.serving import Served, serving
from tests.integration.trainer import MARKER, MIB, on_disk, save, stored

SECONDS = 60.0
LARGE = noise(5 * MIB)
Adopt = Callable[[str, int, str], list[Receipt]]


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


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.05)
    monkeypatch.setattr(module, "LISTEN_SECONDS", 0.05)
    monkeypatch.setattr(module, "RETRY_SECONDS", (0.01,))


class Heard:
    """What a watcher told, and a way to wait for more."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self._changed = threading.Condition()

    def __call__(self, outcome: Outcome) -> None:
        with self._changed:
            self.outcomes.append(outcome)
            self._changed.notify_all()

    def await_(self, count: int) -> list[Outcome]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.outcomes) >= count, SECONDS), self
            return self.outcomes

    @property
    def taken(self) -> list[str]:
        return [outcome.path for outcome in self.outcomes if outcome.receipts]


def adopting(client: Client) -> Adopt:
    def adopt(source: str, step: int, origin: str) -> list[Receipt]:
        return client.adopt(source, step=step, origin=origin)

    return adopt


@contextmanager
def watching(
    root: Path, adopt: Adopt, rules: SaveRules | None = None, inotify: Inotify | None = None
) -> Iterator[Heard]:
    """Run a watcher until the block ends; it must have left nothing of its own by then."""
    heard = Heard()
    folder = TrainerFolder(str(root), rules or SaveRules())
    watcher = Watcher(folder, adopt, heard, inotify=inotify)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            watcher.run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield heard
    finally:
        watcher.stop()
        thread.join(SECONDS)
    assert not thread.is_alive()
    assert failed == []


# --- when a save has ended -----------------------------------------------------------------------


def test_a_step_is_taken_when_its_marker_is_there_and_nothing_of_the_trainers_is_touched(
    client: Client, root: Path
) -> None:
    with watching(root, adopting(client)) as heard:
        folder = save(root / "checkpoint-500", {"model": LARGE, "deep/er/file": b"x"}, "config")
        time.sleep(0.5)
        assert heard.outcomes == []
        (folder / MARKER).write_text("{}")
        (outcome,) = heard.await_(1)
        before = on_disk(root)
    assert (outcome.path, outcome.step, outcome.failed) == ("checkpoint-500", 500, False)
    assert stored(client, "r", 500) == on_disk(folder)
    assert on_disk(root) == before
    assert [path.name for path in root.iterdir()] == ["checkpoint-500"]


def test_a_folder_that_is_renamed_into_place_and_a_single_file_are_taken(
    client: Client, root: Path
) -> None:
    with watching(root, adopting(client)) as heard:
        save(root / "tmp-checkpoint-5", {"model": LARGE}).rename(root / "checkpoint-5")
        heard.await_(1)
        (root / "part.tmp").write_bytes(LARGE)
        (root / "part.tmp").rename(root / "epoch=0-step=6.ckpt")
        heard.await_(2)
    assert heard.taken == ["checkpoint-5", "epoch=0-step=6.ckpt"]
    assert stored(client, "r", 6) == {"epoch=0-step=6.ckpt": LARGE}


def test_a_file_that_is_still_open_holds_its_step_back_until_it_is_closed(
    client: Client, root: Path
) -> None:
    with watching(root, adopting(client)) as heard:
        folder = save(root / "checkpoint-5", {"model": b""}, "config")
        with (folder / "model").open("wb", buffering=0) as file:
            file.write(LARGE[:MIB])
            (folder / MARKER).write_text("{}")
            time.sleep(0.5)
            assert heard.outcomes == []
            file.write(LARGE[MIB:])
        heard.await_(1)
    assert stored(client, "r", 5)["model"] == LARGE


def test_a_pointer_beside_the_folders_ends_a_step(client: Client, root: Path) -> None:
    with watching(root, adopting(client)) as heard:
        save(root / "global_step7", {"mp_rank_00.pt": LARGE}, "x")
        (root / "latest").write_text("global_step7")
        heard.await_(1)
    assert heard.taken == ["global_step7"]


def looked(root: Path, quiet_commits: float | None = None) -> tuple[Watcher, FakeClock, Heard]:
    """Return a watcher that only looks, and its clock."""
    clock, heard = FakeClock(), Heard()

    def never(*_: object) -> list[Receipt]:
        raise AssertionError("nothing has ended")

    folder = TrainerFolder(str(root), SaveRules())
    watcher = Watcher(folder, never, heard, quiet_commits=quiet_commits, clock=clock)
    watcher._once = False
    watcher._note_all()
    return watcher, clock, heard


def test_quiet_alone_warns_once_and_says_what_it_waits_for(root: Path) -> None:
    save(root / "checkpoint-500", {"model": b"x"}, "config")
    watcher, clock, heard = looked(root)
    for _ in range(20):
        watcher.look()
        clock.advance(10)
    (outcome,) = heard.outcomes
    assert outcome.path == "checkpoint-500"
    assert f"no {MARKER} or .metadata says that it has ended" in outcome.trouble
    assert "--quiet-commits" in outcome.hint
    assert not outcome.failed
    assert not watcher._pending


def test_quiet_ends_a_step_where_the_user_has_said_so(root: Path) -> None:
    save(root / "checkpoint-500", {"model": b"x"}, "config")
    watcher, clock, heard = looked(root, quiet_commits=30.0)
    for passed in (0, 5, 10):
        clock.advance(passed)
        watcher.look()
        assert not watcher._pending
    clock.advance(15)
    watcher.look()
    assert [each.path for each in watcher._pending.values()] == ["checkpoint-500"]
    assert heard.outcomes == []


def test_the_marker_of_the_last_save_does_not_end_the_next_one(root: Path) -> None:
    """A job that starts again at step 400 writes the files of step 500 anew, one by one."""
    folder = save(root / "checkpoint-500", {"model": b"old", "optimizer": b"old"})
    for path in folder.iterdir():
        os.utime(path, (1_000, 1_000))
    (folder / "model").write_bytes(b"new")
    watcher, clock, heard = looked(root)
    clock.advance(module.WARN_SECONDS)
    watcher.look()
    assert not watcher._pending
    assert "model is newer than what ended its last save" in heard.outcomes[0].trouble
    late = time.time() - LATE_SECONDS / 2  # of another rank, just after
    os.utime(folder / MARKER, (late, late))
    watcher._note_all()
    clock.advance(1)
    watcher.look()
    assert [each.path for each in watcher._pending.values()] == ["checkpoint-500"]


# --- what may happen meanwhile -------------------------------------------------------------------


class Held:
    """An ``adopt`` that waits before its first save."""

    def __init__(self, client: Client) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        self._adopt = adopting(client)

    def __call__(self, source: str, step: int, origin: str) -> list[Receipt]:
        self.began.set()
        assert self.go_on.wait(SECONDS)
        return self._adopt(source, step, origin)


def linked(root: Path, step: str) -> None:
    """Wait until a step's files have a second name."""
    ends = time.monotonic() + SECONDS
    while not any(path.is_file() for path in root.glob(f"{FOLDER}/w-*/{step}/*")):
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_a_checkpoint_that_is_rotated_away_before_its_turn_is_stored_all_the_same(
    client: Client, root: Path
) -> None:
    held = Held(client)
    with watching(root, held) as heard:
        save(root / "checkpoint-1", {"model": b"one"})
        assert held.began.wait(SECONDS)
        whole = on_disk(save(root / "checkpoint-2", {"model": LARGE, "deep/file": b"x"}))
        linked(root, "checkpoint-2")
        shutil.rmtree(root / "checkpoint-2")
        held.go_on.set()
        heard.await_(2)
    assert heard.taken == ["checkpoint-1", "checkpoint-2"]
    assert stored(client, "r", 2) == whole
    assert [path.name for path in root.iterdir()] == ["checkpoint-1"]


def test_a_checkpoint_that_is_half_deleted_when_its_turn_comes_is_never_taken_for_whole(
    client: Client, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its marker is the last to go, and the watcher, which was held up, looks in the middle."""
    monkeypatch.setattr(module, "SETTLE_SECONDS", 1.0)
    looks: list[Sequence[str]] = []

    class HalfGone(TrainerFolder):
        def step_files(self, saves: Sequence[str]) -> StepFiles:
            if not looks:
                (root / "checkpoint-2" / "deep" / "file").unlink()
                (root / "checkpoint-2" / "model").unlink()
            looks.append(saves)
            return super().step_files(saves)

        def unended(self, step: StepFiles) -> str:
            if len(looks) == 2:
                shutil.rmtree(root / "checkpoint-2")
            return super().unended(step)

    save(root / "checkpoint-2", {"model": LARGE, "deep/file": b"x"})
    heard = Heard()
    Watcher(HalfGone(str(root), SaveRules()), adopting(client), heard).run(once=True)
    assert len(looks) == 2
    ((path, trouble),) = [(each.path, each.trouble) for each in heard.outcomes]
    assert (path, trouble) == ("checkpoint-2", "was deleted before it could be copied")
    assert client.steps("r", level="local") == []


def test_a_removal_of_links_that_is_cut_short_leaves_nothing_that_is_taken_for_a_save(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(root / "checkpoint-2", {"model": LARGE})
    bridge = Bridge(str(root))
    held = bridge.hold("checkpoint-2", "key", files_of(str(folder)))
    assert held is not None
    removed: list[str] = []

    def cut_short(path: str, *, ignore_errors: bool) -> None:
        assert ignore_errors
        os.unlink(os.path.join(path, "checkpoint-2", "model"))
        removed.append(path)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", cut_short)
        bridge.release("key")
    assert len(removed) == 1
    assert bridge.kept() == []
    bridge.close()
    assert not (root / FOLDER).exists()


def test_a_file_that_is_rewritten_through_its_first_name_is_not_stored_under_the_old_save(
    client: Client, root: Path
) -> None:
    """A link is the same file: what the trainer truncates is gone, and never acknowledged."""
    held = Held(client)
    with watching(root, held) as heard:
        save(root / "checkpoint-1", {"model": b"one"})
        assert held.began.wait(SECONDS)
        folder = save(root / "checkpoint-2", {"model": LARGE, "optimizer": b"old"})
        linked(root, "checkpoint-2")
        (folder / "model").write_bytes(b"new")  # the same inode
        old = time.time() - 2 * LATE_SECONDS
        os.utime(folder / MARKER, (old, old))
        held.go_on.set()
        heard.await_(1)
        time.sleep(0.5)
        assert heard.taken == ["checkpoint-1"]
        (folder / "optimizer").write_bytes(b"new")
        (folder / MARKER).write_text("{}")
        heard.await_(2)
    assert (
        stored(client, "r", 2)
        == on_disk(folder)
        == {
            "model": b"new",
            "optimizer": b"new",
            MARKER: b"{}",
        }
    )


def test_without_links_it_says_so_and_takes_the_trainers_own_files(
    client: Client, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[object] = []

    def link(*names: object, **_: object) -> None:
        refused.append(names)
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", link)
    with watching(root, adopting(client)) as heard:
        folder = save(root / "checkpoint-5", {"model": LARGE})
        heard.await_(2)
    assert refused
    assert "cannot be linked" in heard.outcomes[0].trouble
    assert stored(client, "r", 5) == on_disk(folder)


class RacingInotify(Inotify):
    """Has a trainer write a whole step into a new folder before the watch of it stands."""

    def __init__(self) -> None:
        super().__init__()
        self.raced: list[str] = []

    def add(self, folder: str) -> bool:
        if folder.endswith("checkpoint-5") and not self.raced:
            self.raced.append(folder)
            save(Path(folder), {"model": LARGE, "deep/er": b"x"})
        return super().add(folder)


def test_files_that_come_before_the_watch_of_their_folder_are_seen(
    client: Client, root: Path
) -> None:
    inotify = RacingInotify()
    with watching(root, adopting(client), inotify=inotify) as heard:
        (root / "checkpoint-5").mkdir()
        heard.await_(1)
    assert inotify.raced
    assert stored(client, "r", 5) == on_disk(root / "checkpoint-5")


class SlowInotify(Inotify):
    """Reads nothing until it may; remembers when the kernel says that events were lost."""

    def __init__(self) -> None:
        super().__init__()
        self.may_read, self.lost = threading.Event(), threading.Event()

    def read(self, timeout_seconds: float) -> list[FileEvent]:
        assert self.may_read.wait(SECONDS)
        events = super().read(timeout_seconds)
        if any(event.path is None for event in events):
            self.lost.set()
        return events


def test_a_step_is_taken_although_the_queue_of_events_has_overflown(
    client: Client, root: Path
) -> None:
    inotify = SlowInotify()
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    with watching(root, adopting(client), inotify=inotify) as heard:
        while not inotify._folders:
            time.sleep(0.01)
        for number in range(limit // 2 + 1):  # each is made and closed
            (root / f"{number}").touch()
        save(root / "checkpoint-5", {"model": LARGE})
        inotify.may_read.set()
        heard.await_(1)
        assert inotify.lost.is_set()
    assert stored(client, "r", 5) == on_disk(root / "checkpoint-5")


def test_a_service_that_is_away_is_waited_for_and_told_of_once(client: Client, root: Path) -> None:
    tries: list[int] = []

    def adopt(source: str, step: int, origin: str) -> list[Receipt]:
        tries.append(step)
        if len(tries) < 5:
            raise ServiceUnavailableError("nobody answers")
        return adopting(client)(source, step, origin)

    with watching(root, adopt) as heard:
        save(root / "checkpoint-5", {"model": LARGE})
        heard.await_(2)
    assert len(tries) == 5
    assert [(each.trouble, each.failed) for each in heard.outcomes] == [
        ("nobody answers", False),
        ("", False),
    ]


def test_a_step_of_somebody_else_is_left_alone_and_no_link_stays(
    client: Client, root: Path
) -> None:
    client.put_shard(b"theirs", step=5, name="model")
    client.seal(None, 5)
    with watching(root, adopting(client)) as heard:
        save(root / "checkpoint-5", {"model": LARGE})
        (outcome,) = heard.await_(1)
    assert outcome.failed
    assert "from another save" in outcome.trouble
    assert stored(client, "r", 5) == {"model": b"theirs"}
    assert [path.name for path in root.iterdir()] == ["checkpoint-5"]


def test_a_defect_of_the_copying_thread_ends_the_watch(root: Path) -> None:
    def adopt(*_: object) -> list[Receipt]:
        raise ZeroDivisionError

    save(root / "checkpoint-5", {"model": b"x"})
    watcher = Watcher(TrainerFolder(str(root), SaveRules()), adopt, Heard())
    with pytest.raises(ZeroDivisionError):
        watcher.run()
    assert list(root.glob(f"{FOLDER}/w-*/checkpoint-5/model"))  # for the next watcher


def test_a_folder_that_goes_away_ends_the_watch_with_an_error(root: Path) -> None:
    watcher = Watcher(TrainerFolder(str(root), SaveRules()), lambda *_: [], Heard())
    root.rmdir()
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        watcher.run()


# --- again ---------------------------------------------------------------------------------------


def test_a_watcher_takes_what_came_while_none_ran_and_what_the_last_one_had_linked(
    client: Client, root: Path
) -> None:
    held = Held(client)
    first = save(root / "checkpoint-1", {"model": b"one"})
    with watching(root, held) as heard:
        assert held.began.wait(SECONDS)
        whole = on_disk(save(root / "checkpoint-2", {"model": LARGE}))
        linked(root, "checkpoint-2")
    told = [(each.path, each.trouble, each.failed) for each in heard.outcomes]
    assert ("checkpoint-2", "is not copied yet", True) in told
    held.go_on.set()
    shutil.rmtree(root / "checkpoint-2")  # while nobody watches
    third = save(root / "checkpoint-3", {"model": b"three"})

    with watching(root, adopting(client)) as heard:
        heard.await_(3)
    # The first watcher may have stored its own after all: then nothing of that is sent again.
    assert {"checkpoint-2", "checkpoint-3"} <= set(heard.taken)
    assert stored(client, "r", 1) == on_disk(first)
    assert stored(client, "r", 2) == whole
    assert stored(client, "r", 3) == on_disk(third)
    assert not (root / FOLDER).exists()
