"""Every ``ObjectStore`` that the suite judges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import count

import pytest

from cachetier.remote.base import ObjectStore
from cachetier.remote.call_policy import CallPolicy, Retries
from cachetier.remote.neighbours import client
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.fakes.faulty_store import FaultyObjectStore
from tests.fakes.memory_store import MemoryObjectStore
from tests.fakes.neighbourhood import Neighbourhood

SERVERS = {"moto": "moto_s3", "seaweedfs": "seaweed_s3"}
IN_MEMORY: dict[str, Callable[[], ObjectStore]] = {
    "memory": MemoryObjectStore,
    "memory-readback": lambda: MemoryObjectStore(keeps_digests=False),
    "retrying": lambda: CallPolicy(MemoryObjectStore(), retries=Retries()),
    "measured": lambda: CallPolicy(MemoryObjectStore(), observe=lambda *_: None),
    "faulty": lambda: FaultyObjectStore(MemoryObjectStore()),
}

_folders = count(1)


@pytest.fixture(scope="session")
def neighbourhood(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Neighbourhood]:
    """Lend three nodes that keep copies for each other."""
    found = Neighbourhood(tmp_path_factory.mktemp("neighbours"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(client, "SILENCE_SECONDS", 30.0)  # nobody here is slow on purpose
        yield found
    found.close()


def _kept(request: pytest.FixtureRequest) -> ObjectStore:
    neighbourhood: Neighbourhood = request.getfixturevalue("neighbourhood")
    return neighbourhood.nodes[1].keeper


def _copies(request: pytest.FixtureRequest, copies: int) -> ObjectStore:
    neighbourhood: Neighbourhood = request.getfixturevalue("neighbourhood")
    return neighbourhood.nodes[0].store(copies)


KEPT: dict[str, Callable[[pytest.FixtureRequest], ObjectStore]] = {
    "keeper": _kept,
    "peer": partial(_copies, copies=1),
    "two-peers": partial(_copies, copies=2),
}


@pytest.fixture(params=[*IN_MEMORY, *KEPT, *SERVERS])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    """Each store in turn."""
    name: str = request.param
    if name in IN_MEMORY:
        return IN_MEMORY[name]()
    if name in KEPT:
        if request.path.name == "test_copies.py":
            pytest.skip("peers copy no ranges: the bytes are sent")
        return KEPT[name](request)
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
