"""moto as a stand-in for S3: a write and ``forget_buckets`` take turns."""

from __future__ import annotations

import threading

import pytest

from cachetier.remote.s3.boto_client import connect
from cachetier.testing.moto_server import forget_buckets, moto_server


def test_a_request_that_still_writes_waits_until_all_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from moto.s3.models import FakeKey

    with moto_server() as endpoint:
        client = connect(endpoint=endpoint.url, credentials=endpoint.credentials)
        writer = threading.Thread(target=lambda: put("late"), daemon=True)
        dispose, written, meanwhile = FakeKey.dispose, list[str](), list[str]()

        def put(key: str) -> None:
            client.put_object(Bucket=endpoint.bucket, Key=key, Body=b"x")
            written.append(key)

        def disposed(key: FakeKey, garbage: bool = False) -> None:
            if not garbage and not writer.ident:
                writer.start()
                writer.join(0.3)  # without turns, it has written by then
                meanwhile.extend(written)
            dispose(key, garbage)

        put("early")
        monkeypatch.setattr(FakeKey, "dispose", disposed)
        forget_buckets()
        writer.join(30)
        assert meanwhile == ["early"]
        assert written == ["early", "late"]
