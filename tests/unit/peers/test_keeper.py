"""What a node keeps for others: answered once it is synced, in its room, through a restart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cachetier_client.io.digests import digest_of

from cachetier.errors import BackpressureError, TransientError, UploadGoneError
from cachetier.peers import keeper
from cachetier.peers.keeper import FOLDER, RECORD_BYTES, KeptObjects
from tests.fakes.fake_clock import FakeClock

BODY = b"body" * 1000
ROOM = 100_000


@pytest.fixture
def kept(tmp_path: Path, clock: FakeClock) -> KeptObjects:
    return KeptObjects(tmp_path, ROOM, clock)


def put(kept: KeptObjects, key: str, body: bytes = BODY) -> None:
    kept.put(key, body, digest=digest_of(body), metadata={"a": "b"})


def files(tmp_path: Path) -> int:
    return len(list((tmp_path / FOLDER / "files").iterdir()))


def test_what_was_answered_is_there_after_a_restart(tmp_path: Path, clock: FakeClock) -> None:
    before = KeptObjects(tmp_path, ROOM, clock)
    put(before, "run/1/a")
    put(before, "run/1/gone")
    before.delete("run/1/gone")
    upload = before.create_upload("run/1/b")
    before.upload_part("run/1/b", upload, 1, BODY, digest=digest_of(BODY))

    after = KeptObjects(tmp_path, ROOM, clock)

    assert after.get("run/1/a") == BODY
    assert after.head("run/1/a") == before.head("run/1/a")
    assert [each.key for each in after.listed("")] == ["run/1/a"]
    assert after.used_bytes == len(BODY) + RECORD_BYTES
    assert files(tmp_path) == 1
    with pytest.raises(UploadGoneError):
        after.list_parts("run/1/b", upload)


@pytest.mark.parametrize("fails", range(4))
def test_nothing_is_answered_before_each_sync(
    fails: int, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptObjects(tmp_path, ROOM, clock)
    syncs: list[int] = []
    fsync = os.fsync

    def failing(descriptor: int) -> None:
        syncs.append(descriptor)
        if len(syncs) == fails + 1:
            raise OSError(5, "I/O error")
        fsync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        with pytest.raises(TransientError):
            put(kept, "run/1/a")
    assert len(syncs) == fails + 1  # of bytes, their name, the record, and its name
    assert kept.head("run/1/a") is None
    put(kept, "run/1/a")
    assert KeptObjects(tmp_path, ROOM, clock).get("run/1/a") == BODY


def test_half_a_record_and_lost_files_are_not_shown(tmp_path: Path, clock: FakeClock) -> None:
    kept = KeptObjects(tmp_path, ROOM, clock)
    for key in ("run/1/a", "run/1/b", "run/1/c"):
        put(kept, key)
    half, lost = sorted((tmp_path / FOLDER / "records").iterdir())[:2]
    half.write_bytes(half.read_bytes()[:20])
    named = lost.read_text().partition('"file":"')[2][:32]
    (tmp_path / FOLDER / "files" / named).unlink()

    again = KeptObjects(tmp_path, ROOM, clock)

    assert len(again.listed("")) == 1
    assert files(tmp_path) == 1


def test_more_than_its_room_is_refused_by_name_and_room_comes_back(
    kept: KeptObjects, tmp_path: Path
) -> None:
    large = bytes(ROOM - 10_000)
    put(kept, "run/1/a", large)
    with pytest.raises(BackpressureError, match=r"no room for copies: 94\.1 kB of 100 kB"):
        put(kept, "run/1/b", bytes(10_000))
    assert files(tmp_path) == 1
    kept.delete("run/1/a")
    assert kept.used_bytes == 0
    put(kept, "run/1/b", large)


def test_an_upload_that_nobody_goes_on_with_gives_its_room_back(
    kept: KeptObjects, clock: FakeClock
) -> None:
    upload = kept.create_upload("run/1/a")
    kept.upload_part("run/1/a", upload, 1, BODY, digest=digest_of(BODY))
    clock.advance(keeper.IDLE_UPLOAD_SECONDS + 1)
    kept.drop_idle_uploads()
    assert kept.used_bytes == 0
