"""``cachetier pin`` and ``cachetier unpin``: steps that may not leave the node."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from cachetier_client.units import shown_size, shown_span

from cachetier.cli.output import (
    AsJson,
    Url,
    console,
    echo,
    print_json,
    reach,
    refuse,
    reported,
    show,
    table,
)
from cachetier.cli.steps import RunArgument, StepArgument

if TYPE_CHECKING:
    from cachetier_client import PinInfo


def pin(
    run: Annotated[str | None, typer.Argument(help="The training run.")] = None,
    step: Annotated[int | None, typer.Argument(help="The training step.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the pinned steps.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Keep a step on this node: it is not evicted, not trimmed and not deleted until `unpin`.

    A pin keeps what is here; what has left the node already stays in S3 until somebody reads it.

    JSON: `pin`, or with --list `pins`: `run`, `step`, `pinned_at`, `shards`, `local_shards`,
    `size_bytes`, `local_bytes`.
    """
    if list_ and run is not None:
        refuse("--list takes no step", "Leave out RUN and STEP.", as_json=as_json)
    if not list_ and (run is None or step is None):
        refuse(
            "`cachetier pin` needs RUN and STEP",
            "Give it: cachetier pin RUN STEP; --list lists what is pinned.",
            as_json=as_json,
        )
    with reported(as_json), reach(url) as client:
        if run is None or step is None:
            _show_pins(client.pins(), as_json)
        else:
            _show_pin(client.pin(run, step), as_json)


def unpin(run: RunArgument, step: StepArgument, url: Url = None, as_json: AsJson = False) -> None:
    """Let a pinned step go again, as room and `keep_local` want.

    JSON: `was_pinned`.
    """
    with reported(as_json), reach(url) as client:
        was_pinned = client.unpin(run, step)
        text = f"{run}/{step}: {'unpinned' if was_pinned else 'was not pinned'}"
        show(as_json, {"was_pinned": was_pinned}, text)


def _show_pin(pinned: PinInfo, as_json: bool) -> None:
    if as_json:
        print_json({"pin": asdict(pinned)})
        return
    here = f"{shown_size(pinned.local_bytes)} stay on this node"
    echo(f"{pinned.run}/{pinned.step}: pinned, {here}")
    gone = pinned.shards - pinned.local_shards
    if gone:
        what = "1 shard is" if gone == 1 else f"{gone} shards are"
        bring = f"cachetier restore {pinned.run} {pinned.step}"
        echo(f"{what} only in S3: `{bring}` brings them, to stay.", err=True)


def _show_pins(pins: list[PinInfo], as_json: bool) -> None:
    if as_json:
        print_json({"pins": [asdict(pinned) for pinned in pins]})
        return
    if not pins:
        echo("Nothing is pinned on this node.", err=True)
        return
    shown = table("~run", "step", "shards here", "bytes here", "of", "pinned for")
    for each in pins:
        shown.add_row(
            each.run,
            str(each.step),
            f"{each.local_shards}/{each.shards}",
            shown_size(each.local_bytes),
            shown_size(each.size_bytes),
            shown_span(max(0.0, time.time() - each.pinned_at)),
        )
    console().print(shown)
