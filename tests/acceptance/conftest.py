"""The compose file's services, started once for all tests that need them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.stack import Stack, running


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("docker")) as stack:
        yield stack
