"""``cachetier advise``: how often a run should save."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from cachetier_client.cadence import FAILURES_PER_NODE_DAY, OVERHEAD_CAP
from cachetier_client.units import parsed_span, shown_span

from cachetier.cli.output import SPAN, AsJson, Url, echo, print_json, reach, read_option, reported
from cachetier.cli.steps import RunArgument, run_names
from cachetier.nearest import nearest

if TYPE_CHECKING:
    from cachetier_client import Client
    from cachetier_client.cadence import Cadence, Figure

Mtbf = Annotated[str | None, typer.Option(help="Time between failures of the job: 12h, 3d.")]
Nodes = Annotated[int | None, typer.Option(min=1, help="Nodes of the job; else as last saved.")]
Rate = Annotated[float, typer.Option(help="How often a node fails, where --mtbf is not given.")]
Blocked = Annotated[
    float | None, typer.Option(metavar=SPAN, help="How long a save blocks training.")
]
Durable = Annotated[
    float | None, typer.Option(metavar=SPAN, help="From its start until it is in S3.")
]
Step = Annotated[float | None, typer.Option(metavar=SPAN, help="A step of training.")]
Cap = Annotated[float, typer.Option(help="The largest share of its time that training may wait.")]
_WHY = {
    "young-daly": "more saves would cost more than the failures they are for",
    "overhead": "more saves would cost training a larger share of its time",
    "drain": "more saves would be asked for before the one before is durable",
}


def advise(
    run: RunArgument,
    mtbf: Mtbf = None,
    nodes: Nodes = None,
    failures_per_node_day: Rate = FAILURES_PER_NODE_DAY,
    blocked_seconds: Blocked = None,
    durable_seconds: Durable = None,
    step_seconds: Step = None,
    overhead_cap: Cap = OVERHEAD_CAP,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Say how often a run should save: not so rarely that failures cost most, nor so often.

    What is not given is measured from the run's saves on this node. Only a rank knows what a save
    in the background blocks: give it with --blocked-seconds, or ask `client.cadence` there.

    JSON: `interval_seconds`, `interval_steps`, `bound` (young-daly, overhead or drain), `overhead`,
    `lost_seconds`, `lost_seconds_node_kept`, `overhead_cap`, and `blocked`, `durable`, `mtbf` and
    `step`, each with `seconds`, `origin` (given, measured or assumed) and `about`.
    """
    with reported(as_json), reach(url) as client:
        hint = "Write it as 12h or 3d."
        between = None if mtbf is None else read_option("mtbf", mtbf, parsed_span, hint, as_json)
        with of_known_run(client, run):
            advice = client.cadence(
                run,
                blocked_seconds=blocked_seconds,
                durable_seconds=durable_seconds,
                step_seconds=step_seconds,
                mtbf_seconds=between,
                nodes=nodes,
                failures_per_node_day=failures_per_node_day,
                overhead_cap=overhead_cap,
            )
    if as_json:
        print_json(asdict(advice))
    else:
        _show(run, advice)


@contextmanager
def of_known_run(client: Client, run: str) -> Iterator[None]:
    """Say of a figure that is missing inside that there is no such run here, if there is none."""
    from cachetier_client import InvalidRequestError, NotFoundError

    try:
        yield
    except InvalidRequestError:
        known = run_names(client.runs())
        if run in known:
            raise
        meant = nearest(run, known)
        message = f"this node knows no run {run}" + (f": did you mean {meant}?" if meant else "")
        hint = "`cachetier ls` lists runs; for a new one give --blocked-seconds, --durable-seconds."
        raise NotFoundError(message, hint=hint) from None


def _show(run: str, advice: Cadence) -> None:
    steps = "" if advice.interval_steps is None else f", {advice.interval_steps} steps"
    kept, gone = shown_span(advice.lost_seconds_node_kept), shown_span(advice.lost_seconds)
    echo(
        f"{run}: a save every {shown_span(advice.interval_seconds)}{steps}: {_WHY[advice.bound]}",
        f"it blocks {advice.overhead:.2%} of training; a failure costs {kept} on average, "
        f"{gone} if the node is lost",
        _line("a save blocks", advice.blocked),
        _line("durable after", advice.durable),
        _line("a failure every", advice.mtbf),
        *([_line("a step takes", advice.step)] if advice.step else []),
    )


def _line(what: str, figure: Figure) -> str:
    about = f": {figure.about}" if figure.about else ""
    return f"  {what:<16}{shown_span(figure.seconds)} ({figure.origin}{about})"
