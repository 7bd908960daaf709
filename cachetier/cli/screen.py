"""The screens of ``status`` and ``top``: what the view of a node says, laid out on a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cachetier_client.identity.names import MOUNT_MARK
from cachetier_client.units import counted, shown_size, shown_span
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cachetier.cli.output import table
from cachetier.status import view
from cachetier.status.rates import Node, Rates
from cachetier.status.view import TableCell
from cachetier.status.words import is_replica, pace_limits, remote_state

BAR_CELLS = 34
PENDING_ROWS = 10
RUN_ROWS = 5
SUPERSEDED_SHOWN_SECONDS = 86_400.0
MOUNT_ROWS = 4
NAME_CELLS = 28
WARNINGS = 3
PENDING_CELLS = 20
RUN_CELLS = 24
SENT_CELLS = 10
WIDE = 100
BAD = "bold red"
STYLES = {view.BAD: BAD, view.NEAR: "yellow", view.GOOD: "green"}


# --- `status` -------------------------------------------------------------------------------------


def rendered(status: dict[str, Any], now: float) -> Group:
    """Return the status object as it is shown."""
    parts: list[Any] = [_title(status), *_verdict(status), Text(), _facts(status)]
    mounts = status.get("mounts") or []
    for shown, rows, cells in (
        (view.runs(status), RUN_ROWS, NAME_CELLS),
        (view.mounts(mounts, status["exposure_objective_seconds"]), MOUNT_ROWS, NAME_CELLS),
        (view.pending(status, now).without("sent"), PENDING_ROWS, PENDING_CELLS),
    ):
        if shown.rows:
            parts += [Text(), laid_out(shown.first(rows + 1), cells)]
    parts += [Text(line, style="dim") for line in superseded_lines(mounts, now)]
    for warning in view.troubles(status, now):
        parts += [Text(), Text(f"! {warning}", style="yellow")]
    return Group(*parts)


def laid_out(shown: view.Table, cells: int = NAME_CELLS) -> Table:
    """Return a table of the view for the terminal: names are cut, and shares are bars."""
    rows = (
        (Text(cut(row[0].text, cells)), *(_cell(each) for each in row[1:])) for row in shown.rows
    )
    return table(*shown.titles, rows=rows, more=shown.more)


def _cell(cell: TableCell) -> Text:
    if cell.share is None or cell.text:
        return Text(cell.text, STYLES.get(cell.tone, ""))
    full = int(SENT_CELLS * cell.share)
    return Text("█" * full).append("░" * (SENT_CELLS - full), "dim")


def _verdict(status: dict[str, Any]) -> tuple[Text, Text]:
    sentence, tone, details = view.verdict(status)
    return Text(sentence, STYLES[tone]), Text(", ".join(details), "dim")


def superseded_lines(mounts: Sequence[dict[str, Any]], now: float) -> list[str]:
    """Say which objects were not written lately, as something newer is in the bucket."""
    return [
        f"not written to {MOUNT_MARK}{mount['mount']}: {each['key']}, {each['reason']}"
        for mount in mounts
        for each in mount.get("superseded") or ()
        if now - each["superseded_at"] < SUPERSEDED_SHOWN_SECONDS
    ]


def _title(status: dict[str, Any]) -> Text:
    line = Text.assemble(
        (f"cachetier {status['version']}", "bold"),
        "  ",
        _state(str(status["state"])),
        f"  up {shown_span(status['uptime_seconds'])}  pid {status['pid']}",
    )
    if status["reason"]:
        line.append(f"\n{status['reason']}", BAD)
    return line


def _facts(status: dict[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("cache", _used(status))
    grid.add_row("", _bytes(status))
    if (uid := status.get("shared_uid")) is not None:
        grid.add_row("ranks", f"run as user {uid}, as the service does: see docs/security.md")
    for remote in status["remotes"]:
        grid.add_row("replica" if is_replica(remote) else "remote", _remote(remote))
    grid.add_row("drain", _drain(status["drain"]))
    for run, _, why in view.codecs(status)[0].rows[:1]:
        grid.add_row("auto", f"{cut(run.text, RUN_CELLS)}: {why.text}")
    disk = status["disk"]
    direct = "O_DIRECT" if disk["direct_io"] else "no O_DIRECT"
    free = shown_size(disk["free_bytes"])
    grid.add_row("disk", f"{disk['directory']} ({disk['filesystem']}, {direct}, {free} free)")
    grid.add_row("socket", f"unix://{status['socket']}")
    connections = counted(status["connections"], "connection")
    grid.add_row("http", f"{status['http'] or 'off'}   {connections} at both")
    return grid


def bar(status: dict[str, Any], cells: int) -> Text:
    """Draw the capacity: dirty, clean and free cells, and room that is only reserved."""
    capacity = max(1, status["capacity_bytes"])
    # Rounded up: there is a cell for anything.
    dirty = min(cells, -(-status["dirty_bytes"] * cells // capacity))
    full = max(dirty, min(cells, -(-status["used_bytes"] * cells // capacity)))
    drawn = Text().append("█" * dirty, "yellow")
    drawn.append("█" * (full - dirty), "green")
    return drawn.append("░" * (cells - full), "dim")


def _used(status: dict[str, Any]) -> Text:
    capacity, used = max(1, status["capacity_bytes"]), status["used_bytes"]
    share = f"{100 * used / capacity:.0f} %"
    return bar(status, BAR_CELLS).append(f"  {shown_size(used)} of {shown_size(capacity)}, {share}")


def _bytes(status: dict[str, Any]) -> Text:
    """Say what lies here, by what becomes of it."""
    parts: list[str | tuple[str, str]] = [("nothing dirty   ", "green")]
    if status["dirty_shards"]:
        age = shown_span(status["oldest_dirty_seconds"])
        shards = counted(status["dirty_shards"], "shard")
        dirty = f"{shown_size(status['dirty_bytes'])} in {shards}, oldest {age}\n"
        parts = [("dirty ", "yellow"), dirty]
    parts += [("clean ", "green"), shown_size(status["clean_bytes"])]
    if status["evictable_bytes"] != status["clean_bytes"]:
        parts += [f", {shown_size(status['evictable_bytes'])} can go for room"]
    if most := status.get("lent_most"):
        parts += [(f"\nlent {shown_size(status['lent_bytes'])} to readers", "yellow")]
        parts += [f", most to {most['holder']}: {shown_size(most['size_bytes'])}"]
    if status["quarantined_shards"]:
        parts += [(f"   {status['quarantined_shards']} quarantined", BAD)]
    for what, count, noun, style in (
        ("pinned", status["pinned"], "step", ""),
        ("local only, by policy:", status["local_only"], "step", "yellow"),
        ("unwanted", status["unwanted"], "shard", "yellow"),
    ):
        if number := count[f"{noun}s"]:
            parts += [(f"\n{what} ", style)]
            parts += [f"{shown_size(count['size_bytes'])} in {counted(number, noun)}"]
    return Text.assemble(*parts)


def _remote(remote: dict[str, Any]) -> Text:
    name = f"{remote['name']}  " if is_replica(remote) else ""
    state = remote_state(remote), STYLES.get(view.tone_of(str(remote["state"])), "dim")
    text = Text.assemble(f"{name}{remote['url']}  ", state)
    if remote["endpoint"]:
        text.append(f"  at {remote['endpoint']}", "dim")
    if is_replica(remote):
        text.append(f"\n{_lag(remote)}; {_drain(remote.get('drain') or {})}")
    if limits := pace_limits(remote):
        text.append(f"\n{', '.join(limits)}", "yellow")
    return text


def _lag(remote: dict[str, Any]) -> str:
    """Say what a replica is still owed, and what it will never get."""
    pending, given_up = remote["pending_shards"], remote["given_up_steps"]
    to_go = f"{shown_size(remote['pending_bytes'])} in {counted(pending, 'shard')} to go"
    words = (
        to_go if pending else "has everything",
        "required" if remote["required"] else "",
        f"{counted(given_up, 'step')} given up" if given_up else "",
    )
    return ", ".join(filter(None, words))


def _drain(drain: dict[str, Any]) -> str:
    words = [f"pid {drain['pid']}" if drain.get("pid") else "not running"]
    if "in_flight" in drain:
        words.append(f"{drain['in_flight']} in flight")
    if "drained_bytes" in drain:
        words.append(f"{shown_size(drain['drained_bytes'])} drained since start")
    for codec, taken in (drain.get("codecs") or {}).items():
        if codec != "raw":
            before, after = shown_size(taken["size_bytes"]), shown_size(taken["stored_bytes"])
            words.append(f"{codec} made {after} of {before}")
    if copied_bytes := drain.get("copied_bytes"):
        words.append(f"{shown_size(copied_bytes)} copied in the bucket")
    if (packs := drain.get("packs") or {}).get("packs"):
        words.append(f"{packs['shards']} shards in {counted(packs['packs'], 'pack')}")
    words += view.restraint(drain)
    words += [counted(n, noun) for noun in ("failure", "restart") if (n := drain.get(f"{noun}s"))]
    return ", ".join(words)


# --- `top` ---------------------------------------------------------------------------------------


def drawn(nodes: Sequence[Node], width: int, height: int, interval: float) -> RenderableType:
    """Return what is shown on ``width`` cells; ``height`` 0: as much as there is."""
    body = _node(nodes[0], width, height) if len(nodes) == 1 else _fleet(nodes, width, height)
    if not height:
        return Group(*body)
    foot = f"every {interval:g} s   q: end"
    return Group(*body[: height - 1], Text(foot, style="dim"))


# --- `top`: one node -----------------------------------------------------------------------------


def _node(node: Node, width: int, height: int) -> list[RenderableType]:
    status = node.status
    head: list[RenderableType] = [_headline(node, width)]
    if node.error is not None:
        gone = view.away(node, time.monotonic()).text.replace("away", "away for", 1)
        head.append(_cut(f"{gone}: {node.error}; asking on", width, BAD))
    if status is None:
        return head
    now, rates = time.time(), node.rates()
    if status["reason"]:
        head.append(_cut(str(status["reason"]), width, BAD))
    head += [*(_fitted(line, width) for line in _verdict(status)), _figures(status, rates), Text()]
    mounts = view.mounts(status.get("mounts") or [], status["exposure_objective_seconds"])
    mounts, remotes = mounts.first(MOUNT_ROWS + 1), view.remotes(status, rates)
    warnings = [_cut(f"! {text}", width, "yellow") for text in _few(view.troubles(status, now))]
    used = len(head) + 3 + len(remotes.rows) + len(warnings) + 1
    used += 2 + len(mounts.rows) + bool(mounts.more) if mounts.rows else 0
    runs, pending = view.runs(status), view.pending(status, now).without("dirty", "age")
    shares = _shares(len(runs.rows), len(pending.rows), (height or 1000) - used)
    shown = laid_out(remotes)
    shown.columns[-1].no_wrap, shown.columns[-1].overflow = True, "ellipsis"
    shown.expand, shown.columns[-1].ratio = True, 1  # a long reason is cut, and no other column
    parts = [*head, shown]
    if mounts.rows:
        parts += [Text(), laid_out(mounts)]
    for each, rows in zip((runs, pending), shares, strict=True):
        if rows:
            parts += [Text(), laid_out(each.first(rows), RUN_CELLS)]
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


def _figures(status: dict[str, Any], rates: Rates) -> Table:
    """Return the figures of now, two on a line."""
    grid = Table.grid(padding=(0, 1))
    for style in ("dim", "", "dim") * 2:
        grid.add_column(style=style, no_wrap=True)
    found = view.tiles(status, rates)
    for pair in zip(found[::2], found[1::2], strict=True):
        cells = [
            (each.label.lower(), each.value, Text(each.note, STYLES.get(each.tone, "dim")))
            for each in pair
        ]
        grid.add_row(*cells[0], *cells[1])
    return grid


def _few(found: list[str]) -> list[str]:
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


# --- `top`: several ------------------------------------------------------------------------------


def _fleet(nodes: Sequence[Node], width: int, height: int) -> list[RenderableType]:
    """Return one row for each node, the worst first."""
    now = time.monotonic()
    rows = len(nodes) if not height else max(1, height - 8)
    shown = view.fleet(nodes, now)
    wrong = [f"{row[0].text}: {row[-1].text}" for row in shown.rows if row[1].tone == view.BAD]
    head = Text(view.fleet_summary(nodes), "bold").append(time.strftime("  %H:%M:%S"), "dim")
    cells = min(RUN_CELLS, max(12, width - 66))
    left_out = ("version", "why", *(("used",) if width < WIDE else ()))
    ends = [(TableCell(_ending(row[0].text, cells)), *row[1:]) for row in shown.rows]
    shown = replace(shown, rows=ends).without(*left_out).first(rows)
    wrong += [
        f"{each.url.partition('://')[2]}: {text}"
        for each in nodes
        if each.error is None and each.status is not None
        for text in view.troubles(each.status, time.time())
    ]
    body: list[RenderableType] = [_fitted(head, width), Text(), laid_out(shown), Text()]
    return body + [_cut(f"! {line}", width, "yellow") for line in wrong[:WARNINGS]]


# --- words ---------------------------------------------------------------------------------------


def cut(text: str, cells: int) -> str:
    return text if len(text) <= cells else f"{text[: cells - 1]}…"


def _state(state: str) -> Text:
    return Text(state, STYLES.get(view.tone_of(state), "dim"))


def _ending(name: str, cells: int) -> str:
    """Return as much of a name's end as fits: the ends of paths and hosts tell them apart."""
    return name if len(name) <= cells else f"…{name[1 - cells :]}"


def _cut(text: str, width: int, style: str = "") -> Text:
    return _fitted(Text(" ".join(text.split()), style), width)


def _fitted(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    line.no_wrap = True
    return line
