"""The report at the end, for people, and ``report.json``, for programs (README.md beside this)."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any

from rich.console import Console, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from examples.demo.measure import Cost, median, step_seconds
from examples.demo.outcome import Outcome
from examples.demo.record import RANKS, SAVE_EVERY, STEPS
from examples.demo.servers import LATENCY_MS
from examples.demo.verdict import listed, summary

VERSION = 1
RATIO_BAR = 0.2
BUSY_LOAD = 1.0  # a load average before the start beyond which times are rough


def show(outcome: Outcome, console: Console) -> None:
    """Print the report."""
    console.print()
    console.print(Rule("[bold]Report[/]", align="left", style="dim"))
    for part in (_checkpoints, _cost, _losses, _comparisons):
        console.print(part(outcome))
        console.print()
    console.print(summary(outcome.comparisons, outcome.seconds))


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return the report as a stable object; times are in seconds, sizes in bytes."""
    return {
        "version": VERSION,
        "held": outcome.held,
        "seconds": outcome.seconds,
        "machine": {
            "cores": os.cpu_count(),
            "load_before": outcome.load_before,
            "python": platform.python_version(),
        },
        "ranks": RANKS,
        "steps": STEPS,
        "save_every": SAVE_EVERY,
        "latency_ms": LATENCY_MS,
        "step_seconds": step_seconds(outcome.reference),
        "checkpoints": [_row(cost, outcome) for cost in outcome.saves],
        "blocked": blocked(outcome),
        "kill": _kill(outcome),
        "node_loss": _node_loss(outcome),
        "comparisons": [{"what": each.what, "held": each.held} for each in outcome.comparisons],
    }


def blocked(outcome: Outcome) -> dict[str, Any]:
    """Return the medians of what saves cost, and the ratio that the bar is about."""
    through = median(cost.blocked_seconds for cost in outcome.saves)
    direct = median(cost.call_seconds for cost in outcome.direct)
    ratio = through / direct if through is not None and direct else None
    return {
        "seconds": through,
        "over_reference_seconds": median(c.over_reference_seconds for c in outcome.saves),
        "call_seconds": median(cost.call_seconds for cost in outcome.saves),
        "direct_put_seconds": direct,
        "direct_blocked_seconds": median(cost.blocked_seconds for cost in outcome.direct),
        "direct_over_reference_seconds": median(c.over_reference_seconds for c in outcome.direct),
        "saves": sum(cost.blocked_seconds is not None for cost in outcome.saves),
        "ratio": ratio,
        "bar": RATIO_BAR,
        "holds": ratio is not None and ratio <= RATIO_BAR,
    }


# --- what saving cost -------------------------------------------------------------------------


def _row(cost: Cost, outcome: Outcome) -> dict[str, Any]:
    direct = _by_step(outcome.direct).get(cost.step)
    step = outcome.steps.get(cost.step)
    published_at = step.published_at if step else None
    age = published_at - step.started_at if step and published_at and step.started_at else None
    return {
        "step": cost.step,
        "size_bytes": cost.size_bytes,
        "blocked_seconds": cost.blocked_seconds,
        "over_reference_seconds": cost.over_reference_seconds,
        "call_seconds": cost.call_seconds,
        "direct_put_seconds": direct.call_seconds if direct else None,
        "direct_blocked_seconds": direct.blocked_seconds if direct else None,
        "level": step.levels[-1] if step and step.levels else None,
        "durable_age_seconds": age,
        "killed": outcome.kill is not None and cost.step == outcome.kill.step,
    }


def _by_step(found: list[Cost]) -> Mapping[int, Cost]:
    return {cost.step: cost for cost in found}


