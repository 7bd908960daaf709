"""What losing the node would cost, run by run, in eighty columns; ``status`` shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cachetier.units import shown_size, shown_span

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

RUN_ROWS = 5
RUN_CELLS = 28


def exposure_table(status: dict[str, Any]) -> Table:
    """Return a row for each run, the most exposed first, at most ``RUN_ROWS``."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("run", "durable step", "begun", "exposed", "dirty"):
        table.add_column(title, justify="left" if title == "run" else "right", no_wrap=True)
    runs = status["exposure"]
    for run in runs[:RUN_ROWS]:
        table.add_row(
            cut(str(run["run"]), RUN_CELLS),
            "none" if run["durable_step"] is None else str(run["durable_step"]),
            _ago(run["durable_age_seconds"]),
            _exposed(run, status["exposure_objective_seconds"]),
            size_or_dash(run["dirty_bytes"]),
        )
    if len(runs) > RUN_ROWS:
        table.add_row(f"and {len(runs) - RUN_ROWS} more", style="dim")
    return table


def exposure_alarms(status: dict[str, Any]) -> list[str]:
    """Say which runs are exposed for longer than they should be, and which steps are stuck."""
    objective = status["exposure_objective_seconds"]
    late = [run for run in status["exposure"] if run["exposure_seconds"] > objective]
    found = [
        f"{cut(str(run['run']), RUN_CELLS)} would lose {shown_span(run['exposure_seconds'])} of "
        f"training with this node: the objective is {shown_span(objective)}"
        for run in late[:RUN_ROWS]
    ]
    stuck = status["incomplete"]
    if stuck["steps"]:
        steps = "1 step is" if stuck["steps"] == 1 else f"{stuck['steps']} steps are"
        found.append(
            f"{steps} incomplete, the oldest since {shown_span(stuck['oldest_seconds'])}: a rank "
            "has not sealed, here or elsewhere"
        )
    return found


def cut(text: str, cells: int) -> str:
    return text if len(text) <= cells else f"{text[: cells - 1]}…"


def _ago(seconds: float | None) -> str:
    return "-" if seconds is None else f"{shown_span(seconds)} ago"


def size_or_dash(size_bytes: int) -> str:
    return shown_size(size_bytes) if size_bytes else "-"


def _exposed(run: dict[str, Any], objective: float) -> Text:
    """Say for how long a run is exposed: `-` where there is no durable step to count from."""
    from rich.text import Text

    seconds = run["exposure_seconds"]
    if not seconds:
        return Text("-") if run["durable_step"] is None else Text("no", "green")
    return Text(shown_span(seconds), "bold red" if seconds > objective else "yellow")
