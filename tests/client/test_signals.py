"""A save from a signal handler, wherever it interrupts a save of its own thread."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from cachetier_client import Client
from cachetier_client.io.digests import BLOCK_BYTES

from tests.client.fake_service import FakeService
from tests.faults.slices import share_of

LINES = 1200
LARGE = bytes(2 * BLOCK_BYTES)
CALL_SECONDS = 60.0


class Interruption:
    """Calls ``handler`` in the middle of the main thread's line ``number`` of our code, once."""

    def __init__(self, number: int, handler: Any) -> None:
        self._left = number
        self._handler = handler
        self.happened = False

    def __call__(self, frame: FrameType, event: str, _arg: object) -> Any:
        package = "cachetier_client" in frame.f_code.co_filename
        of_library = "concurrent/futures" in frame.f_code.co_filename
        if not (package or of_library):
            return None
        if event == "line" and not self.happened:
            self._left -= 1
            if self._left == 0:
                self.happened = True
                self._handler()  # on top of this frame, as Python runs the handlers of signals
        return self


@contextmanager
def interrupted(interruption: Interruption) -> Iterator[None]:
    sys.settrace(interruption)
    try:
        yield
    finally:
        sys.settrace(None)


def test_a_save_in_the_middle_of_a_save_works(service: FakeService) -> None:
    interruptions = 0
    for line in share_of(range(1, LINES, 7)):
        with Client(service.url, run="a-run", threads=3) as client:

            def handler(client: Client = client) -> None:
                client.put_shard(LARGE, step=2, name="later", timeout_seconds=CALL_SECONDS)

            interruption = Interruption(line, handler)
            with interrupted(interruption):
                client.put_shard(LARGE, step=1, name="weights", timeout_seconds=CALL_SECONDS)
            assert bytes(client.get_shard("a-run", 1, "weights")) == LARGE
            if interruption.happened:
                assert bytes(client.get_shard("a-run", 2, "later")) == LARGE
                interruptions += 1

    assert interruptions > 5


def test_a_signal_while_threads_are_started_lets_its_handler_save(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(service.url, run="a-run", threads=3) as client:
        handled = threading.Event()

        def handler(_signal: int, _frame: FrameType | None) -> None:
            client.put_shard(LARGE, step=2, name="later", timeout_seconds=CALL_SECONDS)
            handled.set()

        start = threading.Thread.start

        def interrupting(thread: threading.Thread) -> None:
            start(thread)
            if thread.name.startswith("cachetier-blocks") and not handled.is_set():
                signal.raise_signal(signal.SIGUSR1)

        monkeypatch.setattr(threading.Thread, "start", interrupting)
        before = signal.signal(signal.SIGUSR1, handler)
        try:
            client.put_shard(LARGE, step=1, name="weights", timeout_seconds=CALL_SECONDS)
        finally:
            signal.signal(signal.SIGUSR1, before)

        assert handled.is_set()
        assert bytes(client.get_shard("a-run", 2, "later")) == LARGE
