"""``cachetier gc``: say what nobody needs any more; with ``--yes`` remove it."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from cachetier_client.units import counted, parsed_span, shown_size

from cachetier.cli.bars import line_shown
from cachetier.cli.output import (
    AsJson,
    Url,
    console,
    echo,
    print_json,
    reach,
    read_option,
    reported,
    table,
)

LISTED = 20
COLLECT_SECONDS = 300.0
_TITLES = {
    "incomplete_save": "incomplete",
    "replaced_save": "replaced",
    "set_aside_file": "set aside",
    "unfinished_upload": "upload",
}


def gc(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove it; else only say it.")] = False,
    older_than: Annotated[
        str, typer.Option("--older-than", help="Leave what is younger: 12h, 7d, 0.")
    ] = "1d",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Say what nobody needs any more, and with --yes remove it.

    That is: saves that will never be whole while a newer step is published, saves that another
    save of their step replaced, files in lost+found that the catalog can account for, and multipart
    uploads of saves that have ended. Never what is pinned, and nothing that a step can be restored
    from. What other nodes may still complete is left, and said to be. Exit 1 if a remote did not
    answer: what is there stays.

    JSON: `dry_run`, `found`, `size_bytes`, `objects`, `rubbish` (the first 1000: `kind`, `what`,
    `why`, `run`, `step`, `save_id`, `remote`, `shards`, `size_bytes`, `objects`), `left` (the first
    1000: `what`, `why`, `run`, `step`, `save_id`, `command`), `unanswered`.
    """
    hint = "Write 30min, 12h or 7d."
    older_than_seconds = read_option("older-than", older_than, parsed_span, hint, as_json)
    with reported(as_json), reach(url, seconds=COLLECT_SECONDS) as client:
        with line_shown(as_json, lambda: "looking, here and in S3, for what nobody needs"):
            found = client.collect(
                dry_run=not yes,
                older_than_seconds=older_than_seconds,
                timeout_seconds=COLLECT_SECONDS,
            )
        if as_json:
            print_json(found)
        else:
            _show(found)
    if found["unanswered"]:
        raise typer.Exit(1)


def _show(found: dict[str, Any]) -> None:
    if found["found"]:
        _show_rubbish(found)
    elif found["unanswered"]:
        echo("Not everything could be asked.")
    else:
        echo("There is nothing to collect.")
    _show_left(found["left"])
    for unanswered in found["unanswered"]:
        echo(f"Not asked: {unanswered}. What is there was left.", err=True)


def _show_left(left: list[dict[str, Any]]) -> None:
    for each in left[:LISTED]:
        echo(f"Left: {each['what']}: {each['why']}.")
        if each["command"]:
            echo(f"      If nobody will complete it: {each['command']}")
    if len(left) > LISTED:
        echo(f"... and {len(left) - LISTED} more that are left")


def _show_rubbish(found: dict[str, Any]) -> None:
    shown = table("~", "~what", "~why", "here", "objects")
    for each in found["rubbish"][:LISTED]:
        shown.add_row(
            _TITLES.get(each["kind"], each["kind"]),
            each["what"],
            each["why"],
            shown_size(each["size_bytes"]) if each["size_bytes"] else "-",
            str(each["objects"]) if each["objects"] else "-",
        )
    console().print(shown)
    if found["found"] > LISTED:
        echo(f"... and {found['found'] - LISTED} more")
    size = shown_size(found["size_bytes"])
    count = counted(found["found"], "thing")
    if found["dry_run"]:
        echo(f"{count}, {size} on this node. Nothing was removed: add --yes.")
    else:
        later = "; the drain now deletes the objects" if found["objects"] else ""
        echo(f"Removed {count}, {size} on this node{later}.")
