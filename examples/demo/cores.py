"""Who may use which cores, where one small machine plays an accelerator, a host and S3.

On a real node accelerators compute, and leave the host's cores to others. Here half of the cores
play the accelerators: the ranks keep to them in every run. S3 would be on machines of its own, so
while training counts on it being far away, its server keeps to the other half. cachetier itself is
what is being measured: it may run anywhere, and has to stay out of training's way by itself.
"""

from __future__ import annotations

import os


def of_training(available: set[int]) -> set[int]:
    """Return the first half of the cores, at least one."""
    cores = sorted(available)
    return set(cores[: max(1, len(cores) // 2)])


def of_others(available: set[int]) -> set[int]:
    """Return the cores that are not training's, or all if there is but one."""
    return available - of_training(available) or available


def available() -> set[int]:
    """Return the cores that this process may use."""
    return os.sched_getaffinity(0)
