"""Every ``ObjectStore`` that the suite judges."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import count

import pytest

from cachetier.remote.base import ObjectStore
from cachetier.remote.call_policy import CallPolicy, Retries
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.fakes.faulty_store import FaultyObjectStore
from tests.fakes.memory_store import MemoryObjectStore

SERVERS = {"moto": "moto_s3", "seaweedfs": "seaweed_s3"}
IN_MEMORY: dict[str, Callable[[], ObjectStore]] = {
    "memory": MemoryObjectStore,
    "memory-readback": lambda: MemoryObjectStore(keeps_digests=False),
    "retrying": lambda: CallPolicy(MemoryObjectStore(), retries=Retries()),
    "measured": lambda: CallPolicy(MemoryObjectStore(), observe=lambda *_: None),
    "faulty": lambda: FaultyObjectStore(MemoryObjectStore()),
}

_folders = count(1)


@pytest.fixture(params=[*IN_MEMORY, *SERVERS])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    """Each store in turn."""
    name: str = request.param
    if name in IN_MEMORY:
        return IN_MEMORY[name]()
    endpoint: S3Endpoint = request.getfixturevalue(SERVERS[name])
    return _store_on(endpoint)


@cache  # a boto3 client takes longer to build than most tests to run
def _store_on(endpoint: S3Endpoint) -> ObjectStore:
    return endpoint.store()


@pytest.fixture(params=list(SERVERS))
def server(request: pytest.FixtureRequest) -> S3Endpoint:
    """Each S3 server in turn."""
    endpoint: S3Endpoint = request.getfixturevalue(SERVERS[request.param])
    return endpoint


@pytest.fixture
def folder() -> str:
    """A prefix of the test's own, as the tests share servers."""
    return f"test-{next(_folders)}/"


@pytest.fixture
def no_look_before_a_write(request: pytest.FixtureRequest) -> None:
    """Pass over moto, which looks and then writes: on a busy machine two of a race may win."""
    if "moto" in request.node.name:
        pytest.skip("moto judges a condition before it writes, not while")
