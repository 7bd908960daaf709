"""A folder that a trainer writes to, seen as the saves in it.

A path may name several steps, as in ``20240513/checkpoint-500/samples/step_100``. The innermost
folder with a step's word or a marker is the save, and a folder that says the same number around it;
one with a word and a marker is whole, whatever is in it.

What is called by one step number is one step: files side by side, and what ranks have in folders of
their own. Folders that are no ranks' cannot be told from copies, or from steps of other runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from cachetier_client.adopt.rules import POINTERS, SaveRules
from cachetier_client.adopt.sources import SourceFile, files_of
from cachetier_client.errors import InvalidRequestError
from cachetier_client.identity.step_names import find_step

LATE_SECONDS = 10.0  # by which files of other ranks may be newer than rank 0's marker
_POINTER_BYTES = 256
_RANK = re.compile(
    r"(?:.*[-_.=])?(?:rank|mp|[tpdecs]p|zero|shard|part|node|host|worker|gpu|device|proc|process)"
    r"s?[-_.=]?[0-9]+(?:[-_.]\w*)?",
    re.IGNORECASE,
)
_DIGITS = re.compile("[0-9]+")


@dataclass(frozen=True, slots=True)
class StepFiles:
    """The files of a step, named as shards by their path from ``base``.

    ``saves`` are the folders and files that it is made of; ``origin`` tells its saves from those of
    another folder.
    """

    saves: tuple[str, ...]
    base: str
    origin: str
    files: tuple[SourceFile, ...]

    @property
    def shown(self) -> str:
        """Return what people read of where it is."""
        more = len(self.saves) - 1
        return self.saves[0] + (f" and {more} more" if more else "")


@dataclass(frozen=True, slots=True)
class _Named:
    """A part of a path, up to ``end``, that says a step."""

    end: int
    step: int
    has_word: bool
    is_folder: bool


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
        named = self._named(parts, is_folder=is_folder)
        if not named:
            return None
        chosen = 0 if len({each.step for each in named}) == 1 else self._chosen(parts, named)
        while chosen and named[chosen - 1].step == named[chosen].step:
            chosen -= 1
        return os.path.join(*parts[: named[chosen].end])

    def _named(self, parts: Sequence[str], *, is_folder: bool) -> list[_Named]:
        named = []
        for end, part in enumerate(parts, 1):
            if self.rules.is_unfinished(part):
                break
            step, inner = self.rules.step_of(part), end < len(parts) or is_folder
            if step is not None and (inner or self.rules.ends_save(part)):
                named.append(_Named(end, step, self.rules.has_word(part), inner))
        return named

    def _chosen(self, parts: Sequence[str], named: Sequence[_Named]) -> int:
        """Return which of several parts that say several steps is the save."""

        def is_marked(number: int) -> bool:
            return self._is_marked(os.path.join(*parts[: named[number].end]))

        folders = [number for number, each in enumerate(named) if each.is_folder]
        good = [each for each in folders if named[each].has_word or is_marked(each)]
        if good and not is_marked(good[-1]):
            outer = [each for each in good if named[each].has_word and is_marked(each)]
            return (outer or good)[-1]
        if good:
            return good[-1]
        return 0 if named[-1].is_folder else len(named) - 1  # a file with a word, else a number

    def _is_marked(self, save: str) -> bool:
        name, names = os.path.basename(save), (each.name for each in _entries(self.full(save)))
        if any(self.rules.ends_save(f"{name}/{each}") for each in names):
            return True
        return next(self._pointed(save), None) is not None

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
                elif (file := self.save_at(entry.path, is_folder=False)) not in (None, save):
                    yield str(file)

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
        folder = os.path.dirname(self.full(save))
        for file in files:
            below = os.path.relpath(file.path, folder)  # a single file's is its name
            if below.count("/") < 2 and self.rules.ends_save(below):
                yield file.found.mtime_ns
        yield from self._pointed(save)

    def _pointed(self, save: str) -> Iterator[int]:
        """Yield when each file beside a save that names it was written."""
        folder, last = os.path.split(self.full(save))
        for pointer in POINTERS:
            try:
                with open(os.path.join(folder, pointer), encoding="utf-8") as opened:
                    if opened.read(_POINTER_BYTES).strip() in (last, str(self.step_of(save))):
                        yield os.fstat(opened.fileno()).st_mtime_ns
            except (OSError, ValueError):
                continue  # none, or none of ours

    # --- the step --------------------------------------------------------------------------------

    def is_save(self, save: str) -> bool:
        """Return whether this is still a save, and no folder around others: a job's, or a date."""
        full = self.full(save)
        if self.save_at(full, is_folder=os.path.isdir(full)) != save:
            return False
        inner = self.saves_below(full, lambda _folder: True) if os.path.isdir(full) else ()
        return all(each == save for each in inner)

    def step_files(self, saves: Sequence[str]) -> StepFiles:
        """Return the files of a step, of which these are all saves.

        Raises:
            InvalidRequestError: They cannot be told apart.
            OSError: They cannot be read, or are gone.
        """
        saves = sorted(saves)
        if len({self._kin(save) for save in saves}) > 1:
            raise self._ambiguous(saves)
        parents = [os.path.dirname(save) for save in saves]
        alone = len(saves) == 1 and os.path.isdir(self.full(saves[0]))
        base = saves[0] if alone else os.path.commonpath(parents)
        files = (file for save in saves for file in files_of(self.full(save)))
        named = (replace(file, name=os.path.relpath(file.path, self.full(base))) for file in files)
        whole = alone and self._kin(saves[0]) == saves[0]
        origin = saves[0] if whole else f"step {self.step_of(saves[0])}"
        return StepFiles(
            tuple(saves), base, origin, tuple(sorted(named, key=lambda each: each.name))
        )

    def changed_at(self, step: StepFiles) -> float:
        """Return when a file last came to a step's folders, or went from them, in UTC seconds."""
        walks = (os.walk(self.full(save)) for save in step.saves)
        folders = {folder for walk in walks for folder, _, _ in walk}
        folders |= {os.path.dirname(file.path) for file in step.files}
        return max(os.stat(folder).st_mtime for folder in folders)

    def unended(self, step: StepFiles) -> str:
        """Return what a step lacks to have ended, or nothing: markers, and files of every rank."""
        for save in step.saves:
            if trouble := self.unmarked(save, files_of(self.full(save))):
                return trouble
        ranks = {rank for save in step.saves if (rank := _rank_of(save)) is not None}
        for rank in sorted(ranks):
            folder, name = os.path.split(rank)
            for entry in _entries(self.full(folder)):
                beside = os.path.join(folder, entry.name)
                is_rank = entry.is_dir(follow_symlinks=False) and _like(entry.name) == _like(name)
                if is_rank and beside not in ranks:
                    return f"{beside} has nothing of it"
        return ""

    def unsure(self, step: StepFiles) -> str:
        """Return what in a folder without a marker may be a step of its own, or nothing."""
        (save, *others), number = step.saves, self.step_of(step.saves[0])
        if others or not os.path.isdir(self.full(save)) or not self.unended(step):
            return ""
        has_word = self.rules.has_word(os.path.basename(save))
        for file in step.files:
            parts = file.name.split("/")
            for each in self._named(parts, is_folder=False):
                if each.step != number and each.has_word >= has_word:
                    return f"{parts[each.end - 1]} in {save} may be a step as well"
        return ""

    def _kin(self, save: str) -> str:
        """Return what is equal for all that may be parts of one step, of two folders never."""
        parent, name = os.path.split(save)
        ranks = os.path.join(*map(_like, parent.split(os.sep)))
        if not os.path.isdir(self.full(save)):
            return os.path.join(ranks, "")
        return save if ranks == parent else os.path.join(ranks, name)

    def _ambiguous(self, saves: Sequence[str]) -> InvalidRequestError:
        plain = min(map(os.path.basename, saves), key=len)
        found, forms = find_step([plain]), ""
        if found is not None and plain[found.start : found.end] == str(found.step):
            form = f"{plain[: found.start]}{{step}}{plain[found.end :]}"
            forms = f", or say how steps are named: --step-name '{form}'"
        hint = f"Remove all but one of them{forms}."
        if len({os.path.dirname(save) for save in saves}) > 1:
            hint = "Watch each of these folders by itself, for a run of its own."
        step = self.step_of(saves[0])
        message = f"not taken: step {step} is in several places: {', '.join(saves)}"
        return InvalidRequestError(message, hint=hint)


def _rank_of(save: str) -> str | None:
    """Return the folder of one rank among others that a save is in, or None."""
    parts = save.split(os.sep)[:-1]
    at = next((end for end, part in enumerate(parts, 1) if _RANK.fullmatch(part)), None)
    return None if at is None else os.path.join(*parts[:at])


def _like(part: str) -> str:
    """Return what a folder's name has in common with those of other ranks."""
    return _DIGITS.sub("#", part) if _RANK.fullmatch(part) else part


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []  # gone since
