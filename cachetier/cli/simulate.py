"""``cachetier simulate``: how a cluster would fare with some settings, tried without one."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from cachetier_client.units import counted, shown_size, shown_span

from cachetier.cli.bars import StepLine, line_shown
from cachetier.cli.output import AsJson, console, echo, print_json, refuse, reported, table
from cachetier.cli.plots import new_figure

if TYPE_CHECKING:
    from cachetier.simulate.outcome import Outcome, RunOutcome, Spread, Timeline
    from cachetier.simulate.scenario import Scenario

ScenarioFile = Annotated[Path, typer.Argument(help="A TOML file: see docs/simulate.md.")]
Seed = Annotated[int | None, typer.Option(help="In place of the scenario's: other chances.")]
PlotFile = Annotated[Path | None, typer.Option(help="Draw it over time: a .png or .svg file.")]


def simulate(
    scenario: ScenarioFile, seed: Seed = None, plot: PlotFile = None, as_json: AsJson = False
) -> None:
    """Run a scenario through the real scheduler, pace, policies and publication.

    Nothing is sent and nobody waits: the clock and the store are simulated, and the same scenario
    and seed give the same result.

    JSON: `about`, `seed`, `nodes`, `seconds`, `runs` (of each `run`, `saves`, `states`,
    `durable_seconds`, `blocked_seconds`, `waited_seconds`, `exposure_seconds`, `lost_seconds`),
    `requests`, `sent_bytes`, `fairness` and `timeline`, a list of each figure over its `seconds`.
    """
    try:
        from cachetier.simulate.scenario import read_scenario
        from cachetier.simulate.simulation import simulate as simulated
    except ImportError:
        hint = "Install the extra `simulate`, as docs/install.md says."
        refuse("simulate needs greenlet, which is not here", hint, as_json=as_json)
    figure = new_figure(plot, (9, 9), as_json=as_json) if plot is not None else None
    logging.getLogger("cachetier").addHandler(logging.NullHandler())  # it is about no node here
    with reported(as_json):
        read = read_scenario(scenario)
        if seed is not None:
            read = _seeded(read, seed)
        line, end = StepLine("simulated"), shown_span(read.duration)
        with line_shown(as_json, lambda: line.text):
            found = simulated(read, lambda now: line.step(f"{shown_span(now)} of {end}"))
    if figure is not None:
        _draw(figure, found)
        figure.savefig(plot)
    if as_json:
        print_json(asdict(found))
    else:
        _show(found)


def _seeded(scenario: Scenario, seed: int) -> Scenario:
    from msgspec.structs import replace as changed

    return changed(scenario, seed=seed)


# --- text ----------------------------------------------------------------------------------------


def _show(found: Outcome) -> None:
    if found.about:
        echo(found.about)
    echo(f"{counted(found.nodes, 'node')}, {shown_span(found.seconds)}, seed {found.seed}", "")
    shown = table("<run", "saves", "durable", "after", "at most", "blocked", "for room", "exposed")
    for each in found.runs:
        shown.add_row(
            each.run,
            str(each.saves),
            str(each.states.get("durable", 0)),
            *_spans(each.durable_seconds),
            _span(each.blocked_seconds),
            shown_span(each.waited_seconds.most) if each.waited_seconds else "-",
            f"{shown_span(each.exposure_seconds.mean)}, {shown_span(each.exposure_seconds.most)}",
        )
    console().print(shown)
    echo("", *(f"{what:<13} {text}" for what, text in _rows(found)))


def _rows(found: Outcome) -> list[tuple[str, str]]:
    requests = found.requests
    total = max(1, requests.accepted + requests.throttled)
    rows = [
        ("sent", f"{shown_size(found.sent_bytes)} in {requests.accepted:,} requests"),
        ("throttled", f"{requests.throttled:,} requests, {requests.throttled / total:.1%}"),
    ]
    if requests.unanswered:
        rows.append(("unanswered", f"{requests.unanswered:,} requests while the store was away"))
    if found.fairness is not None:
        even = found.fairness
        rows.append(("fairness", f"{even.mean:.3f} between nodes, {even.least:.3f} at worst"))
    rows += [(each.run, text) for each in found.runs for text in _troubles(each)]
    return rows


def _troubles(run: RunOutcome) -> list[str]:
    texts = {
        "local_only": "kept from the bucket by a policy",
        "lost": "lost with a node, or given up by the start after it",
        "refused": "without room for a rank in time: such a step is never whole",
        "open": "not durable yet at the end",
    }
    found = [
        f"{counted(run.states[state], 'save')} {text}"
        for state, text in texts.items()
        if run.states.get(state)
    ]
    if run.lost_seconds:
        found.append(f"{shown_span(run.lost_seconds)} of training lost")
    return found


def _spans(spread: Spread | None) -> tuple[str, str]:
    return ("-", "-") if spread is None else (shown_span(spread.p50), shown_span(spread.most))


def _span(spread: Spread | None) -> str:
    return "-" if spread is None else shown_span(spread.mean)


# --- the plot ------------------------------------------------------------------------------------


def _draw(figure: Any, found: Outcome) -> None:
    """Draw exposure, bytes and requests over time, one below the other."""
    seen = found.timeline
    hours = found.seconds > 3 * 3600
    at = [each / (3600 if hours else 60) for each in seen.seconds]
    exposed, held, asked = figure.subplots(3, 1, sharex=True)
    for run, seconds in seen.exposure_seconds.items():
        exposed.plot(at, [each / 60 for each in seconds], label=run)
    exposed.set(ylabel="minutes of training", title=found.about or "What losing a node would cost")
    exposed.legend(title="a lost node costs", loc="upper left")
    held.fill_between(at, [each / 1e9 for each in seen.dirty_bytes], alpha=0.3, label="not in S3")
    held.set(ylabel="GB on the nodes")
    sent = held.twinx()
    rates = [each / 1e9 for each in seen.sent_bytes_per_second]
    sent.plot(at, rates, color="tab:green", label="sent")
    sent.set(ylabel="GB/s to S3")
    _legend(held, sent)
    _draw_requests(asked, at, seen)
    asked.set(xlabel="hours" if hours else "minutes", ylabel="requests a second")
    for axes in (exposed, held, sent, asked):
        axes.set_ylim(bottom=0)
    asked.set_xlim(0, at[-1])


def _draw_requests(axes: Any, at: list[float], seen: Timeline) -> None:
    axes.plot(at, seen.accepted_per_second, label="taken")
    axes.plot(at, seen.throttled_per_second, label="throttled")
    if not any(seen.waiting_ranks):
        _legend(axes)
        return
    waiting = axes.twinx()
    waiting.step(at, seen.waiting_ranks, color="tab:red", where="pre", label="ranks waiting")
    waiting.set(ylabel="ranks that wait for room")
    waiting.set_ylim(bottom=0)
    _legend(axes, waiting)


def _legend(*axes: Any) -> None:
    """Explain what is drawn on ``axes``, which lie upon each other, on top of it all."""
    found = [each.get_legend_handles_labels() for each in axes]
    handles = [handle for each in found for handle in each[0]]
    axes[-1].legend(handles, [label for each in found for label in each[1]], loc="upper left")
