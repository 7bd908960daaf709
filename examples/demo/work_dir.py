"""The directory that a demo works in, made anew each time."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

MARK = ".cachetier-demo"  # a directory with it may be deleted


def made_anew(work_dir: Path) -> Path:
    """Empty the directory of an earlier demo, and nobody else's; return it, with ``logs/`` in it.

    Ends the process if it holds something else.
    """
    mark = work_dir / MARK
    if work_dir.exists() and any(work_dir.iterdir()) and not mark.exists():
        sys.exit(f"{work_dir} holds something else: give the demo a directory of its own")
    if work_dir.exists():
        shutil.rmtree(work_dir)
    (work_dir / "logs").mkdir(parents=True)
    mark.touch()
    return work_dir


def shown(path: Path) -> str:
    """Return a path as a person finds it from here."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
