"""How safe something is to be, as a word of the command line."""

from __future__ import annotations

from typing import Literal, cast, get_args

from cachetier.cli.output import refuse
from cachetier.nearest import nearest

LevelName = Literal["local", "replicated", "durable"]
LEVELS: tuple[str, ...] = get_args(LevelName)


def chosen_level(word: str, option: str, as_json: bool) -> LevelName:
    """Return ``word`` if it is a level; else end with the nearest that is one."""
    if word not in LEVELS:
        meant = nearest(word, LEVELS)
        hint = f"Did you mean {meant}?" if meant else "Choose one of them."
        known = f"{', '.join(LEVELS[:-1])} and {LEVELS[-1]}"
        refuse(f"--{option} {word!r} is none of {known}", hint, as_json=as_json)
    return cast("LevelName", word)
