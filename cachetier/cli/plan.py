"""``cachetier plan``: how often to save, what that costs, before they are made."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachetier_client import InvalidRequestError, NotFoundError
from cachetier_client.cadence import FAILURES_PER_NODE_DAY, OVERHEAD_CAP
from cachetier_client.units import counted, shown_size, shown_span, shown_time

from cachetier.cli import options
from cachetier.cli.connection import reach
from cachetier.cli.options import COUNT, DURATION, NUMBER, PATH, RATE, RUN, SIZE, Word
from cachetier.cli.output import (
    console,
    echo,
    line_shown,
    refuse,
    show,
    table,
)
from cachetier.cli.steps import run_names
from cachetier.nearest import nearest
from cachetier.simulate.estimate import (
    DAY_SECONDS,
    Estimate,
    Plan,
    SimulatedState,
    estimate_of,
    sweep,
)

if TYPE_CHECKING:
    from cachetier_client import Client
    from cachetier_client.cadence import Cadence, Figure

    from cachetier.simulate.outcome import RunOutcome, SimulatedOutcome, Spread, Timeline

_WHY = {
    "young-daly": "more saves would cost more than the failures they are for",
    "overhead": "more saves would cost training a larger share of its time",
    "drain": "more saves would be asked for before the one before is durable",
}
_COUNTS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_PLOTTED = 200  # intervals, evenly on a scale of logarithms
_DEFAULT, _STATE = Plan(), SimulatedState()

_between_failures = replace(DURATION, hint="Write it as 12h or 3d.")


# --- interval -------------------------------------------------------------------------------------


@options.verb()
@options.run_argument
@options.option("--mtbf", type=_between_failures, help="Time between failures of the job: 12h, 3d.")
@options.option(
    "--nodes", type=replace(COUNT, least=1), help="Nodes of the job; else as last saved."
)
@options.option(
    "--failures-per-node-day",
    type=NUMBER,
    default=FAILURES_PER_NODE_DAY,
    help="How often a node fails, where --mtbf is not given.",
)
@options.option("--blocked", type=DURATION, help="How long a save blocks training.")
@options.option("--durable", type=DURATION, help="Time from its start until it is in S3.")
@options.option("--step-time", type=DURATION, help="Duration of a training step.")
@options.option(
    "--overhead-cap",
    type=NUMBER,
    default=OVERHEAD_CAP,
    help="The largest share of its time that training may wait.",
)
@options.client
def interval(
    run: str,
    mtbf: float | None,
    nodes: int | None,
    failures_per_node_day: float,
    blocked: float | None,
    durable: float | None,
    step_time: float | None,
    overhead_cap: float,
    client: Client,
    as_json: bool,
) -> None:
    """Say how often a run should save: not so rarely that failures cost most, nor so often.

    What is not given is measured from the run's saves on this node. Only a rank knows what a save
    in the background blocks: give it with --blocked, or ask `client.cadence` there.

    JSON: `interval_seconds`, `interval_steps`, `bound` (young-daly, overhead or drain), `overhead`,
    `lost_seconds`, `lost_seconds_node_kept`, `overhead_cap`, and `blocked`, `durable`, `mtbf` and
    `step`, each with `seconds`, `origin` (given, measured or assumed) and `about`.
    """
    with of_known_run(client, run):
        advice = client.cadence(
            run,
            blocked_seconds=blocked,
            durable_seconds=durable,
            step_seconds=step_time,
            mtbf_seconds=mtbf,
            nodes=nodes,
            failures_per_node_day=failures_per_node_day,
            overhead_cap=overhead_cap,
        )
    show(as_json, asdict(advice), partial(_show_advice, run, advice))


@contextmanager
def of_known_run(client: Client, run: str) -> Iterator[None]:
    """Say of a figure that is missing inside that there is no such run here, if there is none."""
    try:
        yield
    except InvalidRequestError:
        known = run_names(client.runs())
        if run in known:
            raise
        meant = nearest(run, known)
        message = f"this node knows no run {run}" + (f": did you mean {meant}?" if meant else "")
        hint = "`cachetier ls` lists runs; for a new one give --blocked, --durable."
        raise NotFoundError(message, hint=hint) from None


def _show_advice(run: str, advice: Cadence) -> None:
    steps = "" if advice.interval_steps is None else f", {advice.interval_steps} steps"
    kept, gone = shown_span(advice.lost_seconds_node_kept), shown_span(advice.lost_seconds)
    echo(
        f"{run}: a save every {shown_span(advice.interval_seconds)}{steps}: {_WHY[advice.bound]}",
        f"it blocks {advice.overhead:.2%} of training; a failure costs {kept} on average, "
        f"{gone} if the node is lost",
        _figure_line("a save blocks", advice.blocked),
        _figure_line("durable after", advice.durable),
        _figure_line("a failure every", advice.mtbf),
        *([_figure_line("a step takes", advice.step)] if advice.step else []),
    )


def _figure_line(what: str, figure: Figure) -> str:
    about = f": {figure.about}" if figure.about else ""
    return f"  {what:<16}{shown_span(figure.seconds)} ({figure.origin}{about})"


# --- costs ----------------------------------------------------------------------------------------


def _count(text: str) -> float:
    number, unit = text.strip()[:-1], text.strip()[-1:].upper()
    if unit not in _COUNTS:
        number, unit = text, ""
    try:
        return float(number) * _COUNTS.get(unit, 1.0)
    except ValueError:
        raise ValueError(f"{text!r} is not a number of parameters such as '6.7B'") from None


def _rate(spelt: str, example: str, default: str, help: str) -> options.Decorator:
    hint = f"Write it as {example}."
    return options.option(spelt, type=replace(RATE, hint=hint), default=default, help=help)


def _number(spelt: str, name: str, default: float, help: str) -> options.Decorator:
    kind = COUNT if isinstance(default, int) else NUMBER
    return options.option(spelt, name, type=kind, default=default, help=help)


@options.verb()
@options.option(
    "--params",
    type=Word("N", _count, hint="Write it as 6.7B."),
    help="Parameters of the model: 6.7B.",
)
@options.option(
    "--size",
    type=replace(SIZE, hint="Write it as 15TB."),
    help="A checkpoint's size, where it is known: 15TB.",
)
@_number(
    "--weights-bytes", "weights", _STATE.weights, "Bytes of a parameter's weight as it is used."
)
@_number("--master-bytes", "master", _STATE.master, "Bytes of its master copy; 0 without one.")
@_number(
    "--first-moment-bytes", "first", _STATE.first_moment, "Bytes of the optimizer's first moment."
)
@_number("--second-moment-bytes", "second", _STATE.second_moment, "Bytes of its second moment.")
@_number("--jobs", "jobs", _DEFAULT.jobs, "Jobs that save as this one does.")
@_number("--gpus", "gpus", _DEFAULT.gpus, "GPUs of a job; each is a rank.")
@_number("--gpus-per-node", "gpus_per_node", _DEFAULT.gpus_per_node, "GPUs of a node.")
@options.option("--per-day", type=NUMBER, help="Saves of a job a day.")
@options.option(
    "--interval",
    type=replace(DURATION, least=1.0, hint="Write it as 10min."),
    help="Between two saves, in place of --per-day.",
)
@options.option(
    "--part",
    "part_bytes",
    type=replace(SIZE, hint="Write it as 64MB."),
    default="64MB",
    help="Size of a request to S3.",
)
@options.option(
    "--put-time",
    type=DURATION,
    default=f"{1000 * _DEFAULT.put_seconds:g}ms",
    help="Time until S3 answers a request: 35ms.",
)
@_number(
    "--connections",
    "connections",
    _DEFAULT.connections,
    "Requests that a node has under way at once.",
)
@_rate("--each-connection", "90MB/s", "90MB/s", "The rate of S3 per connection: 90MB/s.")
@_rate("--link", "25Gbit/s", "25Gbit/s", "A node's link: 25Gbit/s, or 3GB/s.")
@_rate("--nvme", "6GB/s", "6GB/s", "The rate of a node's disk, with fsync.")
@_number(
    "--prefix-puts",
    "prefix_puts",
    _DEFAULT.prefix_puts,
    "Writes a second that a prefix of the bucket takes.",
)
@_number("--price", "price", _DEFAULT.price, "Dollars for a thousand writes.")
@_number("--keep-local", "keep_local", _DEFAULT.keep_local, "Steps that stay on the node.")
@options.option(
    "--mtbf",
    "mtbf_seconds",
    type=_between_failures,
    help="Time between failures of a job: 12h.",
)
@options.option(
    "--from-run",
    type=RUN,
    help="Take size and times of this run, as this node measured them.",
)
@options.option("--plot", type=PATH, help="Draw how the interval matters: a .png or .svg file.")
@options.service
def costs(
    params: float | None,
    size: float | None,
    weights: float,
    master: float,
    first: float,
    second: float,
    per_day: float | None,
    interval: float | None,
    put_time: float,
    from_run: str | None,
    plot: Path | None,
    url: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Say what checkpoints come to: size, requests and their price, GPU-hours, disk, exposure.

    Saving direct to S3 stands beside saving through the node. Without a size, of --jobs or --gpus
    only the waiting for requests counts, one for each rank.

    JSON: `size_bytes`, `node_bytes`, `nodes`, `puts`, `puts_per_day`, `dollars_per_day`,
    `prefix_seconds`, `direct_seconds`, `cached_seconds`, `direct_gpu_hours`, `cached_gpu_hours`
    (a day), `drain_seconds`, `interval_seconds`, `keeps_up`, `nvme_bytes` (null where the drain
    does not keep up), `exposed_seconds`, and `cadence`, as `cachetier plan interval` has it.
    """
    if per_day is not None and interval is not None:
        refuse("--per-day and --interval say the same twice", "Give one of them.")
    if interval is not None:
        per_day = DAY_SECONDS / interval
    if size is None and params is not None:
        size = params * SimulatedState(weights, master, first, second).bytes_per_parameter
    plan = Plan(
        size_bytes=size or 0.0,
        per_day=_DEFAULT.per_day if per_day is None else per_day,
        put_seconds=put_time,
        **given,
    )
    if from_run is not None:
        with reach(url) as client:
            plan = _with_figures_of(client, from_run, plan)
    found = estimate_of(plan)
    unsaid = all(each is None for each in (size, params, from_run))
    if unsaid and (plan.jobs, plan.gpus) == (_DEFAULT.jobs, _DEFAULT.gpus):
        refuse(
            "nothing says what a checkpoint holds, or who saves it",
            "Give --params 13B or --size 2TB, and --gpus; or --from-run RUN of this node.",
        )
    if plot is not None:
        _draw_estimate(plan, found, plot)
    show(as_json, asdict(found), partial(_show_estimate, plan, found))


