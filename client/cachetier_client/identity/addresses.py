"""Addresses of steps and shards as one text: ``cachetier://<run>/<step>/<name>``.

Frameworks name a step's folder in ways of their own (``step-1000``, ``checkpoint-1000``). A *step
name* says which: a text with ``{step}`` in it, by default ``{step}`` alone. One that says
``step-{step}`` is set once, in ``CACHETIER_STEP_NAME``, so that whoever lists a run finds the
folders under the names they were written with. A folder of another form is an error, never a guess.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import SupportsIndex

from cachetier_client.errors import InvalidNameError
from cachetier_client.identity.names import checked_name, checked_run, checked_step

SCHEME = "cachetier"
STEP_NAME_VARIABLE = "CACHETIER_STEP_NAME"
_FIELD = "{step}"
_FORM = re.compile(r"[A-Za-z0-9._\-=+@]*\{step\}[A-Za-z0-9._\-=+@]*")
_FIGURES = re.compile(r"\d+")
_DIGITS = re.compile(r"[0-9]{1,16}")


@dataclass(frozen=True, slots=True)
class Address:
    """A shard, or a step (no ``name``), or a run (no ``step``), or all runs (no ``run``)."""

    run: str | None = None
    step: int | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class StepName:
    """How the folders of steps are called: a text with ``{step}`` in it."""

    form: str = _FIELD

    def __post_init__(self) -> None:
        if not _FORM.fullmatch(self.form):
            raise InvalidNameError(
                f"step name {self.form!r} is not one folder's name with {{step}} in it",
                hint=f"Set {STEP_NAME_VARIABLE} to something like 'step-{{step}}'.",
            )

    @classmethod
    def chosen(cls, form: str | None = None) -> StepName:
        """Return the one that is passed, or the environment's, or the default."""
        return cls(form or os.environ.get(STEP_NAME_VARIABLE) or _FIELD)

    def of(self, step: SupportsIndex) -> str:
        """Return the folder's name of a step."""
        return self.form.replace(_FIELD, str(checked_step(step)))

    def step_of(self, folder: str) -> int:
        """Return the step whose folder this is; raise InvalidNameError if it is none."""
        before, _, after = self.form.partition(_FIELD)
        figures = folder.removeprefix(before).removesuffix(after)
        if f"{before}{figures}{after}" == folder and _DIGITS.fullmatch(figures):
            step = checked_step(int(figures))
            if str(step) == figures:
                return step
        raise InvalidNameError(f"{folder!r} is not a step's folder", hint=self._hint(folder))

    def _hint(self, folder: str) -> str:
        found = list(_FIGURES.finditer(folder))
        if not found:
            return f"Steps are called like {self.of(1000)!r} here."
        start, end = found[-1].span()
        return (
            f"Steps are called like {self.of(1000)!r} here. If this run's all look like this one, "
            f"set {STEP_NAME_VARIABLE}='{folder[:start]}{_FIELD}{folder[end:]}'."
        )


def parse(text: str | os.PathLike[str], step_name: StepName) -> Address:
    """Return what an address is about.

    Args:
        text: With ``cachetier://`` in front or without; ``/`` at the end does not matter.
        step_name: How folders of steps are called.

    Raises:
        InvalidNameError: Not in the grammar, or another scheme's; says what is wrong with it.
    """
    plain = os.fspath(text)
    scheme, mark, rest = plain.partition("://")
    if mark and scheme != SCHEME:
        raise InvalidNameError(f"{plain!r} is not an address of cachetier", hint=_SHAPE)
    parts = (rest if mark else plain).strip("/").split("/", 2)
    if parts == [""]:
        return Address()
    run = checked_run(parts[0])
    step = step_name.step_of(parts[1]) if len(parts) > 1 else None
    name = checked_name(parts[2]) if len(parts) > 2 else None
    return Address(run, step, name)


def parse_step(text: str | os.PathLike[str], step_name: StepName) -> tuple[str, int]:
    """Return run and step of a step's address; raise InvalidNameError if it is none."""
    found = parse(text, step_name)
    if found.run is None or found.step is None or found.name is not None:
        raise InvalidNameError(f"{os.fspath(text)!r} is not the address of a step", hint=_SHAPE)
    return found.run, found.step


def address_of_step(run: str, step: SupportsIndex, step_name: StepName) -> str:
    """Return the address of a step."""
    return f"{SCHEME}://{checked_run(run)}/{step_name.of(step)}"


_SHAPE = "Addresses look like cachetier://run/1000 and cachetier://run/1000/model/rank-0."
