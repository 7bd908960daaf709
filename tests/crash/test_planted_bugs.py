"""The harness must report every bug that is planted here; one that it misses makes it worthless.

=====================================  ======================================  ================
planted                                reported by                             first at
=====================================  ======================================  ================
no sync of the data, of the folder     the sweep                               step 201
no sync of the journal                 the sweep                               step 141
acknowledged before the sync           the sweep                               step 193
a failed sync tried again              failed syncs and then a power cut       the first of each
clean or evicted before confirmed      the sweep                               steps 424, 302
the answer of a write is trusted (1)   two nodes                               life 2
dropped once it was refused (4xx)      two nodes                               life 2
the log's torn tail is believed        the sweep, with luck                    step 613
412 taken for success                  the sweep                               step 453
part and manifest before the shards    the sweep                               step 220
a temporary name is used again (2)     the sweep                               step 257
no check of a digest on reading        one node: a bit flips, and is read      seed 0
no lock                                two nodes                               life 1
recorded parts are trusted (3)         the sweep                               step 412
eviction without a look                two nodes                               life 2
part written without a look            two nodes                               life 3
publication without a second look      two nodes                               life 0
old upload kept                        two nodes                               life 5
clocks are compared                    two nodes, one history by two clocks    life 14
=====================================  ======================================  ================

The sweep, here, is of the life with seed 0; the lives of two nodes are of the deeds that the test
names (``tests/stateful/test_planted_in_two_nodes.py``, and ``.._in_one_node.py``). Each is repeated
without the bug, and reports nothing.

(1) An ETag is believed nowhere, so it is the answer as such. (2) There are none: ids of data files
instead. (3) All are recorded, and no object is there.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest
from cachetier_client.bucket_format.stored import Content, Stored

from cachetier.drain.publish.publisher import Publisher
from cachetier.drain.schedule import scheduler
from cachetier.drain.schedule.scheduler import SaveView
from cachetier.drain.schedule.tasks import TaskKind, Work
from cachetier.drain.upload.source import ShardSource
from cachetier.drain.upload.target import UploadTarget, VerifiedObject
from cachetier.drain.upload.uploader import Upload, Uploader
from cachetier.errors import CatalogDamagedError, PreconditionFailedError
from cachetier.local.catalog import connection
from cachetier.local.catalog.committer import Committer
from cachetier.local.files.data_files import DiskFiles
from cachetier.local.identity import FileMark
from cachetier.local.store import Staged, Store
from cachetier.model.lifecycle import PartState
from cachetier.remote.base import IF_ABSENT
from tests.crash.judge import judge_fenced
from tests.crash.sweep import Life, judge_start, live, sweep
from tests.fakes.power_loss import WORST
from tests.fakes.strict_disk import StrictDisk
from tests.stateful.invariants import ViolationError
from tests.stateful.unsynced import unsynced


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Sweep a life with the bug until the harness reports; return what it says.

    Without the bug the same sweep reports nothing. Where it is of few moments it is done again;
    for all others ``test_the_harness_finds_nothing_where_no_bug_is_planted`` stands.
    """

    def swept(every: int = 20, at: str = "", **kwargs: Any) -> str:
        options = {"calls": 0, "lucks": 0} | kwargs
        for each in dict.fromkeys((every, 1)):  # the moments shift as the code changes
            try:
                sweep(_made(tmp_path / f"planted-{each}"), 0, at=at, every=each, **options)
            except ViolationError as violation:
                print(f"caught: {violation}")
                monkeypatch.undo()
                if at:
                    sweep(_made(tmp_path / "sound"), 0, at=at, every=each, **options)
                return str(violation)
        raise AssertionError("the harness found nothing")

    return swept


def test_the_harness_finds_nothing_where_no_bug_is_planted(tmp_path: Path) -> None:
    assert sweep(tmp_path, 0, calls=0, lucks=0, every=20).states > 50


