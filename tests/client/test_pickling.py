"""A client that goes to another process, as data loaders and process pools send it."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
from cachetier_client import Client

from tests.client.fake_service import FakeService


def test_a_pickled_client_puts_from_another_process(service: FakeService) -> None:
    with Client(service.url, run="a-run", threads=1) as client:
        client.put_shard(b"here", step=7, name="here")
        pickled = pickle.dumps(client)
    program = (
        "import pickle, sys\n"
        "client = pickle.loads(sys.stdin.buffer.read())\n"
        "client.put_shard(b'there', step=7, name='there')"
    )
    subprocess.run([sys.executable, "-c", program], input=pickled, check=True, timeout=60)

    assert service.shards["a-run", 7, "there"].content == b"there"


def test_what_is_pickled_holds_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHETIER_TOKEN", "a-secret")
    with Client("http://127.0.0.1:7070") as client:
        assert b"a-secret" not in pickle.dumps(client)
