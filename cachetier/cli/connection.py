"""The connection of a verb to its service, and what a verb says that has to wait for it.

That a service is away is known to the call at once; that one hangs, or that an address leads
nowhere, is not. So a second client looks now and then whether the service answers at all.

Steps are called RUN STEP, or by the path that people wrote them under. ``RUN/REST`` is ``RUN
/REST``: where STEP goes, a number is a step of the run, and anything else a path in it, as the file
system and the frameworks save under it.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeAlias

import cachetier_client
from cachetier_client import (
    DeadlineError,
    NotDurableError,
    NotFoundError,
    ServiceUnavailableError,
    StoppingError,
)
from cachetier_client.identity.names import MOUNT_MARK
from cachetier_client.identity.places import file_place, folder_place, place_of
from cachetier_client.identity.step_names import StepName

from cachetier.cli.output import echo, system_message_of

if TYPE_CHECKING:
    from cachetier_client import Client
    from cachetier_client.identity.places import Place

LOOK_SECONDS = 30.0  # what the client gives a call that only looks
SOON_SECONDS = 0.3
SILENCE_SECONDS = 2.0
ANSWER_SECONDS = 2.0
LONGEST_SILENCE_SECONDS = 30.0


@contextmanager
def reach(
    url: str | None, *, patient: bool = False, seconds: float | None = LOOK_SECONDS
) -> Iterator[cachetier_client.Client]:
    """Yield a client that never goes past its service: only this process could seal that again.

    Args:
        url: Default: the environment's.
        patient: While there is no service, repeat until the call's deadline, for verbs that move
            bytes; others say so at once. ``CACHETIER_FALLBACK`` (wait, fail) decides for all.
        seconds: How long a call of the verb may take, to be named where it waits for a service
            that does not answer; None: nothing is said.
    """
    chosen = os.environ.get("CACHETIER_FALLBACK")  # the client reads it as well, and judges it
    if chosen in ("wait", "fail"):  # s3 is for ranks
        patient = chosen == "wait"
    # One verb puts and another seals: what this process leaves unsealed is no news.
    logging.getLogger("cachetier_client.calls.unsealed").setLevel(logging.ERROR)
    with cachetier_client.Client(url, fallback="wait" if patient else "fail") as client:
        if seconds is None:
            yield client
            return
        with announced_wait(client.url, seconds, repeats=patient):
            yield client


@contextmanager
def announced_wait(url: str, seconds: float, *, repeats: bool) -> Iterator[None]:
    """Say on standard error, in a line, if the service at ``url`` keeps the verb inside waiting.

    Args:
        url: As the client has it.
        seconds: The verb's own patience, for the line.
        repeats: Whether the verb asks again while nobody is there. One that does not has its error
            before there is anything to say.
    """
    is_socket, path = url.startswith("unix://"), url.removeprefix("unix://")
    soon = repeats and is_socket and not os.path.exists(path)
    done = threading.Event()
    watch = threading.Thread(target=_look_on, args=(url, seconds, done, soon), daemon=True)
    with suppress(RuntimeError):  # a process that may have no more threads waits in silence
        watch.start()
    try:
        yield
    finally:
        done.set()


@contextmanager
def not_durable_if_answering(url: str | None) -> Iterator[None]:
    """Say of a deadline that is over inside that bytes are not durable, if ``url`` answers.

    Then the service was only too busy to say so in time; of one that hangs nobody can tell.
    """
    try:
        yield
    except DeadlineError as error:
        if _trouble_with(url) is not None:
            raise
        raise NotDurableError(f"no answer in time whether it is durable: {error}") from error


def _look_on(url: str, seconds: float, done: threading.Event, soon: bool) -> None:
    """Look until the verb is done or the service does not answer, at longer and longer intervals.

    A verb may wait for hours for something to happen in a service that is well. One that seems to
    lack its socket is looked at ``soon``: not at once, as it may just start, or the verb just fail.
    """
    pause = SOON_SECONDS if soon else SILENCE_SECONDS
    while not done.wait(pause):
        trouble = _trouble_with(url)
        if trouble is not None and not done.is_set():
            echo(f"Waiting up to {seconds:g} s for {url}: {trouble}; see CACHETIER_URL.", err=True)
            return
        pause = min(2 * max(pause, SILENCE_SECONDS / 2), LONGEST_SILENCE_SECONDS)


def _trouble_with(url: str | None) -> str | None:
    """Return why the service does not answer, or None if it does, be it with a refusal."""
    try:
        with cachetier_client.Client(url, fallback="fail") as client:
            client.status(timeout_seconds=ANSWER_SECONDS)
    except ServiceUnavailableError as error:
        return system_message_of(error) or "nobody answers there"
    except DeadlineError:
        return "it does not answer"
    except StoppingError:
        return "it is stopping"
    except Exception:  # the verb's own call hears of it, and says so
        return None
    return None


# --- what steps and shards are called -------------------------------------------------------------

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
        hint = f"`cachetier ls {run} --all` lists the steps that exist."
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
