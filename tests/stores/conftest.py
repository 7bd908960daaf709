"""What needs programs that nobody has at hand is for ``make stores`` alone."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return None if config.getoption("--store", None) else True
