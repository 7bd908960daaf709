"""What ranks restore stays on the node, or does not, as the setting says; they have it anyway."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cachetier_client import Client
from cachetier_client.io.digests import BLOCK_BYTES

from tests.fakes.bodies import noise
from tests.integration.serving import client_by, serving
from tests.integration.test_remote_ranges import Fetched, evict

SIZE_BYTES = 5 * BLOCK_BYTES + 1
RANKS = 4


@pytest.mark.parametrize("door", ["unix", "http"])
@pytest.mark.parametrize(
    ("keep", "low_watermark", "stays"),
    [("on", 0.01, 1), ("off", 0.8, 0), ("auto", 0.8, 1), ("auto", 0.01, 0)],
)
def test_ranks_have_it_once_and_it_stays_as_the_setting_says(
    door: str, keep: str, low_watermark: float, stays: int
) -> None:
    data, fetched = noise(SIZE_BYTES), Fetched()
    marks: dict[str, Any] = {"watermarks": [low_watermark, 0.9], "restore_keep": keep}
    with serving(observe=fetched.observe, **marks) as service:
        with Client(service.unix_url) as client:
            client.put_shard(data, run="r", step=1, name="x", save_id="s")
        service.drained("x", data)
        evict(service)

        with client_by(door, service) as client, ThreadPoolExecutor(RANKS) as ranks:
            found = ranks.map(lambda _: client.get_shard("r", 1, "x") == data, range(RANKS))
            assert list(found) == [True] * RANKS

        assert fetched.size_bytes == SIZE_BYTES
        behind = service.service.operations.restore.open("r", 1, "x", 20.0)  # waits for the rest
        assert behind.descriptor is not None
        os.close(behind.descriptor)
        assert len(service.data_files()) == stays
