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
    places = _arguments(words, values_after)[before_run:]
    if not places:
        return words
    at = places[0]
    word = words[at].removeprefix("cachetier://").rstrip("/") or words[at]
    run, sign, rest = word.partition("/")
    usual = os.environ.get("CACHETIER_RUN")
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


def path_of(run: str, step: int) -> str:
    """Return the path of a step, as people write it."""
    return place_of(run, step, StepName.chosen()).path


def located(client: Client, run: str, step: StepOrPath) -> tuple[str, int]:
    """Return run, or branch of it, and step of what was saved as a whole.

    Raises:
        NotFoundError: Nothing was saved as a whole under this path.
    """
    if isinstance(step, int):
        return run, step
    for place in (file_place(run, step), folder_place(run, step, StepName.chosen())):
        if place.run == run or _names(client, place) is not None:
            return place.run, place.step
    raise _nothing(run, step)


def located_shard(
    client: Client, run: str, step: StepOrPath, name: str | None
) -> tuple[str, int, str | None]:
    """Return run, step and name of a shard; no name if the path is that of a whole step.

    Raises:
        NotFoundError: There is nothing under this path.
    """
    if isinstance(step, int) or name is not None:
        return *located(client, run, step), name
    alone, chosen = file_place(run, step), StepName.chosen()
    if _names(client, alone) is not None:
        return alone.run, alone.step, step[-1]
    found: tuple[str, int, str | None] | None = None
    for cut in range(len(step), 0, -1):
        place, wanted = folder_place(run, step[:cut], chosen), "/".join(step[cut:]) or None
        names = _names(client, place)
        if names is not None and (wanted is None or wanted in names):
            return place.run, place.step, wanted
        if found is None and (names is not None or place.run == run):
            found = place.run, place.step, wanted  # whose error says what lacks
    if found is None:
        raise _nothing(run, step)
    return found


def paths_below(client: Client, run: str, step: int) -> list[str]:
    """Return the paths under that of a step which were saved by themselves, as a file alone is."""
    folder = f"{path_of(run, step)}/"
    found = {path_of(each.run, each.step) for each in client.branches(run)}
    return sorted(path for path in found if path.startswith(folder))


def target(
    run: str, step: StepOrPath, name: str | None, *, is_file: bool
) -> tuple[str, int, str | None]:
    """Return where to save what is to lie under a path, and the name if the path has it."""
    if isinstance(step, int):
        return run, step, name
    first = folder_place(run, step[:1], StepName.chosen())
    if first.run == run and is_file and name is None:
        return run, first.step, "/".join(step[1:]) or None
    if is_file and name is None:
        alone = file_place(run, step)
        return alone.run, alone.step, alone.alone
    place = folder_place(run, step, StepName.chosen())
    return place.run, place.step, name


def _names(client: Client, place: Place) -> set[str] | None:
    """Return the names of a step's shards, None if there is no such step."""
    try:
        return {shard.name for shard in client.step(place.run, place.step).shards}
    except NotFoundError:
        return None


def _nothing(run: str, path: tuple[str, ...]) -> NotFoundError:
    where = "/".join((run, *path))
    return NotFoundError(
        f"nothing is saved under {where}", hint=f"`cachetier ls {run} --all` lists what is."
    )
