"""The file that ends a save, by framework.

Frameworks that write files call nothing when they are done.

A *preset* says which files belong to the save of a folder, and which of them is written last. By
default (``auto``) the files of ``torch.distributed.checkpoint`` and of sharded safetensors are
recognised by their names, and any other file is a commit of its own as soon as it is closed. So
whatever is written is either there or is missing something that it needs.

Source: docs/fsspec.md, "When a step is there".
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from fnmatch import fnmatchcase

from cachetier_client.errors import InvalidRequestError

PRESET_VARIABLE = "CACHETIER_PRESET"
COMMIT_VARIABLE = "CACHETIER_COMMIT_ON"
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Preset:
    """Which files of a folder are one save.

    Attributes:
        ends: Patterns of the file that is written last; without ``/``, of its last segment.
        parts: Patterns of the files that are in such a save.
        alone: Patterns of files that are not, but each a save of its own.
        flat: Whether all its files lie in one folder, which is the save; else it is the step's.
    """

    ends: tuple[str, ...]
    parts: tuple[str, ...] = ("*",)
    alone: tuple[str, ...] = ()
    flat: bool = False

    def has(self, name: str) -> bool:
        """Return whether a file is part of such a save."""
        return _matches(name, self.parts) and not _matches(name, self.alone)

    def ended_by(self, name: str) -> bool:
        """Return whether a file is the one that is written last."""
        return _matches(name, self.ends)


_CKPT = ("*.ckpt",)  # Lightning's, never one of several
_RECOGNISED = (
    Preset((".metadata",), (".metadata", "*.metadata", "*.distcp"), flat=True),
    Preset(
        ("*.safetensors.index.json",),
        ("*-?????-of-?????.safetensors", "*.safetensors.index.json"),
        flat=True,
    ),
)

PRESETS = {
    "dcp": Preset((".metadata",)),
    "lightning": Preset(("meta.pt",), alone=_CKPT),
    "transformers": Preset(("trainer_state.json",)),
    "safetensors": Preset(("*.safetensors.index.json", "model.safetensors")),
    "manual": Preset(()),  # ended by ``fs.seal``, or with a transaction
}


def chosen_preset(preset: str | None = None, commit_on: str | None = None) -> Preset | None:
    """Return the preset that is passed, or the environment's; None for ``auto``, the default.

    Args:
        preset: A name of ``PRESETS``, or ``auto``.
        commit_on: Patterns of the file that is written last, in place of a preset's.

    Raises:
        InvalidRequestError: There is no such preset.
    """
    if preset is None:
        commit_on = commit_on or os.environ.get(COMMIT_VARIABLE)
    if commit_on:
        patterns = tuple(each.strip() for each in commit_on.split(",") if each.strip())
        return Preset(patterns)
    name = preset or os.environ.get(PRESET_VARIABLE) or AUTO
    if name != AUTO and name not in PRESETS:
        raise InvalidRequestError(
            f"preset {name!r} is not one of {', '.join((AUTO, *PRESETS))}",
            hint=f"Pass one of these, or say in {COMMIT_VARIABLE} which file is written last.",
        )
    return PRESETS.get(name)


def recognised(name: str, *, together: bool) -> Preset | None:
    """Return the preset that ``auto`` has for a file, None if it is a save of its own.

    Args:
        name: The file's.
        together: It is one of several that end together.
    """
    found = next((each for each in _RECOGNISED if each.has(name)), None)
    if found is None and together and not _matches(name, _CKPT):
        return PRESETS["manual"]
    return found


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    last = name.rsplit("/", 1)[-1]
    return any(fnmatchcase(name if "/" in each else last, each) for each in patterns)
