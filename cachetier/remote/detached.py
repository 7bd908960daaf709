"""Make a call on a thread of its own, so that nobody waits for it for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Answer = TypeVar("Answer")


def alone(name: str, call: Callable[[], Answer]) -> Future[Answer]:
    """Begin ``call``; it is left to die with the process where it never ends.

    Raises:
        RuntimeError: No thread is left.
    """
    answer = Future[Answer]()

    def calling() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=calling, name=name, daemon=True).start()
    return answer
