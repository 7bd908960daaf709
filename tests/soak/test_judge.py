"""The judge of the soak finds each broken promise: a harness that finds nothing proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cachetier_client.bucket_format.documents import Manifest, ManifestState, ShardEntry
from cachetier_client.bucket_format.stored import Content
from cachetier_client.errors import BackpressureError, DeadlineError
from cachetier_client.io.digests import digest_of

from cachetier.remote.bucket import Bucket
from tests.fakes.memory_store import MemoryObjectStore
from tests.soak.bucket import BareBucket
from tests.soak.history import EventLog, History
from tests.soak.judge import Judge
from tests.soak.payloads import checksum, payload

RUN, STEP, SAVE = "run", 1, "save"
NEW, OLD = b"put last", b"put first"
SHARD = "soak/run/1/x"


class Scene:
    """One rank put ``x`` twice and sealed; the bucket holds what a sound tier would have there."""

    def __init__(self, directory: Path) -> None:
        self.objects = MemoryObjectStore()
        self.bucket = BareBucket(self.objects)
        self.log = EventLog(directory / "rank.events")
        self.history = History(directory)
        for data in (OLD, NEW):
            self.put("x", data)
        self.call("seal")
        self.store(SHARD, NEW)
        self.publish("x")

    def call(self, kind: str, error: Exception | None = None, **what: object) -> None:
        who = {"node": "a", "run": RUN, "step": STEP, "save": SAVE}
        try:
            with self.log.call(kind, **(who | what)):
                if error is not None:
                    raise error
        except (BackpressureError, DeadlineError):
            pass

    def put(self, name: str, data: bytes, error: Exception | None = None) -> None:
        self.call("put", error, name=name, size=len(data), sum=checksum(data))

    def store(self, key: str, data: bytes) -> None:
        self.objects.delete(key)
        self.objects.put(key, data, digest=digest_of(data))

    def publish(self, *names: str, state: ManifestState = ManifestState.PUBLISHED) -> None:
        content = Content(len(NEW), digest_of(NEW), (digest_of(NEW),))
        shards = tuple(ShardEntry.of(name, 0, content).summary() for name in names)
        manifest = Manifest(
            state=state,
            run=RUN,
            step=STEP,
            save_id=SAVE,
            location="1",
            nonce="n",
            started_at=0.0,
            shards=shards,
        )
        self.objects.delete(self.bucket.layout.manifest_key(RUN, STEP))
        assert Bucket(self.objects, self.bucket.layout).put_manifest(manifest, None)

    def failures(self) -> list[str]:
        judge, steps = Judge(self.bucket, {}), self.history.update()
        judge.steps(steps)
        judge.reads(steps, self.history.reads)
        judge.strays(steps, [RUN])
        judge.uploads()
        return judge.failures


def test_what_was_done_and_is_there_is_sound(tmp_path: Path) -> None:
    assert Scene(tmp_path).failures() == []


def test_bytes_whose_acknowledgement_was_lost_may_be_there(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.put("x", b"perhaps", DeadlineError("too late"))
    assert scene.failures() == []
    scene.store(SHARD, b"perhaps")
    assert scene.failures() == []


BROKEN: dict[str, tuple[Callable[[Scene], None], str]] = {
    "other bytes": (lambda scene: scene.store(SHARD, b"others"), "none of"),
    "the bytes put before": (lambda scene: scene.store(SHARD, OLD), "none of"),
    "a lost object": (lambda scene: scene.objects.delete(SHARD), "not in the bucket"),
    "a lost manifest": (
        lambda scene: scene.objects.delete(scene.bucket.layout.manifest_key(RUN, STEP)),
        "is whole, and yet absent",
    ),
    "a claim that stays": (
        lambda scene: scene.publish(state=ManifestState.CLAIMED),
        "is whole, and yet claimed",
    ),
    "a shard left out": (lambda scene: scene.put("y", NEW), "is not published"),
    "a shard nobody put": (lambda scene: scene.publish("x", "z"), "which nobody put"),
    "a tombstone nobody asked for": (
        lambda scene: scene.publish(state=ManifestState.DELETED),
        "nobody deleted it",
    ),
    "a deleted step that stays": (lambda scene: scene.call("delete"), "deleted, and yet"),
    "a stray object": (lambda scene: scene.store("soak/run/1/stray", b""), "nobody put"),
    "an upload left": (
        lambda scene: print(scene.objects.create_upload(SHARD)),
        "unfinished uploads",
    ),
    "a read of bytes refused": (
        lambda scene: scene.call("get", name="x", sum=checksum(b"no")),
        "none of",
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_the_judge_finds(tmp_path: Path, broken: str) -> None:
    scene = Scene(tmp_path)
    breaking, complaint = BROKEN[broken]

    breaking(scene)

    assert any(complaint in failure for failure in scene.failures()), scene.failures()


def test_what_a_disk_forgot_is_excused(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.objects.delete(scene.bucket.layout.manifest_key(RUN, STEP))
    assert scene.failures()

    scene.history.excuse("a", 0.0, float("inf"))

    assert scene.failures() == []


def test_a_save_that_was_deleted_is_owed_by_nobody_though_another_began_since(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path)
    scene.publish(state=ManifestState.CLAIMED)
    scene.call("delete")
    scene.call("put", save="another", name="x", size=1, sum=checksum(b"x"))

    assert scene.failures() == []


def test_payloads_follow_from_their_names_alone() -> None:
    assert payload("r", 1, "s", "x", 0, 9_000_000) == payload("r", 1, "s", "x", 0, 9_000_000)
    assert payload("r", 1, "s", "x", 0, 100) != payload("r", 1, "s", "x", 1, 100)


@pytest.mark.parametrize("forgotten", [(), ("soak/run/2/",), ("soak/run/1/",)])
def test_what_is_left_of_deleted_steps_is_found_but_for_what_a_disk_forgot(
    tmp_path: Path, forgotten: tuple[str, ...]
) -> None:
    judge = Judge(Scene(tmp_path).bucket, {})
    judge.nothing_left(RUN, forgotten=forgotten)

    found = any("left of deleted steps" in failure for failure in judge.failures)
    assert found is not SHARD.startswith(forgotten)
