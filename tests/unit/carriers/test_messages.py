"""What crosses between the process that decides and a carrier arrives as it was."""

from __future__ import annotations

import errno

import pytest
from cachetier_client.bucket_format.uploads import ObjectInfo, UploadedPart, UploadPartRange
from msgspec import json

from cachetier.carriers.checked_file import DamagedError
from cachetier.carriers.messages import MESSAGES, REPLIES, Cut, Done, Failure, Job, Start
from cachetier.errors import (
    CachetierError,
    ClientPendingError,
    PreconditionFailedError,
    RemoteRefusedError,
    ThrottledError,
)
from cachetier.remote.base import IF_ABSENT
from cachetier.remote.settings import RemoteSettings

REMOTE = RemoteSettings("durable", "bucket", endpoint="http://127.0.0.1:1")


@pytest.mark.parametrize(
    "message",
    [
        Start(REMOTE, 8, 10.0, 30.0),
        Job(1, REMOTE, "key", UploadPartRange(2, 8 << 20, 5), (2**64 - 1,), 7, "id", 2),
        Job(2, REMOTE, "key", UploadPartRange(1, 0, 5), (1,), 7, condition=IF_ABSENT),
        Cut(3),
    ],
)
def test_a_message_arrives_as_it_was(message: Start | Job | Cut) -> None:
    assert MESSAGES.decode(json.encode(message)) == message


@pytest.mark.parametrize(
    "done",
    [
        Done(1, 0.5, part=UploadedPart(2, '"etag"', 5, 2**64 - 1)),
        Done(2, 0.5, stored=ObjectInfo("key", 5, '"etag"', None, {"who": "me"})),
    ],
)
def test_a_reply_arrives_as_it_was(done: Done) -> None:
    assert REPLIES.decode(json.encode(done)) == done


def crossed(error: Exception) -> Exception:
    failure = json.decode(json.encode(Failure.of(error)), type=Failure)
    return failure.as_error()


@pytest.mark.parametrize(
    "kind", [ThrottledError, RemoteRefusedError, ClientPendingError, PreconditionFailedError]
)
def test_an_error_of_ours_is_the_same_error_on_the_other_side(
    kind: type[CachetierError],
) -> None:
    error = kind("why", hint="what next", key="key", remote_status=503)
    error.retry_after_seconds = 7.0
    found = crossed(error)

    assert type(found) is kind
    assert isinstance(found, CachetierError)
    assert (found.code, found.message, found.hint) == (error.code, "why", "what next")
    assert found.context == error.context
    assert found.retry_after_seconds == 7.0


def test_damage_a_failing_disk_and_a_defect_are_told_apart() -> None:
    assert isinstance(crossed(DamagedError("block 3")), DamagedError)
    full = crossed(OSError(errno.EMFILE, "too many"))
    assert isinstance(full, OSError)
    assert full.errno == errno.EMFILE
    defect = crossed(ZeroDivisionError("oh"))
    assert type(defect) is CachetierError
    assert "ZeroDivisionError" in str(defect)
