"""The setup of the service's process: the signals that end it, and its descriptors.

The first signal asks, the second ends the process at once.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def end_as_any_process() -> None:
    """Let SIGTERM end the first process of a container as well: the kernel drops it for that one.

    For the start, which may take minutes, until ``ending_signals``. A signal that was dropped would
    not be sent again, and the service be killed at the end of its stop time, without a flush.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _frame: os._exit(128 + number))


def have_descriptors() -> None:
    """Let this process open as many files as it may: each put and each connection takes some."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextmanager
def ending_signals() -> Iterator[Callable[[], int]]:
    """Take SIGTERM and SIGINT over; yields what waits for the first and returns its number.

    The interpreter itself writes the number into a pipe: a handler in Python would not run while
    its thread is about to block in the read.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writer, False)
    asked = False

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)
        asked = True

    numbers = signal.SIGTERM, signal.SIGINT
    previous_pipe = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    previous = {number: signal.signal(number, on_signal) for number in numbers}

    def first_signal() -> int:
        while (number := os.read(reader, 1)[0]) not in numbers:
            pass  # another signal that somebody handles in Python
        return number

    try:
        yield first_signal
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous_pipe)
        os.close(reader)
        os.close(writer)