def _with_figures_of(client: Client, run: str, plan: Plan) -> Plan:
    """Return ``plan`` with what this node has measured of a run."""
    with of_known_run(client, run):
        advice = client.cadence(run, mtbf_seconds=plan.mtbf_seconds)
    sizes = [step.size_bytes for step in client.steps(run) if step.size_bytes]
    ranks = [len(step.ranks) / step.world_size for step in client.steps(run) if step.ranks]
    share = ranks[-1] if ranks else 1.0  # of a checkpoint, which this node has of it
    return replace(
        plan,
        size_bytes=sizes[-1] / share if sizes else plan.size_bytes,
        blocked_seconds=advice.blocked,
        durable_seconds=advice.durable,
        mtbf_seconds=advice.mtbf.seconds,
    )


def _show_estimate(plan: Plan, found: Estimate) -> None:
    kept = (
        f"{shown_size(found.nvme_bytes)} for {plan.keep_local} steps and what drains"
        if found.nvme_bytes is not None
        else "no disk is large enough: the drain does not keep up"
    )
    every = shown_span(found.interval_seconds)
    advice = found.cadence
    rows = [
        ("a checkpoint", f"{shown_size(found.size_bytes)}, {shown_size(found.node_bytes)} a node"),
        ("requests", f"{found.puts:,}, at least {shown_time(found.prefix_seconds)} on one prefix"),
        ("a day", f"{found.puts_per_day:,.0f} requests, ${found.dollars_per_day:,.2f}"),
        ("blocked, direct", _blocked(found.direct_seconds, found.direct_gpu_hours)),
        ("blocked, cached", _blocked(found.cached_seconds, found.cached_gpu_hours)),
        ("drain", f"{shown_time(found.drain_seconds)} of {every} between saves"),
        ("NVMe of a node", kept),
        ("losing a node", f"costs {shown_span(found.exposed_seconds)} on average"),
        ("best interval", f"{shown_span(advice.interval_seconds)}, by {advice.bound}"),
    ]
    if not found.size_bytes:
        rows = [row for row in rows if row[0] not in ("a checkpoint", "NVMe of a node")]
    echo(*(f"{what:<16} {text}" for what, text in rows))


