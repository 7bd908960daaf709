"""``cachetier explain``: where a step stands and what it waits for, in sentences."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from cachetier.cli.output import AsJson, Url, echo, print_json, reach, reported
from cachetier.cli.steps import RunArgument, StepArgument

if TYPE_CHECKING:
    from cachetier_client import Client
    from cachetier_client.results import UnflushedStep

    from cachetier.status.explain import Explanation


def explain(run: RunArgument, step: StepArgument, url: Url = None, as_json: AsJson = False) -> None:
    """Say where a step stands, what it waits for, and what to do; exit 1 if nobody knows it.

    JSON: `run`, `step`, `state`, `waits_for` (empty, or `ranks`, `remote`, `window`, `order`,
    `drain`, `nodes`, `publication` or `person`), `sentences`, and `next_move`, which may be empty.
    """
    with reported(as_json), reach(url) as client:
        found = _explained(client, run, step)
    if as_json:
        print_json(asdict(found))
    else:
        echo(*found.sentences)
        if found.next_move:
            echo(f"Next: {found.next_move}")
    if found.state == "unknown":
        raise typer.Exit(1)


def _explained(client: Client, run: str, step: int) -> Explanation:
    from cachetier_client import CachetierClientError, NotFoundError

    from cachetier.status import explain as rules

    try:
        found = client.step(run, step)
    except NotFoundError:
        known = {each.step for level in (None, "replicated") for each in client.steps(run, level)}
        elsewhere: list[UnflushedStep] = []
        with suppress(CachetierClientError):  # the bucket is away, or an older service answers
            elsewhere = client.unflushed(run)
        return rules.explain_unknown(run, step, known, elsewhere)
    return rules.explain(found, client.status(), time.time())