def _checkpoints(outcome: Outcome) -> RenderableType:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    for title in ("step", "size", "training\nblocked", "of it,\nthe call", "direct\nPUT"):
        table.add_column(title, justify="right", vertical="bottom")
    table.add_column("level\nreached")
    table.add_column("durable\nafter", justify="right")
    for cost in outcome.saves:
        row = _row(cost, outcome)
        age = row["durable_age_seconds"]
        table.add_row(
            str(row["step"]),
            f"{row['size_bytes'] / 1e6:.0f} MB",
            "[yellow]killed[/]" if row["killed"] else _milliseconds(row["blocked_seconds"]),
            f"[dim]{_milliseconds(row['call_seconds'])}[/]",
            _milliseconds(row["direct_put_seconds"]),
            row["level"] or "-",
            "-" if age is None else f"{age:.1f} s",
        )
    return table


def _cost(outcome: Outcome) -> RenderableType:
    medians = blocked(outcome)
    if medians["ratio"] is None:
        return Text("No save was measured.")
    verdict = "[green]met[/]" if medians["holds"] else "[yellow]missed[/]"
    through, direct = medians["seconds"], medians["direct_put_seconds"]
    if through < 0:
        verdict = "[yellow]not known[/]: steps vary here by more than a save costs"
    if outcome.load_before > BUSY_LOAD:
        verdict += ", on a machine that was busy with other things"
    return Text.from_markup(
        f"A save blocked training for [bold]{_milliseconds(through)}[/]; "
        f"a direct PUT of the same bytes took [bold]{_milliseconds(direct)}[/].\n"
        f"That is a ratio of [bold]{medians['ratio']:.2f}[/] (at most {RATIO_BAR}: {verdict}).\n"
        f"[dim]Medians of {medians['saves']} saves. Blocked is all the wall time that a save adds: "
        "the call, and what steps take longer while its bytes drain. Compared with the run that "
        f"saved nothing it is {_milliseconds(medians['over_reference_seconds'])}; "
        "examples/demo/README.md says what may differ.[/]"
    )


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f} ms"


# --- what was killed, and what was lost -------------------------------------------------------


def _kill(outcome: Outcome) -> dict[str, Any] | None:
    kill = outcome.kill
    if kill is None:
        return None
    return {
        "step": kill.step,
        "pids": {"trainers": kill.trainers, "service": kill.service, "drain": kill.drain},
        "dirty_bytes": kill.dirty_bytes,
        "dirty_shards": kill.dirty_shards,
        "pending_steps": kill.pending_steps,
        "only_here": kill.only_here,
        "steps_again": kill.steps_again,
    }


def _node_loss(outcome: Outcome) -> dict[str, Any] | None:
    loss = outcome.node_loss
    if loss is None:
        return None
    return {
        "deleted_files": loss.files,
        "deleted_bytes": loss.size_bytes,
        "resumed_from": loss.resumed_from,
        "restore_seconds": loss.restore_seconds,
    }


def _losses(outcome: Outcome) -> RenderableType:
    kill, loss = outcome.kill, outcome.node_loss
    table = Table(box=None, padding=(0, 3, 0, 0), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    if kill is not None:
        table.add_row(
            "killed", f"{len(kill.trainers)} trainer processes and the service with its drain"
        )
        table.add_row(
            "at stake",
            f"{kill.dirty_bytes / 1e6:.0f} MB acknowledged and not yet in S3; "
            f"the bucket lacked {len(kill.only_here)} shards of step {kill.step}",
        )
        steps = "step" if kill.steps_again == 1 else "steps"
        table.add_row("taken again", f"{kill.steps_again} {steps} that followed the save")
    if loss is not None:
        table.add_row(
            "node lost",
            f"{loss.files} files, {loss.size_bytes / 1e6:.0f} MB deleted; "
            f"step {loss.resumed_from} came back from S3 in {loss.restore_seconds:.1f} s",
        )
    lost = [cost.step for cost in outcome.saves if not _is_durable(outcome, cost.step)]
    table.add_row("lost", "[green]nothing[/]" if not lost else f"[red]steps {lost}[/]")
    return table


def _is_durable(outcome: Outcome, step: int) -> bool:
    return step in outcome.steps and "durable" in outcome.steps[step].levels


def _comparisons(outcome: Outcome) -> RenderableType:
    return listed(outcome.comparisons)
