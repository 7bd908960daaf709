"""Which commit a file that is written belongs to, and whether it is the last of it.

Every rank must find the same commit from the path alone, before the first byte is written.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from cachetier_client.errors import InvalidNameError
from cachetier_client.identity.addresses import Address
from cachetier_client.identity.places import Place, file_place, folder_place
from cachetier_client.identity.presets import Preset, recognised
from cachetier_client.identity.step_names import StepName, find_step


@dataclass(frozen=True, slots=True)
class Unit:
    """A file's place, what it is called there, and whether it ends the save."""

    place: Place
    name: str
    ends: bool


@dataclass(frozen=True, slots=True)
class CommitRules:
    """How a file system's paths are understood.

    Attributes:
        step_name: How the folders of steps are called.
        preset: What ends a save; None for ``auto``.
    """

    step_name: StepName
    preset: Preset | None

    def unit_of(self, address: Address, *, together: bool = False) -> Unit:
        """Return what a file that is written is part of.

        Args:
            address: The file's.
            together: It is one of several that end together, with a transaction or a call.

        Raises:
            InvalidNameError: The path is too long, or is that of a step's folder, or needs one.
        """
        assert address.run is not None and address.path
        run, path = address.run, address.path
        if len(path) == 1 and self.step_name.step_of(run, path[0]) is not None:
            raise InvalidNameError(
                f"cachetier://{address.text} is a step's folder, not a file",
                hint=f"Name a file in it like this: cachetier://{address.text}/name.",
            )
        preset = self.preset or recognised(path[-1], together=together)
        if preset is None or not preset.has(path[-1]):
            return Unit(file_place(run, path), path[-1], ends=True)
        depth = len(path) - 1 if preset.flat else self._depth(run, path[:-1])
        if depth == 0 and not preset.flat:
            return Unit(file_place(run, path), path[-1], ends=True)
        name = "/".join(path[depth:])
        return Unit(folder_place(run, path[:depth], self.step_name), name, preset.ended_by(name))

    def likely_places(self, address: Address) -> list[Place]:
        """Return where a file may be, the likeliest place first."""
        assert address.run is not None
        run, path = address.run, address.path
        folders = {self._depth(run, path[:-1]), len(path) - 1, 1} - {0, len(path)}
        places = [file_place(run, path)]
        places += [folder_place(run, path[:depth], self.step_name) for depth in sorted(folders)]
        with suppress(InvalidNameError):
            places.insert(0, self.unit_of(address).place)
        return list(dict.fromkeys(places))

    def _depth(self, run: str, folders: tuple[str, ...]) -> int:
        """Return how many of a file's folders are its step's folder: all, if none has a step."""
        if folders and self.step_name.step_of(run, folders[0]) is not None:
            return 1
        found = find_step(folders, outermost=True)
        return found.segment + 1 if found else len(folders)
