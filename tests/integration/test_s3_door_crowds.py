"""Many at the S3 door: what one of them asks for keeps no thread from the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cachetier.access.principals import Principal
from cachetier.access.roles import Role
from cachetier.doors.http.limits import RequestLimits
from tests.integration.s3door import DoorServed, door_over

GREEDY = Principal("greedy", Role.WRITE)
SECONDS = 60.0


@pytest.fixture
def door(tmp_path: Path) -> Iterator[DoorServed]:
    with door_over(tmp_path, principals=[GREEDY], limits=RequestLimits(requests=8)) as served:
        yield served


def test_lists_of_one_tenant_that_wait_for_the_bucket_keep_no_thread_from_others(
    door: DoorServed, monkeypatch: pytest.MonkeyPatch
) -> None:
    door("PUT", "/bucket/train/a", b"x")
    began, release = threading.Semaphore(0), threading.Event()
    answered = door.objects.list

    def slow_list(*arguments: Any) -> Any:
        began.release()
        assert release.wait(SECONDS)
        return answered(*arguments)

    monkeypatch.setattr(door.objects, "list", slow_list)
    greedy = door.caller("greedy")
    with ThreadPoolExecutor(12) as pool:
        lists = [pool.submit(greedy, "GET", "/bucket?list-type=2") for _ in range(12)]
        try:
            for _ in range(6):
                assert began.acquire(timeout=SECONDS)
            assert door("GET", "/bucket/train/a").body == b"x"
            assert door("HEAD", "/bucket/train/a").status == 200
            assert door("PUT", "/bucket/train/b", b"y").status == 200
        finally:
            release.set()
        statuses = [each.result().status for each in lists]
    assert set(statuses) <= {200, 503} and statuses.count(200) >= 6
