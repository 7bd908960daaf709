"""Where what is saved under a path lies: in which run, or branch of it, and in which step.

A commit is what is saved as a whole: a folder, or one file alone. The folders that a run's step
name is about are the steps of the run itself. Everything else lies in a *branch* of the run, whose
name is its path, so that no two commits share a step unless they are saves of the same thing::

    run/1000/…                           run, step 1000
    run/checkpoints/step-10/…            run~checkpoints~step-!~, step 10: one branch for all
    run/final/…                          run~final~, step 0
    run/checkpoints/last.ckpt            run~checkpoints~last.ckpt, step 0: a file alone
    run/1/epoch=1-step=16.ckpt           run~1~epoch=1-step=16.ckpt, step 16
    run/1000/…, as a further commit      run~!~~<its first file>, step 1000

``!`` stands for the step, as many of them as it has digits at least. Neither ``~`` nor ``!`` is in
the grammar of paths, so each branch is of one path only.

Source: docs/design/0027-commits-by-path.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cachetier_client.errors import InvalidNameError
from cachetier_client.identity.names import BRANCH_LIMIT_CHARACTERS, GENERATION_MARK, checked_run
from cachetier_client.identity.step_names import StepInPath, StepName, find_step

STEP_MARK = "!"
_STEP_MARKS = re.compile(f"{STEP_MARK}+")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a commit lies.

    Attributes:
        run: The run, or a branch of it, as the service knows it.
        step: The step there.
        folder: The path of the folder that its names are in, the run's name first.
        alone: The name of its only file, if it is a file and not a folder.
    """

    run: str
    step: int
    folder: tuple[str, ...]
    alone: str | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The segments of its path: of the folder, or of the file."""
        return self.folder if self.alone is None else (*self.folder, self.alone)

    @property
    def path(self) -> str:
        """Its path as one text."""
        return "/".join(self.parts)

    @property
    def rank(self) -> tuple[int, str, int]:
        """Which of several that have a file is read: the least one."""
        kind = 0 if self.alone is not None else 1 + (GENERATION_MARK * 2 in self.run)
        return kind, self.run, self.step

    def path_of(self, name: str) -> str:
        """Return the path of one of its shards."""
        return "/".join((*self.folder, name))

    def name_of(self, path: Sequence[str]) -> str | None:
        """Return what a path's shard is called here, or None if it cannot be here."""
        inside = tuple(path[: len(self.folder)]) == self.folder
        name = "/".join(path[len(self.folder) :]) if inside else ""
        return name if name and self.alone in (None, name) else None


def folder_place(run: str, path: Sequence[str], step_name: StepName) -> Place:
    """Return where a folder of a run is saved as a whole.

    Raises:
        InvalidNameError: It is the run itself, or too long.
    """
    if not path:
        raise InvalidNameError(
            f"cachetier://{run} is a run, not the address of a step",
            hint=f"Save into a folder of it: cachetier://{run}/{step_name.of(run, 1000)}.",
        )
    step = step_name.step_of(run, path[0]) if len(path) == 1 else None
    if step is not None:
        return Place(run, step, (run, *path))
    found = find_step(path)
    branch = "".join(f"{GENERATION_MARK}{each}" for each in _marked(path, found))
    where = _checked(f"{run}{branch}{GENERATION_MARK}")
    return Place(where, found.step if found else 0, (run, *path))


def file_place(run: str, path: Sequence[str]) -> Place:
    """Return where a file is saved that is a commit of its own."""
    found = find_step(path)
    branch = "".join(f"{GENERATION_MARK}{each}" for each in path)
    return Place(_checked(run + branch), found.step if found else 0, (run, *path[:-1]), path[-1])


def further_place(folder: Place, first_name: str, step_name: StepName) -> Place:
    """Return where a further commit in a folder lies, which begins with file ``first_name``."""
    base = folder.run
    if GENERATION_MARK not in base:
        form = step_name.form_of(base).replace("{step}", STEP_MARK)
        base = f"{base}{GENERATION_MARK}{form}{GENERATION_MARK}"
    label = first_name.replace("/", GENERATION_MARK)
    return replace(folder, run=_checked(f"{base}{GENERATION_MARK}{label}"))


def place_of(run: str, step: int, step_name: StepName) -> Place:
    """Return the place that a run or branch of the service, and a step there, stand for."""
    base, mark, branch = run.partition(GENERATION_MARK)
    if not mark:
        return Place(run, step, (run, step_name.of(run, step)))
    plain, further, _ = branch.partition(GENERATION_MARK * 2)
    is_folder = bool(further) or plain.endswith(GENERATION_MARK)
    segments = plain.rstrip(GENERATION_MARK).split(GENERATION_MARK)
    path = (base, *(_with_step(each, step) for each in segments))
    return Place(run, step, path) if is_folder else Place(run, step, path[:-1], path[-1])


def has_one_step(run: str) -> bool:
    """Return whether a branch is a file or a folder that stands for one step alone."""
    return GENERATION_MARK in run and STEP_MARK not in run


def _marked(path: Sequence[str], found: StepInPath | None) -> list[str]:
    """Return the path's segments with the step's figures replaced by as many marks as must be."""
    marked = list(path)
    if found is not None:
        segment = marked[found.segment]
        figures = segment[found.start : found.end]
        marks = STEP_MARK * (len(figures) if figures != str(found.step) else 1)
        marked[found.segment] = f"{segment[: found.start]}{marks}{segment[found.end :]}"
    return marked


def _with_step(segment: str, step: int) -> str:
    return _STEP_MARKS.sub(lambda marks: str(step).zfill(len(marks[0])), segment)


def _checked(branch: str) -> str:
    if len(branch) > BRANCH_LIMIT_CHARACTERS:
        raise InvalidNameError(
            f"the path of {len(branch)} characters is longer than {BRANCH_LIMIT_CHARACTERS}",
            hint="Use shorter names for folders and files.",
        )
    return checked_run(branch)
