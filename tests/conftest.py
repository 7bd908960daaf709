"""What every test gets: a clean environment, a marker for its tier, acceptance only when asked."""

from __future__ import annotations

import functools
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import botocore.session
import hypothesis
import pytest

from cachetier.drain.serve import supervisor
from cachetier.testing.fixtures import moto_s3, seaweed_s3  # noqa: F401  # shared by all tiers
from cachetier.testing.moto_server import forget_buckets
from tests.fakes.access import TOKEN
from tests.faults import slices
from tests.forked_drains import ForkedDrain

pytest_plugins = ["tests.costs", "tests.faults.counting"]

TESTS = Path(__file__).parent
TIERS = (
    "unit",
    "conformance",
    "stateful",
    "crash",
    "integration",
    "client",
    "frameworks",
    "operate",
    "fuzz",
    "acceptance",
)
ACCEPTANCE = "CACHETIER_ACCEPTANCE"

# A developer's own settings must not reach a test, nor a test a developer's bucket.
FOREIGN_PREFIXES = ("CACHETIER_", "AWS_", "SLURM_", "OMPI_", "TORCHELASTIC_")
FOREIGN_NAMES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
ID_CHARACTERS = 200
KEPT_NAMES = (ACCEPTANCE, "CACHETIER_BASE_IMAGE")
HERMETIC = {
    "CACHETIER_TOKEN": TOKEN,  # of each service, and of each client
    "AWS_ACCESS_KEY_ID": "cachetier-tests",
    "AWS_SECRET_ACCESS_KEY": "cachetier-tests-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "127.0.0.1,localhost",
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",  # glibc keeps what a thread freed in the thread's own arena
}

SLOW_DATA = hypothesis.HealthCheck.too_slow  # two shared cores are slow now and then
hypothesis.settings.register_profile(
    "default", deadline=None, print_blob=True, suppress_health_check=[SLOW_DATA]
)
hypothesis.settings.register_profile(
    "ci", hypothesis.settings.get_profile("default"), derandomize=True
)


def pytest_configure(config: pytest.Config) -> None:
    """Make the environment hermetic before a test module is imported; children inherit it."""
    # A shell without job control starts what runs in its background with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in list(os.environ):
        foreign = name.startswith(FOREIGN_PREFIXES) or name in FOREIGN_NAMES
        if foreign and name not in KEPT_NAMES:
            del os.environ[name]
    os.environ.update(HERMETIC)
    # Each client of boto3 reads megabytes of JSON anew, a tenth of a second; here they share it.
    botocore.session.create_loader = functools.cache(botocore.session.create_loader)
    supervisor.spawn = ForkedDrain  # type: ignore[assignment]
    slices.choose_slice()
    hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_report_header() -> str:
    return slices.described()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name what is large by its length: its bytes would travel in the name of each test."""
    if isinstance(val, str | bytes) and len(val) > ID_CHARACTERS:
        return f"{argname}_of_{len(val)}"
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with the folder it lives in, and skip acceptance unless asked for.

    Of the tests that mostly repeat, at length, what others check, a run takes a rotating tenth.
    """
    repeating = [item for item in items if item.get_closest_marker("soak")]
    left_out = set(repeating).difference(slices.share_of(repeating)) if repeating else set()
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    wanted = os.environ.get(ACCEPTANCE) == "1"
    skipped = pytest.mark.skip(reason=f"needs containers: set {ACCEPTANCE}=1 to run it")
    # The long ones first: workers that end with short ones end together.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for item in items:
        tier = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        if tier in TIERS and tier != "acceptance":
            item.add_marker(tier)
        if item.get_closest_marker("acceptance") and not wanted:
            item.add_marker(skipped)


@pytest.fixture
def courteous_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the drains of this test step behind everybody else, as they do on a node."""
    monkeypatch.setattr(ForkedDrain, "is_courteous", True)


@pytest.fixture(scope="module", autouse=True)
def forgotten_objects() -> Iterator[None]:
    """Drop the objects that a module leaves in moto, which keeps them all in memory."""
    yield
    forget_buckets()


@pytest.fixture(autouse=True)
def no_trace_of_verbs() -> Iterator[None]:
    """Undo what a verb that ran in this process did to files and warnings of what comes after."""
    logging.getLogger("cachetier_client.calls.unsealed").setLevel(logging.NOTSET)
    umask = os.umask(0o022)
    os.umask(umask)
    yield
    os.umask(umask)
