"""Threads and processes that come late: shows which outcomes depend on speed.

Python imports this at its start when the folder is in ``PYTHONPATH``, in the tests and in every
process they start. Some threads, tasks of pools and wakes of waiters then begin up to half a second
late, as on a machine that others use. ``CACHETIER_LATE`` is the seed.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import thread as pools
from typing import Any

SHARE = 0.05
SECONDS = 0.5

_draw = random.Random(f"{os.environ.get('CACHETIER_LATE', '0')} {os.getpid()}")


def _late(call: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **options: Any) -> Any:
        if _draw.random() < SHARE:
            time.sleep(_draw.random() * SECONDS)
        return call(*args, **options)

    return called


def _lately(call: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **options: Any) -> Any:
        result = call(*args, **options)
        if _draw.random() < SHARE / 10:
            time.sleep(_draw.random() * SECONDS)
        return result

    return called


if "CACHETIER_LATE" in os.environ:
    setattr(threading.Thread, "run", _late(threading.Thread.run))  # noqa: B010
    work = pools._WorkItem
    setattr(work, "run", _late(work.run))  # noqa: B010
    setattr(threading.Event, "wait", _lately(threading.Event.wait))  # noqa: B010
