"""The connection of a verb to its service, and what a verb says that has to wait for it.

That a service is away is known to the call at once; that one hangs, or that an address leads
nowhere, is not. So a second client looks now and then whether the service answers at all.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import cachetier_client
from cachetier_client import DeadlineError, NotDurableError, ServiceUnavailableError, StoppingError

from cachetier.cli.output import echo, system_message_of

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
    soon = repeats and _lacks_socket(url)
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
        raise NotDurableError(f"nobody has said in time that it is durable: {error}") from error


def _look_on(url: str, seconds: float, done: threading.Event, soon: bool) -> None:
    """Look until the verb is done or the service does not answer, at longer and longer intervals.

    A verb may wait for hours for something to happen in a service that is well. One that seems to
    lack its socket is looked at ``soon``: not at once, as it may just start, or the verb just fail.
    """
    pause = SOON_SECONDS if soon else SILENCE_SECONDS
    while not done.wait(pause):
        trouble = _trouble_with(url)
        if trouble is not None and not done.is_set():
            _tell(url, seconds, trouble)
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


def _lacks_socket(url: str) -> bool:
    path = url.removeprefix("unix://")
    if path == url:
        return False
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _tell(url: str, seconds: float, trouble: str) -> None:
    echo(f"Waiting up to {seconds:g} s for {url}: {trouble}; see CACHETIER_URL.", err=True)
