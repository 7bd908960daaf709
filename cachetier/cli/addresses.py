"""Steps on the command line: as RUN STEP, or as the path that people wrote them under.

``RUN/REST`` is ``RUN /REST``: where STEP goes, a number is a step of the run, and anything else a
path in it, as the file system and the frameworks save under it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from cachetier_client import NotFoundError
from cachetier_client.identity.names import MOUNT_MARK
from cachetier_client.identity.places import file_place, folder_place, place_of
from cachetier_client.identity.step_names import StepName

if TYPE_CHECKING:
    from cachetier_client import Client
    from cachetier_client.identity.places import Place

StepOrPath: TypeAlias = "int | tuple[str, ...]"


def spread(words: list[str], values_after: Mapping[str, bool], before_run: int) -> list[str]:
    """Return a command line whose run and step are two words.

    Args:
        words: Those after the verb.
        values_after: For each option whether the next word is its value.
        before_run: How many arguments come before RUN.
    """
    given, usual = _arguments(words, values_after), os.environ.get("CACHETIER_RUN")
    places = given[before_run:]
    if not places and given and usual:
        return [*words[: given[-1] + 1], usual, *words[given[-1] + 1 :]]
    if not places:
        return words
    at = places[0]
    word = words[at].removeprefix("cachetier://").rstrip("/") or words[at]
    run, sign, rest = word.partition("/")
    if sign and run and not word.startswith(MOUNT_MARK):
        return [*words[:at], run, f"/{rest}", *words[at + 1 :]]
    follows = words[places[1]] if len(places) > 1 else ""
    if usual and word.isdecimal() and not follows.isdecimal():
        return [*words[:at], usual, *words[at:]]
    return [*words[:at], word, *words[at + 1 :]]


def _arguments(words: Sequence[str], values_after: Mapping[str, bool]) -> list[int]:
    """Return where the arguments are among words and options."""
    found, is_value, only_arguments = [], False, False
    for at, word in enumerate(words):
        if is_value:
            is_value = False
        elif word == "--" and not only_arguments:
            only_arguments = True
        elif only_arguments or word == "-" or not re.match(r"-\D", word):
            found.append(at)
        else:
            is_value = values_after.get(word, False)
    return found


def path_of(run: str, step: int, name: str | None = None) -> str:
    """Return the path of a step, or of a shard, as people write it."""
    place = place_of(run, step, StepName.chosen())
    return place.path if name is None else place.path_of(name)


def located(
    client: Client, run: str, path: tuple[str, ...], *, exact: bool
) -> tuple[str, int, str | None]:
    """Return run, or branch of it, step, and name of what was saved under a path.

    There is no name if the path is that of a whole step; with ``exact`` it is that, or a file that
    was saved alone.

    Raises:
        NotFoundError: There is nothing under this path.
    """
    alone, chosen = file_place(run, path), StepName.chosen()
    if _names(client, alone) is not None:
        return alone.run, alone.step, path[-1]
    found: tuple[str, int, str | None] | None = None
    for cut in range(len(path), len(path) - 1 if exact else 0, -1):
        place, wanted = folder_place(run, path[:cut], chosen), "/".join(path[cut:]) or None
        names = _names(client, place)
        if names is not None and (wanted is None or wanted in names):
            return place.run, place.step, wanted
        if found is None and (names is not None or place.run == run):
            found = place.run, place.step, wanted  # whose error says what lacks
    if found is None:
        where = "/".join((run, *path))
        hint = f"`cachetier ls {run} --all` lists what is."
        raise NotFoundError(f"nothing is saved under {where}", hint=hint)
    return found


def paths_below(client: Client, run: str, step: int) -> list[str]:
    """Return the paths under that of a step which were saved by themselves, as a file alone is."""
    folder = f"{path_of(run, step)}/"
    found = {path_of(each.run, each.step) for each in client.branches(run)}
    return sorted(path for path in found if path.startswith(folder))


def target(
    run: str, path: tuple[str, ...], name: str | None, *, is_file: bool
) -> tuple[str, int, str | None]:
    """Return where to save what is to lie under a path, and the name if the path has it."""
    chosen = StepName.chosen()
    if not is_file or name is not None:
        place = folder_place(run, path, chosen)
        return place.run, place.step, name
    first = folder_place(run, path[:1], chosen)
    if first.run == run:
        return run, first.step, "/".join(path[1:]) or None
    alone = file_place(run, path)
    return alone.run, alone.step, alone.alone


def _names(client: Client, place: Place) -> set[str] | None:
    """Return the names of a step's shards, None if there is no such step."""
    try:
        return {shard.name for shard in client.step(place.run, place.step).shards}
    except NotFoundError:
        return None
