"""A scenario: a TOML file that says which nodes save what, before which store, and what goes wrong.

Source: docs/planning.md.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cachetier_client.errors import InvalidNameError
from cachetier_client.identity.names import checked_run
from cachetier_client.units import parsed_size, parsed_span
from msgspec import Meta, Struct

from cachetier.errors import InvalidRequestError
from cachetier.model.bandwidth import parsed_rate
from cachetier.model.policy import Policy
from cachetier.reclaim.evict import Watermarks
from cachetier.simulate.store import READS_PER_SECOND, WRITES_PER_SECOND

NODE_LIMIT = 1000

Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(gt=0, le=1)]


class ScenarioSpan(float):
    """Seconds, written as ``10min``."""


class ScenarioSize(int):
    """Bytes, written as ``2TB``."""


class ScenarioRate(float):
    """Bytes a second, written as ``6GB/s`` or ``25Gbit/s``."""


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the file: what it does not know is refused."""


class Nodes(_Table, frozen=True):
    """The hardware of each node, and its distance from the store."""

    ranks: Count = 8
    nvme: ScenarioRate = ScenarioRate(6e9)
    link: ScenarioRate = ScenarioRate(25e9 / 8)
    each_connection: ScenarioRate = ScenarioRate(90e6)
    latency_ms: tuple[Positive, Positive] = (20.0, 80.0)


class ScenarioSettings(_Table, frozen=True):
    """Settings of the service, by their names there."""

    capacity: ScenarioSize = ScenarioSize(4 * 10**12)
    when_full: Literal["wait", "reject"] = "wait"
    put_timeout: ScenarioSpan = ScenarioSpan(600.0)
    high_watermark: Share = Watermarks().high
    low_watermark: Share = Watermarks().low
    durable_every: Count = 1
    supersede: bool = False
    keep_local: Annotated[int, Meta(ge=0)] = 0
    key_layout: Literal["plain", "spread"] = "plain"
    max_rate: ScenarioRate | None = None

    @property
    def policy(self) -> Policy:
        return Policy(self.durable_every, self.supersede, self.keep_local)


class ScenarioRun(_Table, frozen=True):
    """A training run: it saves, trains for ``every``, and saves again.

    ``on`` names a run whose nodes it shares; else it has ``nodes`` of its own.
    """

    name: str
    checkpoint: ScenarioSize
    every: ScenarioSpan
    nodes: Count = 1
    on: str | None = None
    saves: Count | None = None
    first_at: ScenarioSpan = ScenarioSpan(0.0)
    shards: Count = 1
    prefix: str = ""
    weight: Positive = 1.0


class Outage(_Table, frozen=True):
    """When the store is away."""

    at: ScenarioSpan
    lasts: ScenarioSpan


class Throttling(_Table, frozen=True):
    """When the store lets less through than it does otherwise."""

    at: ScenarioSpan
    lasts: ScenarioSpan
    writes_per_second: Positive
    reads_per_second: Positive = READS_PER_SECOND


class StoreLimits(_Table, frozen=True):
    """The request limits of the store for each prefix."""

    writes_per_second: Positive = WRITES_PER_SECOND
    reads_per_second: Positive = READS_PER_SECOND
    outages: tuple[Outage, ...] = ()
    throttling: tuple[Throttling, ...] = ()


class Loss(_Table, frozen=True):
    """A node that is lost with all it has; an empty one takes its place."""

    at: ScenarioSpan
    run: str
    node: Annotated[int, Meta(ge=0)] = 0
    back_after: ScenarioSpan = ScenarioSpan(300.0)


class Scenario(_Table, frozen=True):
    """All of it."""

    runs: Annotated[tuple[ScenarioRun, ...], Meta(min_length=1)]
    duration: ScenarioSpan
    about: str = ""
    seed: int = 0
    nodes: Nodes = Nodes()
    settings: ScenarioSettings = ScenarioSettings()
    store: StoreLimits = StoreLimits()
    losses: tuple[Loss, ...] = ()


def read_scenario(path: Path) -> Scenario:
    """Read and check a scenario.

    Raises:
        InvalidRequestError: It cannot be read, or a field has a value that cannot be; it is named.
    """
    try:
        scenario = msgspec.convert(tomllib.loads(path.read_text()), Scenario, dec_hook=_parsed)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        hint = "Name a TOML file as docs/planning.md describes it."
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequestError(f"cannot read {path}: {why}", hint=hint) from None
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        field = where.removesuffix("`")
        raise _wrong(f"{field}: {what}" if field else what) from None
    _check(scenario)
    return scenario


def _parsed(kind: type, value: Any) -> Any:
    """Return a size, a span or a rate as ``kind``; a bare number is bytes, seconds, bytes/s."""
    readers = {ScenarioSpan: parsed_span, ScenarioSize: parsed_size, ScenarioRate: parsed_rate}
    unit = "s" if kind is ScenarioSpan else ""
    found = readers[kind](f"{value:g}{unit}" if isinstance(value, int | float) else str(value))
    return kind(found)


def _check(scenario: Scenario) -> None:
    """Refuse what no field by itself shows to be impossible."""
    names = [run.name for run in scenario.runs]
    own = {run.name: run.nodes for run in scenario.runs if run.on is None}
    settings, nodes = scenario.settings, scenario.nodes
    wrong = ""
    if sum(own.values()) > NODE_LIMIT:
        wrong = f"runs.nodes: {sum(own.values())} in all are more than {NODE_LIMIT}"
    elif len(set(names)) < len(names):
        wrong = "runs.name: two runs have one name"
    elif settings.low_watermark > settings.high_watermark:
        wrong = "settings.low_watermark: it is above high_watermark"
    elif nodes.latency_ms[0] > nodes.latency_ms[1]:
        wrong = "nodes.latency_ms: the first of the two is the lower one"
    elif not scenario.duration:
        wrong = "duration: nothing happens in no time"
    if not all(
        (
            nodes.nvme,
            nodes.link,
            nodes.each_connection,
            settings.max_rate is None or settings.max_rate,
        )
    ):
        wrong = "nodes: a rate of 0 never moves anything"
    for run in scenario.runs:
        wrong = wrong or _wrong_of_run(run, own, scenario)
    for loss in scenario.losses:
        if own.get(loss.run, 0) <= loss.node:
            wrong = wrong or f"losses: {loss.run} has no node {loss.node} of its own"
    if wrong:
        raise _wrong(wrong)


def _wrong_of_run(run: ScenarioRun, own: dict[str, int], scenario: Scenario) -> str:
    where = f"runs.{run.name}"
    try:
        checked_run(run.name)
    except InvalidNameError as error:
        return f"runs.name: {error.message}"
    if run.on is not None and run.on not in own:
        return f"{where}.on: {run.on} is no run with nodes of its own"
    ranks = own.get(run.on or run.name, 1) * scenario.nodes.ranks
    shard_bytes = run.checkpoint // (ranks * run.shards)
    if not shard_bytes:
        return f"{where}.checkpoint: {ranks * run.shards} shards of it would be empty"
    if shard_bytes > scenario.settings.capacity:
        return f"{where}.checkpoint: one shard of it is larger than settings.capacity"
    if not run.every:
        return f"{where}.every: a run has to end"
    return ""


def _wrong(what: str) -> InvalidRequestError:
    hint = "docs/planning.md says what each field may be."
    return InvalidRequestError(f"the scenario is impossible: {what}", hint=hint)