def _blocked(seconds: float, gpu_hours: float) -> str:
    return f"{shown_time(seconds)} a save, {gpu_hours:,.2f} GPU-hours a day"


def _draw_estimate(plan: Plan, found: Estimate, path: Path) -> None:
    """Draw the share of time that is lost over the interval between saves."""
    figure = _new_figure(path, (8, 4.5))
    best = found.cadence.interval_seconds
    around = [best * 10 ** (each / _PLOTTED * 3 - 1.5) for each in range(_PLOTTED + 1)]
    intervals, direct, cached = zip(*sweep(plan, around), strict=True)
    axes = figure.subplots()
    minutes = [each / 60 for each in intervals]
    for shares, label in ((direct, "direct to S3"), (cached, "through the node")):
        axes.plot(minutes, [100 * each for each in shares], label=label)
    axes.axvline(best / 60, linestyle=":", color="grey", label=f"best: {shown_span(best)}")
    axes.set(
        xscale="log", yscale="log", xlabel="minutes between saves", ylabel="% of training lost"
    )
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title("Costs of saves and failures")
    axes.legend()
    figure.savefig(path)


# --- simulate -------------------------------------------------------------------------------------


@options.verb()
@options.argument("scenario", type=PATH, help="A TOML file: see docs/planning.md.")
@options.option("--seed", type=COUNT, help="Seed in place of the scenario's: other random events.")
@options.option("--plot", type=PATH, help="Draw it over time: a .png or .svg file.")
@options.as_json
def simulate(scenario: Path, seed: int | None, plot: Path | None, as_json: bool) -> None:
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
        refuse(
            "simulate needs greenlet, which is not here",
            "Install the extra `simulate`, as docs/install.md says.",
        )
    figure = _new_figure(plot, (9, 9)) if plot is not None else None
    logging.getLogger("cachetier").addHandler(logging.NullHandler())  # it is about no node here
    read = read_scenario(scenario)
    if seed is not None:
        from msgspec.structs import replace as changed

        read = changed(read, seed=seed)
    instants, end = deque([0.0], maxlen=1), shown_span(read.duration)
    with line_shown(as_json, lambda: f"simulated {shown_span(instants[-1])} of {end}"):
        found = simulated(read, instants.append)
    if figure is not None:
        _draw_outcome(figure, found)
        figure.savefig(plot)
    show(as_json, asdict(found), partial(_show_outcome, found))


