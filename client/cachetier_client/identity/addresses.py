"""Addresses as one text: ``cachetier://<run>/<path>``, of a step's folder or of a file in it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import SupportsIndex

from cachetier_client.errors import InvalidNameError
from cachetier_client.identity.names import checked_name, checked_run
from cachetier_client.identity.places import folder_place, place_of
from cachetier_client.identity.step_names import StepName

SCHEME = "cachetier"


@dataclass(frozen=True, slots=True)
class Address:
    """A path in a run, or the run (no ``path``), or all runs (no ``run``)."""

    run: str | None = None
    path: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The path, the run's name first."""
        return "/".join((self.run, *self.path)) if self.run is not None else ""


def parse(text: str | os.PathLike[str]) -> Address:
    """Return what an address is about.

    Args:
        text: With ``cachetier://`` in front or without; ``/`` at the end does not matter.

    Raises:
        InvalidNameError: Not in the grammar, or another scheme's; says what is wrong with it.
    """
    plain = os.fspath(text)
    scheme, mark, rest = plain.partition("://")
    if mark and scheme != SCHEME:
        raise InvalidNameError(f"{plain!r} is not an address of cachetier", hint=_SHAPE)
    run, _, path = (rest if mark else plain).strip("/").partition("/")
    if not run:
        return Address()
    if "~" in run:
        raise InvalidNameError(f"{run!r} is not the name of a run", hint=_SHAPE)
    return Address(checked_run(run), tuple(checked_name(path).split("/")) if path else ())


def parse_step(text: str | os.PathLike[str], step_name: StepName) -> tuple[str, int]:
    """Return run, or branch of it, and step of a step's folder.

    Raises:
        InvalidNameError: It is the address of none.
    """
    found = parse(text)
    if found.run is None:
        raise InvalidNameError(f"{os.fspath(text)!r} is not the address of a step", hint=_SHAPE)
    place = folder_place(found.run, found.path, step_name)
    return place.run, place.step


def address_of_step(run: str, step: SupportsIndex, step_name: StepName) -> str:
    """Return the address of a step, of a run or of a branch of it."""
    return f"{SCHEME}://{place_of(checked_run(run), step.__index__(), step_name).path}"


_SHAPE = "Addresses look like cachetier://run/1000 and cachetier://run/1000/model/rank-0."
