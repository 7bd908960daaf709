"""A plugin of pytest: ``-p tests.stores.instead --store rclone`` puts that server in the place of
SeaweedFS, and leaves out the tests that do not ask it.
"""

from __future__ import annotations

import pytest

from cachetier.testing import fixtures
from tests.stores.servers import STORES

ASKING = {"seaweed_s3", "server", "store", "behind"}
REPLACED = "seaweedfs"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--store", choices=STORES, required=True, help="the server to judge")


def pytest_configure(config: pytest.Config) -> None:
    start = STORES[config.getoption("--store")].start
    fixtures.seaweedfs = start  # type: ignore[assignment,attr-defined]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if not _asks_the_server(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _asks_the_server(item: pytest.Item) -> bool:
    assert isinstance(item, pytest.Function)
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return not ASKING.isdisjoint(item.fixturenames) and all(
        parameters.get(name, REPLACED) == REPLACED for name in ("server", "store")
    )
