"""``cachetier estimate``: what checkpoints cost, before anybody has saved one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from cachetier_client.units import parsed_size, parsed_span, shown_size, shown_span, shown_time

from cachetier.cli.advise import of_known_run
from cachetier.cli.output import (
    AsJson,
    Url,
    echo,
    print_json,
    reach,
    read_option,
    refuse,
    reported,
)
from cachetier.cli.plots import new_figure
from cachetier.model.bandwidth import parsed_rate
from cachetier.model.estimate import DAY_SECONDS, Estimate, Plan, State, estimate_of, sweep

if TYPE_CHECKING:
    from cachetier_client import Client

_COUNTS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_PLOTTED = 200  # intervals, evenly on a scale of logarithms
_DEFAULT, _STATE = Plan(), State()

Params = Annotated[str | None, typer.Option(help="Parameters of the model: 6.7B.")]
Size = Annotated[str | None, typer.Option(help="A checkpoint's size, where it is known: 15TB.")]
Weights = Annotated[float, typer.Option(help="Bytes of a parameter's weight as it is used.")]
Master = Annotated[float, typer.Option(help="Of its master copy; 0 without one.")]
First = Annotated[float, typer.Option(help="Of the optimizer's first moment.")]
Second = Annotated[float, typer.Option(help="Of its second moment.")]
Jobs = Annotated[int, typer.Option(help="Jobs that save as this one does.")]
Gpus = Annotated[int, typer.Option(help="GPUs of a job; each is a rank.")]
PerNode = Annotated[int, typer.Option(help="GPUs of a node.")]
PerDay = Annotated[float | None, typer.Option(help="Saves of a job a day.")]
Interval = Annotated[str | None, typer.Option(help="Between two saves, in place of --per-day.")]
PutBytes = Annotated[str, typer.Option(help="Size of a request to S3.")]
PutMs = Annotated[float, typer.Option(help="Milliseconds until S3 has answered a request.")]
Connections = Annotated[int, typer.Option(help="Requests that a node has under way at once.")]
Each = Annotated[str, typer.Option(help="What S3 takes through a connection: 90MB/s.")]
Link = Annotated[str, typer.Option(help="A node's link: 25Gbit/s, or 3GB/s.")]
Nvme = Annotated[str, typer.Option(help="What a node's disk takes, synced.")]
Puts = Annotated[float, typer.Option(help="Writes a second that a prefix of the bucket takes.")]
Price = Annotated[float, typer.Option(help="Dollars for a thousand writes.")]
Keep = Annotated[int, typer.Option(help="Steps that stay on the node.")]
Mtbf = Annotated[str | None, typer.Option(help="Time between failures of a job: 12h.")]
FromRun = Annotated[
    str | None, typer.Option(help="Take size and times of this run, as this node measured them.")
]
PlotFile = Annotated[
    Path | None, typer.Option(help="Draw how the interval matters: a .png or .svg file.")
]


def estimate(
    params: Params = None,
    size: Size = None,
    weights_bytes: Weights = _STATE.weights,
    master_bytes: Master = _STATE.master,
    first_moment_bytes: First = _STATE.first_moment,
    second_moment_bytes: Second = _STATE.second_moment,
    jobs: Jobs = _DEFAULT.jobs,
    gpus: Gpus = _DEFAULT.gpus,
    gpus_per_node: PerNode = _DEFAULT.gpus_per_node,
    per_day: PerDay = None,
    interval: Interval = None,
    part: PutBytes = "64MB",
    put_ms: PutMs = 1000 * _DEFAULT.put_seconds,
    connections: Connections = _DEFAULT.connections,
    each_connection: Each = "90MB/s",
    link: Link = "25Gbit/s",
    nvme: Nvme = "6GB/s",
    prefix_puts: Puts = _DEFAULT.prefix_puts,
    price: Price = _DEFAULT.price,
    keep_local: Keep = _DEFAULT.keep_local,
    mtbf: Mtbf = None,
    from_run: FromRun = None,
    plot: PlotFile = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Say what checkpoints come to: size, requests and their price, GPU-hours, disk, exposure.

    Saving direct to S3 stands beside saving through the node. Without a size, of --jobs or --gpus
    only the waiting for requests counts, one for each rank.

    JSON: `size_bytes`, `node_bytes`, `nodes`, `puts`, `puts_per_day`, `dollars_per_day`,
    `prefix_seconds`, `direct_seconds`, `cached_seconds`, `direct_gpu_hours`, `cached_gpu_hours`
    (a day), `drain_seconds`, `interval_seconds`, `keeps_up`, `nvme_bytes` (null where the drain
    does not keep up), `exposed_seconds`, and `cadence`, as `cachetier advise` has it.
    """

    def read(option: str, text: str) -> float:
        reader, hint = _READERS[option]
        return read_option(option, text, reader, hint, as_json)

    state = State(weights_bytes, master_bytes, first_moment_bytes, second_moment_bytes)
    if per_day is not None and interval is not None:
        refuse("--per-day and --interval say the same twice", "Give one of them.", as_json=as_json)
    if interval is not None:
        per_day = _per_day(read("interval", interval), as_json=as_json)
    size_bytes = read("size", size) if size is not None else 0.0
    if size is None and params is not None:
        size_bytes = read("params", params) * state.bytes_per_parameter
    with reported(as_json):
        plan = Plan(
            size_bytes=size_bytes,
            jobs=jobs,
            gpus=gpus,
            gpus_per_node=gpus_per_node,
            per_day=_DEFAULT.per_day if per_day is None else per_day,
            part_bytes=read("part", part),
            put_seconds=put_ms / 1000,
            connections=connections,
            each_connection=read("each-connection", each_connection),
            link=read("link", link),
            nvme=read("nvme", nvme),
            prefix_puts=prefix_puts,
            price=price,
            keep_local=keep_local,
            mtbf_seconds=None if mtbf is None else read("mtbf", mtbf),
        )
        if from_run is not None:
            with reach(url) as client:
                plan = _measured(client, from_run, plan)
        found = estimate_of(plan)
        if size is params is from_run is None and (jobs, gpus) == (_DEFAULT.jobs, _DEFAULT.gpus):
            hint = "Give --params 13B or --size 2TB, and --gpus; or --from-run RUN of this node."
            refuse("nothing says what a checkpoint holds, or who saves it", hint, as_json=as_json)
        if plot is not None:
            _draw(plan, found, plot, as_json=as_json)
    if as_json:
        print_json(asdict(found))
    else:
        _show(plan, found)


