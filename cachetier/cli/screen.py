"""What ``cachetier top`` draws: a node in full, or several in a table. From status fields alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from cachetier_client.units import shown_size, shown_span
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cachetier.cli.output import table
from cachetier.cli.status import MOUNT_ROWS, bar, cut, mount_table
from cachetier.status.rates import Node, Rates
from cachetier.status.words import (
    danger,
    held_back,
    remote_state,
    troubles,
    worst,
    worst_state,
)

WARNINGS = 3
RUN_CELLS = 24
STATES = {"ready": "bold green", "ok": "green"}
STATES |= {"throttled": "yellow", "leaving": "yellow", "unasked": "dim"}
BAD = "bold red"
STYLES = {"bad": BAD, "near": "yellow"}


def drawn(nodes: Sequence[Node], width: int, height: int, interval: float) -> RenderableType:
    """Return what is shown on ``width`` cells; ``height`` 0: as much as there is."""
    body = _node(nodes[0], width, height) if len(nodes) == 1 else _fleet(nodes, width, height)
    if not height:
        return Group(*body)
    foot = f"every {interval:g} s   q: end"
    return Group(*body[: height - 1], Text(foot, style="dim"))


# --- one node ------------------------------------------------------------------------------------


def _node(node: Node, width: int, height: int) -> list[RenderableType]:
    status = node.status
    head: list[RenderableType] = [_headline(node, width)]
    if node.error is not None:
        head.append(_cut(f"away for {_away(node)}: {node.error}; asking on", width, BAD))
    if status is None:
        return head
    rates = node.rates()
    if status["reason"]:
        head.append(_cut(str(status["reason"]), width, BAD))
    head += [_risk(status, width), _cache(status, width), _flow(status, rates, width), Text()]
    remotes = _remotes(status, rates)
    warnings = [_cut(f"! {text}", width, "yellow") for text in _warnings(status)]
    used = len(head) + 1 + len(status["remotes"]) + len(warnings) + 1
    mounts = status.get("mounts") or []
    used += 3 + min(len(mounts), MOUNT_ROWS) if mounts else 0
    runs, pending = _shares(
        len(status["exposure"]), len(status["pending"]), (height or 1000) - used
    )
    parts = [*head, remotes]
    if mounts:
        parts += [Text(), mount_table(mounts, status["exposure_objective_seconds"])]
    if runs:
        parts += [Text(), _runs(status, runs)]
    if pending:
        parts += [Text(), _pending(status, pending)]
    return [*parts, *warnings]


def _headline(node: Node, width: int) -> Text:
    status = node.status
    if status is None:
        return _cut(f"cachetier at {node.url}", width, "bold")
    state = "away" if node.error is not None else str(status["state"])
    line = Text.assemble((f"cachetier {status['version']}", "bold"), "  ", _state(state))
    line.append(f"  up {shown_span(status['uptime_seconds'])}  ")
    clock = f"  {time.strftime('%H:%M:%S')}"
    line.append(_ending(node.url, max(RUN_CELLS, width - len(line) - len(clock))))
    line.append(clock, "dim")
    return _fitted(line, width)


def _risk(status: dict[str, Any], width: int) -> Text:
    """Say in a line whether the training of this node is safe."""
    objective = status["exposure_objective_seconds"]
    seconds, name = worst(status)
    line = Text.assemble(("exposed  ", "dim"))
    if not seconds:
        if all(run["durable_step"] is not None for run in status["exposure"]):
            line.append("nothing", "green")
        else:
            line.append("no durable step to count from")
    else:
        line.append(f"{shown_span(seconds)} of {cut(name, RUN_CELLS)}", _danger(seconds, objective))
    line.append(f" (objective {shown_span(objective)})", "dim")
    if status["dirty_bytes"]:
        line.append(f"   durable in {_eta(status['eta_seconds'])}")
    if status["incomplete"]["steps"]:
        line.append(f"   {status['incomplete']['steps']} incomplete", "yellow")
    return _fitted(line, width)


def _cache(status: dict[str, Any], width: int) -> Text:
    capacity, used = max(1, status["capacity_bytes"]), status["used_bytes"]
    words = f" {100 * used / capacity:.0f} % of {shown_size(capacity)}"
    words += f"   dirty {shown_size(status['dirty_bytes'])}"
    words += f"   clean {shown_size(status['clean_bytes'])}"
    if status["waiting_bytes"]:
        words += f"   puts wait for {shown_size(status['waiting_bytes'])}"
    line = Text.assemble(("cache    ", "dim"))
    cells = max(4, min(40, width - len(line) - len(words)))
    return _fitted(line.append(bar(status, cells)).append(words), width)


def _flow(status: dict[str, Any], rates: Rates, width: int) -> Text:
    drain = status["drain"]
    line = Text.assemble(("flow     ", "dim"))
    line.append(f"put {_speed(rates.put)}   drained {_speed(rates.drained)}")
    line.append(f"   restored {_speed(rates.restored)}")
    courtesy = drain.get("courtesy") or {}
    if courtesy.get("restraint", "none") != "none" and courtesy["busy_ranks"]:
        line.append(f"   gives way to {courtesy['busy_ranks']} ranks", "yellow")
    if not drain.get("pid"):
        line.append("   the drain is not running", BAD)
    return _fitted(line, width)


def _remotes(status: dict[str, Any], rates: Rates) -> Table:
    shown = table("<remote", "<state", "drained", "to go", "eta", "<held back by")
    for remote in status["remotes"]:
        rate = rates.remotes.get(remote["name"])
        shown.add_row(
            remote["name"],
            Text(remote_state(remote), STATES.get(str(remote["state"]), BAD)),
            _speed(rate),
            shown_size(remote["pending_bytes"]) if remote["pending_bytes"] else "-",
            _eta(remote["eta_seconds"]),
            _held_back(remote),
        )
    shown.expand, shown.columns[-1].ratio = True, 1  # a long reason is cut, and no other column
    return shown


def _held_back(remote: dict[str, Any]) -> Text:
    if remote["reason"]:
        return Text(str(remote["reason"]), "red")
    words = held_back(remote)
    return Text(", ".join(words) or "-", "yellow" if words else "")


def _runs(status: dict[str, Any], rows: int) -> Table:
    shown = table("<run", "exposed", "durable step", "saved", "dirty")
    objective = status["exposure_objective_seconds"]
    found = status["exposure"]
    for run in _that_fit(found, rows):
        age = run["durable_age_seconds"]
        shown.add_row(
            cut(run["run"], RUN_CELLS),
            Text(
                shown_span(run["exposure_seconds"]) if run["exposure_seconds"] else "-",
                _danger(run["exposure_seconds"], objective),
            ),
            "none" if run["durable_step"] is None else str(run["durable_step"]),
            "-" if age is None else f"{shown_span(age)} ago",
            shown_size(run["dirty_bytes"]) if run["dirty_bytes"] else "-",
        )
    return _with_rest(shown, found, rows)


def _pending(status: dict[str, Any], rows: int) -> Table:
    shown = table("<pending run", "step", "<state", "size", "<sent", "eta")
    found = status["pending"]
    unlisted = status["pending_steps"] - len(found)
    for step in _that_fit(found, rows, unlisted):
        size_bytes = max(1, step["size_bytes"])
        share = 1 - min(1.0, step["dirty_bytes"] / size_bytes)
        shown.add_row(
            cut(step["run"], RUN_CELLS),
            str(step["step"]),
            str(step["state"]),
            shown_size(step["size_bytes"]),
            Text("█" * int(10 * share)).append("░" * (10 - int(10 * share)), "dim"),
            _eta(step["eta_seconds"]),
        )
    return _with_rest(shown, found, rows, unlisted)


def _warnings(status: dict[str, Any]) -> list[str]:
    found = troubles(status, time.time())
    if len(found) > WARNINGS:
        more = len(found) - WARNINGS + 1
        found = [*found[: WARNINGS - 1], f"and {more} more: see `cachetier status`"]
    return found


def _shares(runs: int, pending: int, lines: int) -> tuple[int, int]:
    """Divide ``lines`` among the rows of two tables, each with a title and a line before it.

    Each gets half, or what the other leaves; one without room for a row is left out.
    """
    lines -= 2 * (bool(runs) + bool(pending))
    if runs and pending and lines < 2:
        return _shares(runs, 0, lines + 4)
    shown_runs = max(0, min(runs, max(lines // 2, lines - pending)))
    return shown_runs, max(0, min(pending, lines - shown_runs))


# --- several -------------------------------------------------------------------------------------


def _fleet(nodes: Sequence[Node], width: int, height: int) -> list[RenderableType]:
    """Return one row for each node, the worst first."""
    ranked = sorted(nodes, key=_badness, reverse=True)
    rows = len(nodes) if not height else max(1, height - 8)
    shown = table("<node", "<state", "exposed", "dirty", "eta", "put", "drained", "used", "warn")
    for node in _that_fit(ranked, rows):
        shown.add_row(*_row(node))
    ready = sum(
        node.error is None and (node.status or {}).get("state") == "ready" for node in nodes
    )
    head = Text.assemble((f"{len(nodes)} nodes", "bold"), f"  {ready} ready  ")
    head.append(time.strftime("%H:%M:%S"), "dim")
    troubles = [line for node in ranked for line in _troubles(node)]
    body: list[RenderableType] = [head, Text(), _with_rest(shown, ranked, rows), Text()]
    return body + [_cut(f"! {line}", width, "yellow") for line in troubles[:WARNINGS]]


def _row(node: Node) -> tuple[RenderableType, ...]:
    status, rates = node.status, node.rates()
    if node.error is not None or status is None:
        return (_label(node.url), Text(f"away {_away(node)}", BAD), *"-------")
    exposed, _ = worst(status)
    return (
        _label(node.url),
        _state(worst_state(status)),
        Text(
            shown_span(exposed) if exposed else "-",
            _danger(exposed, status["exposure_objective_seconds"]),
        ),
        shown_size(status["dirty_bytes"]) if status["dirty_bytes"] else "-",
        _eta(status["eta_seconds"]),
        _speed(rates.put),
        _speed(rates.drained),
        f"{100 * status['used_bytes'] / max(1, status['capacity_bytes']):.0f} %",
        str(len(status["warnings"])) if status["warnings"] else "",
    )


def _troubles(node: Node) -> list[str]:
    if node.error is not None:
        return [f"{_label(node.url)}: {node.error}"]
    return [f"{_label(node.url)}: {text}" for text in _warnings(node.status or {})]


def _badness(node: Node) -> tuple[bool, bool, float]:
    status = node.status
    if node.error is not None or status is None:
        return True, True, 0.0
    return False, worst_state(status) != "ready", worst(status)[0]


def _label(url: str) -> str:
    return _ending(url.partition("://")[2], RUN_CELLS)


# --- words ---------------------------------------------------------------------------------------


def _that_fit(found: Sequence[Any], rows: int, unlisted: int = 0) -> Sequence[Any]:
    """Return what fits ``rows``, with one of them to say how many more there are."""
    return found if len(found) + unlisted <= rows else found[: rows - 1]


def _with_rest(shown: Table, found: Sequence[Any], rows: int, unlisted: int = 0) -> Table:
    if more := len(found) + unlisted - len(_that_fit(found, rows, unlisted)):
        shown.add_row(f"and {more} more", style="dim")
    return shown


def _state(state: str) -> Text:
    return Text(state, STATES.get(state, BAD))


def _danger(seconds: float, objective: float) -> str:
    return STYLES.get(danger(seconds, objective), "")


def _speed(rate: float | None) -> str:
    return "-" if rate is None else f"{shown_size(rate)}/s"


def _eta(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return shown_span(seconds) if seconds else "-"


def _away(node: Node) -> str:
    return shown_span(0.0 if node.away_since is None else time.monotonic() - node.away_since)


def _ending(name: str, cells: int) -> str:
    """Return as much of a name's end as fits: the ends of paths and hosts tell them apart."""
    return name if len(name) <= cells else f"…{name[1 - cells :]}"


def _cut(text: str, width: int, style: str = "") -> Text:
    return _fitted(Text(" ".join(text.split()), style), width)


def _fitted(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    line.no_wrap = True
    return line
