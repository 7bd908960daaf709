"""A folder that a trainer writes to, seen as the saves in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cachetier_client.adopt.rules import POINTERS, SaveRules
from cachetier_client.adopt.sources import SourceFile

LATE_SECONDS = 10.0  # by which files of other ranks may be newer than rank 0's marker
_POINTER_BYTES = 256


@dataclass(frozen=True, slots=True)
class TrainerFolder:
    """The saves below ``root``, each named by its path from there."""

    root: str
    rules: SaveRules

    def full(self, save: str) -> str:
        """Return where a save is."""
        return os.path.join(self.root, save)

    def step_of(self, save: str) -> int:
        """Return the step that a save is of."""
        step = self.rules.step_of(os.path.basename(save))
        assert step is not None
        return step

    def save_at(self, full: str, *, is_folder: bool) -> str | None:
        """Return the save that a file or folder is, or is part of; None if it is of none."""
        parts = os.path.relpath(full, self.root).split(os.sep)
        for number, part in enumerate(parts):
            inner = number + 1 < len(parts) or is_folder
            if part.startswith("."):
                return None
            if self.rules.step_of(part) is not None and (inner or self.rules.ends_save(part)):
                return os.path.join(*parts[: number + 1])
        return None

    def saves_below(self, top: str, enter: Callable[[str], bool]) -> Iterator[str]:
        """Yield the save that ``top`` is of, and those in it; hidden folders hold none.

        ``enter`` is called before a folder is read, and says whether to.
        """
        pending = [top]
        while pending:
            folder = pending.pop()
            save = None if folder == self.root else self.save_at(folder, is_folder=True)
            hidden = os.path.basename(folder).startswith(".") and folder != self.root
            if (hidden and save is None) or not enter(folder):
                continue
            if save is not None and folder in (top, self.full(save)):
                yield save
            for entry in _entries(folder):
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif save is None and (file := self.save_at(entry.path, is_folder=False)):
                    yield file

    def unmarked(self, save: str, files: Sequence[SourceFile]) -> str:
        """Return what a save lacks to have ended, or nothing: a marker as new as its files."""
        marked_at = max(self._marks(save, files), default=None)
        if marked_at is None:
            wanted = " or ".join(self.rules.markers_in(os.path.basename(save)))
            return f"no {wanted} says that it has ended"
        newest = max(files, key=lambda file: file.found.mtime_ns)
        if newest.found.mtime_ns > marked_at + LATE_SECONDS * 1e9:
            return f"{newest.name} is newer than what ended its last save"
        return ""

    def _marks(self, save: str, files: Sequence[SourceFile]) -> Iterator[int]:
        """Yield when each file that ends the save was written."""
        folder, last = os.path.split(self.full(save))
        for file in files:
            below = os.path.relpath(file.path, folder)  # a single file's is its name
            if below.count("/") < 2 and self.rules.ends_save(below):
                yield file.found.mtime_ns
        for pointer in POINTERS:
            try:
                with open(os.path.join(folder, pointer), encoding="utf-8") as opened:
                    if opened.read(_POINTER_BYTES).strip() in (last, str(self.step_of(save))):
                        yield os.fstat(opened.fileno()).st_mtime_ns
            except (OSError, ValueError):
                continue  # none, or none of ours


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []  # gone since
