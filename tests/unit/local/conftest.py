"""The store of a node, for tests that need nothing around it."""

from __future__ import annotations

import pytest

from cachetier.local.store import Store
from tests.stateful.node import Node


@pytest.fixture
def store(node: Node) -> Store:
    return node.store
