"""fsspec's own tests of a file system, over ``cachetier://``; the bucket is in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from cachetier_client.filesystem.filesystem import CachetierFileSystem
from fsspec.tests import abstract

from tests.integration.serving import serving


class Fixtures(abstract.AbstractFixtures):  # type: ignore[misc]
    @pytest.fixture
    def fs(self) -> Iterator[CachetierFileSystem]:
        with serving() as served:
            made = CachetierFileSystem(service_url=served.unix_url)
            yield made
            made.client.close()

    @pytest.fixture
    def fs_path(self) -> str:
        return "suite/tests"

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return lambda *parts: "/".join(parts)


class TestGet(abstract.AbstractGetTests, Fixtures): ...  # type: ignore[misc]


class TestPut(abstract.AbstractPutTests, Fixtures): ...  # type: ignore[misc]


class TestCopy(abstract.AbstractCopyTests, Fixtures):  # type: ignore[misc]
    # Two minutes of listing what was just removed: `make soak`. Get and Put have the same globs.
    test_copy_glob_edge_cases = pytest.mark.soak(
        abstract.AbstractCopyTests.test_copy_glob_edge_cases
    )


class TestOpen(abstract.AbstractOpenTests, Fixtures): ...  # type: ignore[misc]


class TestPipe(abstract.AbstractPipeTests, Fixtures): ...  # type: ignore[misc]