def test_the_harness_catches_an_acknowledgement_before_the_sync(
    caught: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(self: Store, staged: Staged, mark: FileMark, content: Content, record: Any) -> Any:
        committed = self.write(record, 0.0)
        self._sync(staged, mark, content)
        if committed.repeated:
            self.discard(staged)
        else:
            self._keep(staged, content)
        self.drop(committed.replaced)
        return committed

    monkeypatch.setattr(Store, "commit_file", commit)

    assert "lost their files" in caught(every=1, at="(sync cache/data/")


def test_the_harness_catches_a_missing_sync_of_the_data(
    caught: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        DiskFiles,
        "seal",
        lambda _self, descriptor, identity: os.setxattr(descriptor, "user.planted", identity),
    )

    assert "lost their files" in caught()


def test_the_harness_catches_a_missing_sync_of_the_directory(
    caught: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DiskFiles, "sync_name", lambda _self, _file_id: None)

    assert "lost their files" in caught()


def test_the_harness_catches_a_missing_sync_of_the_catalog(
    caught: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure = connection._configure

    def careless(sql: apsw.Connection) -> None:
        configure(sql)
        sql.execute("PRAGMA synchronous = OFF")

    monkeypatch.setattr(connection, "_configure", careless)

    assert "acknowledged commits are lost with it" in caught()


def test_the_harness_catches_a_catalog_that_is_synced_only_now_and_then(
    caught: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure = connection._configure

    def careless(sql: apsw.Connection) -> None:
        configure(sql)
        sql.execute("PRAGMA synchronous = NORMAL")

    monkeypatch.setattr(connection, "_configure", careless)

    assert "readers get" in caught()


def test_the_harness_catches_a_mark_of_the_log_whose_name_is_not_synced(
    caught: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(path: Path, text: str) -> None:
        new = path.with_suffix(".new")
        with new.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    monkeypatch.setattr(connection, "write_synced", careless)

    found = caught(every=5, at="(sync cache/catalog.db-wal)", without_log=1)
    assert "without its log: readers get" in found


def test_the_harness_catches_a_mark_that_goes_before_the_last_checkpoint(
    caught: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    end = connection.end_mark

    def hasty(sql: apsw.Connection, catalog: Path) -> None:
        connection.remove_mark(catalog)
        end(sql, catalog)

    monkeypatch.setattr(connection, "end_mark", hasty)

    found = caught(every=5, at="(write cache/catalog.db)", without_log=1)
    assert "without its log: seals were lost" in found


def test_the_harness_catches_a_torn_tail_of_the_log_that_is_taken_for_whole(
    caught: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a log without sums: whatever the last frames hold counts."""

    def believe(log: Path) -> None:
        if connection.life_of(log) is not None:
            log.write_bytes(summed_anew(log.read_bytes()))

    monkeypatch.setattr(connection, "check_frames", believe)

    found = caught(every=3, lucks=1, calls=15, at="(sync cache/catalog.db-wal)")
    assert "luck" in found


def summed_anew(log: bytes) -> bytes:
    """Return a log in which each frame of its last life has a sum that is right."""
    _magic, _version, page_bytes, _sequence, salt1, salt2, *_ = connection._HEADER.unpack_from(log)
    running, whole = connection._checksum(log[:24], "<", (0, 0)), bytearray(log)
    for frame in connection._frames(log, page_bytes, (salt1, salt2)):
        if frame.salts_kept < 2:
            break
        running = connection._checksum(frame.head + frame.page, "<", running)
        struct.pack_into(">2I", whole, frame.offset + 16, *running)
    return bytes(whole)


def test_the_harness_catches_a_part_and_a_manifest_written_before_the_shards(
    caught: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = scheduler._steps

    def eager(view: SaveView) -> Iterator[Work]:
        parts = [part for part in view.parts if part.state is PartState.SEALED]
        if view.save.location is not None:
            for part in parts:
                if not part.uploaded:
                    yield Work(TaskKind.WRITE_PART, view.save, rank=part.rank)
        yield from steps(view)

    monkeypatch.setattr(scheduler, "_steps", eager)
    monkeypatch.setattr(Publisher, "_look", lambda *_: None)

    assert "published tier/run/1/a is not there" in caught()


def test_the_harness_catches_a_shard_called_clean_before_the_remote_has_it(
    caught: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be evicted from then on."""
    upload = Uploader.upload

    def trusting(
        self: Uploader,
        target: UploadTarget,
        source: ShardSource,
        progress: Any,
        *rest: Any,
        **kwargs: Any,
    ) -> Stored:
        clean = Stored.raw(target.content)
        progress._serve.shard_verified(progress._version, clean, 0.0, {})
        return upload(self, target, source, progress, *rest, **kwargs)

    monkeypatch.setattr(Uploader, "upload", trusting)

    assert "is not at the remote" in caught(every=1, at="(complete_upload)")


def test_the_harness_catches_an_upload_that_counts_as_sent_by_its_recorded_parts(
    caught: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power may have gone between the record of the last part and the object."""
    send = Upload._send_in_parts

    def trusting(self: Upload) -> VerifiedObject:
        recorded = sum(part.raw_bytes for part in self._journal.parts())
        if recorded == self._target.size_bytes:
            return VerifiedObject("", Stored.raw(self._target.content))
        return send(self)

    monkeypatch.setattr(Upload, "_send_in_parts", trusting)

    assert "is not at the remote" in caught(every=1, drained=1, at="(complete_upload)")


def test_the_harness_catches_a_refused_condition_taken_for_a_lost_reply(
    caught: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies there may be what a rank put before, under the same name."""

    def blind(self: Upload) -> VerifiedObject:
        key = self._target.key
        with self._body() as (view, sent, metadata), suppress(PreconditionFailedError):
            self._store.put(key, view, digest=sent.digest, metadata=metadata, condition=IF_ABSENT)
        return VerifiedObject("", Stored.raw(self._target.content))

    monkeypatch.setattr(Upload, "put", blind)

    assert "is not at the remote" in caught(every=1, at="(put)")


def test_the_harness_catches_ids_of_data_files_that_are_used_again(
    caught: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has a temporary name: a data file is created under its own, for ever."""
    create, numbers = DiskFiles.create, count()

    def reusing(self: DiskFiles, size_bytes: int, **_options: bool) -> tuple[str, int]:
        file_id = f"{next(numbers) % 2:032x}"
        with suppress(FileNotFoundError):
            self.remove(file_id)
        with monkeypatch.context() as patch:
            patch.setattr(secrets, "token_hex", lambda _nbytes: file_id)
            return create(self, size_bytes)

    monkeypatch.setattr(DiskFiles, "create", reusing)

    assert "is damaged on this node" in caught()


def test_the_harness_catches_an_eviction_of_dirty_bytes(
    caught: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "evict", lambda self, shard, **_how: self.drop([shard]) is None)

    assert "rows lost their files" in caught(every=10)


# --- a failed sync that is believed later -------------------------------------------------------


def lost_after_failed_sync(place: Path, kind: str) -> str:
    """Fail each sync of ``kind`` in turn; return what the harness says of the power cut after."""
    trace = live(place / "sound", 0, calls=0)[-1].disk.trace
    steps = [number for number, step in enumerate(trace, 1) if step.startswith(f"sync {kind}")]
    for step in steps:
        life = Life(place / f"life-{step}", 0)
        life.disk.fail_sync_at = step
        try:
            life.play(calls=0)
        except CatalogDamagedError:
            continue  # it failed while the node started: that it refuses is right
        assert life.disk.failed_syncs == 1, "the fault did not fire"
        with unsynced() as vfs:
            for moment in [each for each in life.moments if each.step >= step][::15]:
                try:
                    judge_start(place / "arena", moment.image.survivor(WORST), moment, vfs)
                except ViolationError as violation:
                    return str(violation)
    raise AssertionError("the harness found nothing")


def test_the_harness_catches_a_failed_sync_of_data_retried_into_a_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def seal(_self: DiskFiles, descriptor: int, identity: bytes) -> None:
        os.setxattr(descriptor, "user.planted", identity)
        try:
            os.fsync(descriptor)
        except OSError:
            os.fsync(descriptor)

    assert sync is os.fsync
    monkeypatch.setattr(DiskFiles, "seal", seal)

    assert "has other bytes" in lost_after_failed_sync(tmp_path, "cache/data/")


def test_the_harness_catches_a_failed_sync_of_the_catalog_retried_into_a_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = StrictDisk.sync

    def stubborn(self: StrictDisk, operation: str, path: str, number: int) -> None:
        try:
            sync(self, operation, path, number)
        except OSError:
            sync(self, operation, path, number)

    monkeypatch.setattr(StrictDisk, "sync", stubborn)

    found = lost_after_failed_sync(tmp_path, "cache/catalog.db-wal")
    assert "commits after it would be lost" in found


def test_the_harness_catches_a_fence_that_is_ignored_after_a_failed_sync_of_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite itself loses nothing then: it writes the same frames again, and syncs them."""
    trace = live(tmp_path / "trace", 0, calls=0)[-1].disk.trace
    put = next(n for n, step in enumerate(trace) if step.startswith("sync cache/data/"))
    step = 1 + trace.index("sync cache/catalog.db-wal", put)

    def fails(name: str) -> None:
        life = Life(tmp_path / name, 0)
        life.disk.fail_sync_at = step
        life.play(calls=0, at_the_end=lambda: judge_fenced(life.node))

    run = Committer.run

    def stubborn(self: Committer, operation, *args, **kwargs):  # type: ignore[no-untyped-def]
        try:
            return run(self, operation, *args, **kwargs)
        except Exception:
            if self.fenced is None:
                raise
            self.fenced = None
            return run(self, operation, *args, **kwargs)

    fails("sound")
    monkeypatch.setattr(Committer, "run", stubborn)

    with pytest.raises(ViolationError, match="a failed sync did not fence"):
        fails("planted")
