"""``cachetier status`` and ``cachetier top``: a node at a glance, and one or several live."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from cachetier_client import CachetierClientError, ForbiddenError, NotFoundError

from cachetier.cli import options
from cachetier.cli.connection import paths_below, reach
from cachetier.cli.options import URL
from cachetier.cli.output import (
    FAILED,
    UNREACHABLE,
    console,
    echo,
    ended_by_signal,
    print_json,
    refuse,
    show,
)
from cachetier.status.rates import Node, described

if TYPE_CHECKING:
    from cachetier_client import Client
    from cachetier_client.results import UnflushedStep

    from cachetier.status.explain import Explanation

ANSWER_SECONDS = 2.0
PIPED_CELLS = 100  # its tables fill the width they are given
AT_ONCE = 16


@options.verb()
@options.optional_run_and_step
@options.client
def status(run: str | None, step: int | None, client: Client, as_json: bool) -> int:
    """Show what losing the node would cost, what it holds and drains, and what is wrong.

    With RUN STEP it says where that step stands, what it waits for, and what to do; exit 1 if
    nobody knows it.

    JSON: the status object, see docs/http.md; of a step `run`, `step`, `state`, `waits_for` (empty,
    or `ranks`, `remote`, `window`, `order`, `drain`, `nodes`, `publication` or `person`),
    `sentences`, and `next_move`, which may be empty.
    """
    if run is not None and step is None:
        refuse("`cachetier status` needs STEP", "Give it: cachetier status RUN STEP")
    if run is not None and step is not None:
        explained = _explained(client, run, step)
        move = [f"Next: {explained.next_move}"] if explained.next_move else []
        show(as_json, asdict(explained), partial(echo, *explained.sentences, *move))
        return FAILED if explained.state == "unknown" else 0
    found = client.status()
    show(as_json, found, partial(_print_status, found))
    return 0


def _explained(client: Client, run: str, step: int) -> Explanation:
    from cachetier.status import explain as rules

    try:
        found = client.step(run, step)
    except NotFoundError:
        if below := paths_below(client, run, step):
            paths = ", ".join(below)
            found_by_path = f"Step {step} of {run} was not saved as a whole, but as {paths}."
            move = f"Look at one: cachetier status {below[0]}"
            return rules.Explanation(run, step, "unknown", "", (found_by_path,), move)
        known = {each.step for level in (None, "replicated") for each in client.steps(run, level)}
        elsewhere: list[UnflushedStep] = []
        with suppress(CachetierClientError):  # the bucket is away, or an older service answers
            elsewhere = client.unflushed(run)
        return rules.explain_unknown(run, step, known, elsewhere)
    return rules.explain(found, client.status(), time.time())


def _print_status(found: dict[str, Any]) -> None:
    from cachetier.cli.screen import rendered

    console().print(rendered(found, time.time()))


# --- several, and live ----------------------------------------------------------------------------


@options.verb()
@options.option(
    "--url",
    type=URL,
    multiple=True,
    envvar="CACHETIER_URL",
    help="unix:///path/to/cachetier.sock or http://host:port; several: all in one table.",
)
@options.duration("--interval", "Time between two updates.", default="1s", least=0.1)
@options.flag("--once", help="Measure for one interval, print it, and exit.")
@options.as_json
def top(url: tuple[str, ...], interval: float, once: bool, as_json: bool) -> int:
    """Watch nodes live: what losing them would cost now, what flows, and what is stuck.

    `exposed` is the training of a run that would be lost with the node; it is red beyond
    `exposure_objective`. Rates are over the last ten seconds. q or Ctrl-C ends it. While a node is
    away it says so, and goes on asking; with --once that is exit code 4.

    JSON: one document a line: `at`, `nodes`: `url`, `state`, `error`, `exposure`, `dirty_bytes`,
    `eta_seconds`, `used_bytes`, `capacity_bytes`, `put_bytes_per_second`,
    `drained_bytes_per_second`, `restored_bytes_per_second`, `remotes`, `pending_steps`, `warnings`.
    """
    if not (once or as_json or sys.stdout.isatty()):
        refuse("top needs a terminal on standard output", "Add --once, or --json.")
    with _watching(url or [""]) as (nodes, look):
        if once:
            look()
            time.sleep(interval)
            look()
            _print(nodes, interval, as_json)
        elif as_json:
            while True:
                look()
                _print(nodes, interval, as_json)
                sys.stdout.flush()
                time.sleep(interval)
        else:
            _live(nodes, look, interval)
    return UNREACHABLE if once and any(node.error is not None for node in nodes) else 0


@contextmanager
def _watching(urls: Sequence[str]) -> Iterator[tuple[list[Node], Callable[[], None]]]:
    """Yield the nodes, and what asks all of them at the same time."""
    from concurrent.futures import ThreadPoolExecutor

    with ExitStack() as held:
        clients = [
            held.enter_context(reach(url or None, seconds=None)) for url in dict.fromkeys(urls)
        ]
        nodes = [Node(client.url) for client in clients]
        pool = held.enter_context(ThreadPoolExecutor(min(AT_ONCE, len(clients))))

        def look() -> None:
            list(pool.map(_ask, nodes, clients))

        yield nodes, look


def _ask(node: Node, client: Any) -> None:
    try:
        node.answered(client.status(timeout_seconds=ANSWER_SECONDS))
    except CachetierClientError as error:
        refused = isinstance(error, ForbiddenError)
        node.failed(error.message, time.monotonic(), refused=refused)


def _print(nodes: Sequence[Node], interval: float, as_json: bool) -> None:
    if as_json:
        print_json({"at": time.time(), "nodes": [described(node) for node in nodes]}, one_line=True)
        return
    from cachetier.cli.screen import drawn

    out = console()
    width = min(out.width, PIPED_CELLS)
    out.print(drawn(nodes, width, 0, interval), width=width)


def _live(nodes: Sequence[Node], look: Callable[[], None], interval: float) -> None:
    """Draw until q or Ctrl-C; the terminal is as before afterwards, also after SIGTERM."""
    from rich.live import Live

    from cachetier.cli.screen import drawn

    out = console()
    with (
        ended_by_signal(),
        _keys() as pressed,
        Live(console=out, screen=True, auto_refresh=False) as live,
    ):
        due = time.monotonic()
        while True:
            look()
            width, height = out.size
            live.update(drawn(nodes, width, height, interval), refresh=True)
            due = max(due + interval, time.monotonic())
            if pressed(due):
                return


@contextmanager
def _keys() -> Iterator[Callable[[float], bool | None]]:
    """Yield what waits until a time, and returns True as soon as q is pressed, if keys can be."""
    if not sys.stdin.isatty():
        yield lambda due: time.sleep(max(0.0, due - time.monotonic()))
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed(due: float) -> bool:
        while (left := due - time.monotonic()) > 0:
            if select.select([descriptor], [], [], left)[0]:
                keys = os.read(descriptor, 64)
                if not keys or b"q" in keys.lower():
                    return True
        return False

    tty.setcbreak(descriptor)
    try:
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
