"""The byte budget of the drain, held whoever asks for how much."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from cachetier_client.bucket_format.uploads import PART_BYTES
from cachetier_client.io.digests import digest_of

from cachetier.drain.upload.buffers import Buffers

BUDGET_BYTES = 4 * PART_BYTES
PAGE = 4096


class Ledger:
    """Counts what is lent at once, and sees to it that borrowers do overlap."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.lent_bytes = self.most_bytes = self.lent = self.most = 0

    def take(self, size_bytes: int) -> None:
        with self._lock:
            self.lent_bytes += size_bytes
            self.lent += 1
            self.most_bytes = max(self.most_bytes, self.lent_bytes)
            self.most = max(self.most, self.lent)

    def give_back(self, size_bytes: int) -> None:
        with self._lock:
            self.lent_bytes -= size_bytes
            self.lent -= 1


@pytest.mark.parametrize("seed", range(3))
def test_many_threads_never_hold_more_than_the_budget(seed: int) -> None:
    buffers, ledger = Buffers(BUDGET_BYTES), Ledger()
    start = threading.Barrier(8)

    def borrow(number: int) -> None:
        sizes = random.Random(seed * 100 + number)
        start.wait(30)
        for _ in range(20):
            size_bytes = sizes.choice([1, PAGE, PART_BYTES // 3, PART_BYTES, 3 * PART_BYTES])
            with buffers.lend(size_bytes) as view:
                ledger.take(len(view))
                assert len(view) >= size_bytes
                assert buffers._lent_bytes <= BUDGET_BYTES
                assert buffers._held_bytes <= BUDGET_BYTES
                digest_of(view[: 1 << 20])  # lets the others run
                ledger.give_back(len(view))

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(borrow, number) for number in range(8)]:
            future.result(60)

    assert ledger.most > 1  # they did compete
    assert ledger.most_bytes <= BUDGET_BYTES
    assert buffers._lent_bytes == 0
    assert buffers._held_bytes <= BUDGET_BYTES


def test_a_borrower_beyond_the_budget_waits_for_the_others() -> None:
    buffers = Buffers(BUDGET_BYTES)
    asked, lent = threading.Event(), threading.Event()

    def borrow() -> None:
        asked.set()
        with buffers.lend(2 * PART_BYTES):
            lent.set()

    thread = threading.Thread(target=borrow)
    with buffers.lend(3 * PART_BYTES):
        thread.start()
        assert asked.wait(30)
        assert not lent.is_set()
    thread.join(30)

    assert lent.is_set()


def test_more_than_the_budget_is_lent_to_one_alone() -> None:
    buffers = Buffers(PART_BYTES)
    with buffers.lend(2 * PART_BYTES) as view:
        assert len(view) == 2 * PART_BYTES

    assert buffers._held_bytes == 0
