"""A temporary directory below the cache directory, removed whatever happens."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = ".doctor-"
LEFT_BEHIND_SECONDS = 3600.0


@contextmanager
def scratch(cache_dir: Path, prefix: str = PREFIX) -> Iterator[Path]:
    """Lend an empty directory on the disk of ``cache_dir``, which need not exist yet.

    What had to be made for it is removed with it, and so is what a doctor left that was killed
    more than an hour ago.

    Raises:
        OSError: It cannot be made.
    """
    made = _missing(cache_dir)
    try:
        cache_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(cache_dir, prefix)
        place = cache_dir / f"{prefix}{secrets.token_hex(4)}"
        place.mkdir(mode=0o700)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)
    finally:
        for directory in made:
            with contextlib.suppress(OSError):  # not made, or somebody uses it by now
                directory.rmdir()


def _missing(directory: Path) -> list[Path]:
    """Return the directories that do not exist yet, the innermost first."""
    missing = []
    for each in (directory, *directory.parents):
        if each.exists():
            break
        missing.append(each)
    return missing


def _sweep(cache_dir: Path, prefix: str) -> None:
    before = time.time() - LEFT_BEHIND_SECONDS
    for left in cache_dir.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if left.stat().st_mtime < before and left.stat().st_uid == os.geteuid():
                shutil.rmtree(left, ignore_errors=True)
