"""``cachetier bench``: what this node does through its service, beside its bare disk."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from cachetier_client.units import parsed_size, shown_size, shown_time

from cachetier.cli.bars import StepLine, line_shown
from cachetier.cli.output import (
    AsJson,
    Url,
    console,
    echo,
    ended_by_signal,
    print_json,
    reach,
    read_option,
    reported,
    table,
)

if TYPE_CHECKING:
    from cachetier.doctor.nodebench import NodeBenchOptions, Row

_PAGE_BYTES = 4096


def bench(
    size: Annotated[
        str, typer.Option("--size", help="Size of a large shard: '256 MiB'.")
    ] = "256 MiB",
    ranks: Annotated[
        int, typer.Option("--ranks", min=1, max=64, help="Shards put, and got, at once.")
    ] = 1,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, max=100, help="How often; medians are shown.")
    ] = 3,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Measure puts and gets through the service, and the same bytes on its bare disk.

    Needs a service that runs (`cachetier serve`, or `cachetier dev` to try). Uses a run of its own,
    which never becomes whole, and deletes it.

    JSON: `measured`, of each figure `what`, `unit`, `service`, `disk` (null where the directory is
    not ours) and `ratio`; and `size_bytes`, `ranks`, `rounds`, `directory`, `filesystem`.
    """
    plan = _plan(size, ranks, rounds, as_json)
    with reported(as_json), ended_by_signal():
        from cachetier.doctor.nodebench import NodeBench

        with reach(url, seconds=None) as client:
            disk = client.status()["disk"]
            directory = _own(Path(disk["directory"]))
            now = StepLine("measuring")
            measure = NodeBench(client, plan, directory, on_step=now.step)
            with line_shown(as_json, lambda: now.text):
                rows = measure.run()
        document = {
            "size_bytes": plan.size_bytes,
            "ranks": plan.ranks,
            "rounds": plan.rounds,
            "directory": disk["directory"],
            "filesystem": disk["filesystem"],
            "measured": [{**asdict(row), "ratio": row.ratio} for row in rows],
        }
        if as_json:
            print_json(document)
        else:
            _print(document, rows)


def _plan(size: str, ranks: int, rounds: int, as_json: bool) -> NodeBenchOptions:
    from cachetier.doctor.nodebench import NodeBenchOptions

    size_bytes = read_option("size", size, parsed_size, "Give a size such as '256 MiB'.", as_json)
    return NodeBenchOptions(max(1, size_bytes // _PAGE_BYTES) * _PAGE_BYTES, ranks, rounds)


def _own(directory: Path) -> Path | None:
    """Return the cache's directory if it is on this machine, and we may write to it."""
    return directory if directory.is_dir() and os.access(directory, os.W_OK | os.X_OK) else None


def _print(document: dict[str, Any], rows: list[Row]) -> None:
    shown = console()
    size, ranks = shown_size(document["size_bytes"]), document["ranks"]
    at_once = f", {ranks} at once" if ranks > 1 else ""
    shown.print(f"{document['directory']} ({document['filesystem']}), shards of {size}{at_once}\n")
    compared = table("<", "through cachetier", "bare disk", "ratio")
    for row in rows:
        disk = "-" if row.disk is None else _figure(row.disk, row.unit)
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        compared.add_row(row.what, _figure(row.service, row.unit), disk, ratio)
    shown.print(compared)
    if all(row.disk is None for row in rows):
        echo("", "The bare disk was not measured: the directory is not ours to write.")


def _figure(value: float, unit: str) -> str:
    return shown_time(value) if unit == "seconds" else f"{shown_size(value)}/s"