def _show_outcome(found: SimulatedOutcome) -> None:
    if found.about:
        echo(found.about)
    echo(f"{counted(found.nodes, 'node')}, {shown_span(found.seconds)}, seed {found.seed}", "")
    titles = "<run", "saves", "durable", "after", "at most", "blocked", "for room", "exposed"
    rows = (
        (
            each.run,
            str(each.saves),
            str(each.states.get("durable", 0)),
            *(_span_of(each.durable_seconds, figure) for figure in ("p50", "most")),
            _span_of(each.blocked_seconds, "mean"),
            _span_of(each.waited_seconds, "most"),
            ", ".join(_span_of(each.exposure_seconds, figure) for figure in ("mean", "most")),
        )
        for each in found.runs
    )
    console().print(table(*titles, rows=rows))
    echo("", *(f"{what:<13} {text}" for what, text in _rows(found)))


def _rows(found: SimulatedOutcome) -> list[tuple[str, str]]:
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


def _span_of(spread: Spread | None, figure: str) -> str:
    return "-" if spread is None else shown_span(getattr(spread, figure))


def _draw_outcome(figure: Any, found: SimulatedOutcome) -> None:
    """Draw exposure, bytes and requests over time, one below the other."""
    seen = found.timeline
    hours = found.seconds > 3 * 3600
    at = [each / (3600 if hours else 60) for each in seen.seconds]
    exposed, held, asked = figure.subplots(3, 1, sharex=True)
    for run, seconds in seen.exposure_seconds.items():
        exposed.plot(at, [each / 60 for each in seconds], label=run)
    exposed.set(ylabel="minutes of training", title=found.about or "Loss if a node is lost")
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


def _new_figure(path: Path, inches: tuple[float, float]) -> Any:
    """Return an empty figure to be saved at ``path``; refuse what cannot be drawn there."""
    if path.suffix not in (".png", ".svg"):
        refuse(f"--plot: {path} is neither .png nor .svg", "Name one.")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        refuse(
            "--plot needs matplotlib, which is not here",
            "Install the extra `plot`, as docs/install.md says.",
        )
    return Figure(figsize=inches, layout="constrained")
