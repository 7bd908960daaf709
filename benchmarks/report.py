"""Show results: a table on the terminal, ``results.json``, and the table of README.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measures import Result

Row = dict[str, Any]
BEGIN, END = "<!-- figures: python -m benchmarks --record -->", "<!-- end of figures -->"


def show(results: Mapping[str, Sequence[Result]], machine: Sequence[str], console: Console) -> None:
    """Print a table and the machine, and what fell short once more, plainly."""
    table = Table(title="Benchmarks: medians; ratios of runs taken in pairs", title_justify="left")
    for heading in ("group", "measure"):
        table.add_column(heading)
    for heading in ("value", "range", "bar", "runs"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("holds")
    for group, rows in results.items():
        for result in rows:
            table.add_row(group, *_cells(result))
    console.print(table)
    console.print("\n".join(machine), highlight=False)
    for group, rows in results.items():
        for result in rows:
            if result.holds is False:
                value = "not measured" if result.value is None else _figure(result.value)
                why = f" ({result.note})" if result.note else ""
                console.print(
                    f"MISSED  {group}: {result.measure}: {value}, bar {result.bar}{why}",
                    style="bold red",
                    highlight=False,
                )


def _cells(result: Result) -> list[str]:
    holds = {True: "[green]yes[/]", False: "[bold red]NO[/]", None: ""}[result.holds]
    spread = ""
    if len(result.values) > 1:
        spread = f"{_figure(min(result.values))} to {_figure(max(result.values))}"
    value = "-" if result.value is None else f"{_figure(result.value)} {result.unit}".strip()
    bar = "" if result.bar is None else str(result.bar)
    return [result.measure, value, spread, bar, str(len(result.values)), holds]


def write(path: Path, results: Mapping[str, Sequence[Result]], *, whole: bool) -> None:
    """Write ``results.json``; what was not measured this time keeps its entry.

    ``whole`` groups lose the entries of measures that they no longer have.
    """
    new = [result.as_json(group) for group, rows in results.items() for result in rows]
    replaced = {(row["group"], row["measure"]) for row in new}
    kept = [
        row
        for row in read(path)
        if (row["group"], row["measure"]) not in replaced
        and not (whole and row["group"] in results)
    ]
    path.write_text(json.dumps(kept + new, indent=2) + "\n")


def read(path: Path) -> list[Row]:
    """Return the entries of ``results.json``, none if there is no such file."""
    try:
        rows: list[Row] = json.loads(path.read_text())
    except FileNotFoundError:
        return []
    return rows


def record(readme: Path, rows: Sequence[Row], machine: Sequence[str]) -> None:
    """Replace the figures in README.md by ``rows``, by group, and the machine that was measured."""
    before, _, rest = readme.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    lines = [
        *(f"- {line}" for line in machine),
        "",
        "| group | measure | value | bar | holds | runs |",
        "|---|---|---|---|---|---|",
        *(_markdown(row) for row in sorted(rows, key=lambda row: str(row["group"]))),
    ]
    readme.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}")


def _markdown(row: Row) -> str:
    holds = {True: "yes", False: "**no**", None: ""}[row["holds"]]
    value = "-" if row["value"] is None else f"{_figure(row['value'])} {row['unit']}".strip()
    bar = row["bar"] or ""
    return f"| {row['group']} | {row['measure']} | {value} | {bar} | {holds} | {row['runs']} |"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
