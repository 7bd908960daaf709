"""The judge of moving jobs finds an answer that is of another save, or none, and excuses others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cachetier_client.errors import NotFoundError, ServiceUnavailableError

from tests.soak.history import EventLog, History
from tests.soak.moving import Seen, Watcher
from tests.soak.payloads import checksum
from tests.soak.test_judge import RUN, SAVE, STEP, Scene

OTHERS = b"of another save"


class Answers:
    """A node that answers each read the same: bytes, or an error."""

    name = "elsewhere"

    def __init__(self, answer: bytes | Exception) -> None:
        self._answer = answer

    @contextmanager
    def client(self) -> Iterator[Any]:
        def get_shard(*_: object, **__: object) -> bytes:
            if isinstance(self._answer, Exception):
                raise self._answer
            return self._answer

        yield SimpleNamespace(get_shard=get_shard)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"put last", ""),
        (OTHERS, "a mix of saves"),
        (b"nobody's", "of None"),
        (NotFoundError("no shard x"), "not_found"),
        (ServiceUnavailableError("killed"), ""),
    ],
)
def test_a_step_is_all_of_the_save_that_was_named(
    tmp_path: Path, answer: bytes | Exception, complaint: str
) -> None:
    scene, seen = Scene(tmp_path), Seen()
    what = {"node": "b", "run": RUN, "step": STEP, "save": "later", "name": "x"}
    with EventLog(tmp_path / "later.events").call(
        "put", **what, size=len(OTHERS), sum=checksum(OTHERS)
    ):
        pass
    watcher = Watcher(scene.bucket, History(tmp_path), seen)

    watcher.read(RUN, STEP, SAVE, Answers(answer), at_once=True)  # type: ignore[arg-type]

    assert bool(seen.failures) is bool(complaint)
    assert complaint in "".join(seen.failures)


def test_an_answer_of_a_save_that_the_bucket_has_no_more_is_no_mix(tmp_path: Path) -> None:
    scene, seen = Scene(tmp_path), Seen()
    scene.objects.delete(scene.bucket.layout.manifest_key(RUN, STEP))

    watcher = Watcher(scene.bucket, scene.history, seen)
    watcher.read(RUN, STEP, SAVE, Answers(OTHERS), at_once=True)  # type: ignore[arg-type]

    assert seen.failures == []
