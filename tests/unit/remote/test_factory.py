"""What the buckets of one server share."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from cachetier.remote.answers import Answers
from cachetier.remote.factory import open_remote
from cachetier.remote.s3 import store
from cachetier.remote.scheme import scheme_of
from cachetier.remote.settings import RemoteSettings
from cachetier.service.wiring import mount_opener

NOWHERE = RemoteSettings("durable", "bucket", endpoint="http://127.0.0.1:1")


class Client:
    """Knows an empty object by every key of every bucket, and which of them were asked."""

    made: list[Client]

    def __init__(self, *_remote: object, **_options: object) -> None:
        self.asked: list[str] = []
        self.made.append(self)

    def head_object(self, *, Bucket: str, **_options: object) -> dict[str, Any]:  # noqa: N803
        self.asked.append(Bucket)
        return {"ContentLength": 0, "ETag": '"e"', "ResponseMetadata": {"HTTPHeaders": {}}}


def test_mounts_by_the_dozen_share_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "made", [], raising=False)
    monkeypatch.setattr(store, "connect_to", Client)
    server = scheme_of(NOWHERE).server(NOWHERE)
    own = open_remote(NOWHERE, server=server)
    opened = mount_opener(NOWHERE, partial(open_remote, server=server), own, Answers(lambda: 0.0))
    names = [f"bucket-{number}" for number in range(60)]
    for name in ("bucket", *names):
        assert opened(name).objects.head("key") is not None

    (made,) = Client.made
    assert made.asked == ["bucket", *names]