def _per_day(interval_seconds: float, *, as_json: bool) -> float:
    if not interval_seconds:
        refuse("--interval: nobody saves without end", "Write it as 10min.", as_json=as_json)
    return DAY_SECONDS / interval_seconds


def _measured(client: Client, run: str, plan: Plan) -> Plan:
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


# --- text ----------------------------------------------------------------------------------------


def _show(plan: Plan, found: Estimate) -> None:
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


# --- the plot ------------------------------------------------------------------------------------


def _draw(plan: Plan, found: Estimate, path: Path, *, as_json: bool) -> None:
    """Draw the share of time that is lost over the interval between saves."""
    figure = new_figure(path, (8, 4.5), as_json=as_json)
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
    axes.set_title("What saves and failures cost")
    axes.legend()
    figure.savefig(path)


# --- options -------------------------------------------------------------------------------------


def _count(text: str) -> float:
    number, unit = text.strip()[:-1], text.strip()[-1:].upper()
    if unit not in _COUNTS:
        number, unit = text, ""
    try:
        return float(number) * _COUNTS.get(unit, 1.0)
    except ValueError:
        raise ValueError(f"{text!r} is not a number of parameters such as '6.7B'") from None


_READERS: dict[str, tuple[Callable[[str], float], str]] = {
    "params": (_count, "Write it as 6.7B."),
    "size": (parsed_size, "Write it as 15TB."),
    "part": (parsed_size, "Write it as 64MB."),
    "interval": (parsed_span, "Write it as 10min."),
    "mtbf": (parsed_span, "Write it as 12h or 3d."),
    "each-connection": (parsed_rate, "Write it as 90MB/s."),
    "link": (parsed_rate, "Write it as 25Gbit/s."),
    "nvme": (parsed_rate, "Write it as 6GB/s."),
}
