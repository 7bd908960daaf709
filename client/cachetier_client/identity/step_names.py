"""How folders and files of steps are called, and which step a path is about.

Frameworks name what they save in ways of their own (``step-1000``, ``epoch=1-step=16.ckpt``,
``iter_0000010``). The number after a word like *step* says which step that is, else a segment that
is a number and nothing more. A *step name* besides says how the folders are called that stand for
the steps of the run itself: a text with ``{step}`` in it, by default ``{step}`` alone. One for each
kind of run can be set in ``CACHETIER_STEP_NAME``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import SupportsIndex

from cachetier_client.errors import InvalidNameError
from cachetier_client.identity.names import STEP_LIMIT, checked_step

STEP_NAME_VARIABLE = "CACHETIER_STEP_NAME"
_FIELD = "{step}"
_FORM = re.compile(r"[A-Za-z0-9._\-=+@]*\{step\}[A-Za-z0-9._\-=+@]*")
_DIGITS = re.compile(r"[0-9]{1,16}")
_STEP_WORDS = "global_?step|step|checkpoint|ckpt|iteration|iter"


def _after(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?:^|.*[^a-z])(?:{words})s?[-_=.]?([0-9]{{1,16}})(?![0-9])", re.IGNORECASE)


# The first that matches any segment counts.
_RULES = (_after(_STEP_WORDS), _after("epoch"), re.compile(r"^([0-9]{1,16})$"))


@dataclass(frozen=True, slots=True)
class StepInPath:
    """Where in a path a step is written: in which segment, from where to where in it."""

    segment: int
    start: int
    end: int
    step: int


def find_step(segments: Sequence[str], *, outermost: bool = False) -> StepInPath | None:
    """Return the step that a path is about, or None if no rule finds one.

    Of several segments that one rule is about the innermost counts, or the outermost.
    """
    indices = range(len(segments))
    for rule in _RULES:
        for index in indices if outermost else reversed(indices):
            match = rule.match(segments[index])
            if match and int(match[1]) < STEP_LIMIT:
                return StepInPath(index, match.start(1), match.end(1), int(match[1]))
    return None


@dataclass(frozen=True, slots=True)
class StepName:
    """How the folders of a run's steps are called: a text with ``{step}`` in it.

    Attributes:
        form: The text, for runs that no entry of ``forms`` is about.
        forms: Globs of runs, each with a text of its own; the first that matches counts.
    """

    form: str = _FIELD
    forms: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for form in (self.form, *(each for _, each in self.forms)):
            if not _FORM.fullmatch(form):
                raise InvalidNameError(
                    f"step name {form!r} is not one folder's name with {{step}} in it",
                    hint=f"Set {STEP_NAME_VARIABLE} to something like 'step-{{step}}'.",
                )

    @classmethod
    def chosen(cls, text: str | None = None) -> StepName:
        """Return the one that is passed, or the environment's, or the default.

        Several are separated by commas, each but the last with a glob of runs and ``:`` before it:
        ``titan-*:step-{step},{step}``.
        """
        entries = text or os.environ.get(STEP_NAME_VARIABLE) or _FIELD
        usual, forms = _FIELD, []
        for entry in entries.split(","):
            glob, mark, form = entry.strip().rpartition(":")
            if mark:
                forms.append((glob, form))
            else:
                usual = form
        return cls(usual, tuple(forms))

    def form_of(self, run: str) -> str:
        """Return how the folders of a run's steps are called."""
        return next((form for glob, form in self.forms if fnmatchcase(run, glob)), self.form)

    def of(self, run: str, step: SupportsIndex) -> str:
        """Return the folder's name of a step."""
        return self.form_of(run).replace(_FIELD, str(checked_step(step)))

    def step_of(self, run: str, folder: str) -> int | None:
        """Return the step of the run whose folder this is, or None if it is none."""
        before, _, after = self.form_of(run).partition(_FIELD)
        figures = folder.removeprefix(before).removesuffix(after)
        if f"{before}{figures}{after}" != folder or not _DIGITS.fullmatch(figures):
            return None
        step = int(figures)
        return step if str(step) == figures and step < STEP_LIMIT else None
