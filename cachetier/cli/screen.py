"""The screens of ``status`` and ``top``, made from the fields of the status object alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from cachetier_client.identity.names import MOUNT_MARK
from cachetier_client.units import counted, shown_size, shown_span
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cachetier.cli.output import table
from cachetier.status.rates import Node, Rates
from cachetier.status.words import (
    danger,
    held_back,
    last_error,
    pace_limits,
    remote_state,
    troubles,
    worst,
    worst_state,
)

BAR_CELLS = 34
PENDING_ROWS = 10
PENDING_CELLS = 20
RUN_ROWS = 5
SUPERSEDED_SHOWN_SECONDS = 86_400.0
MOUNT_ROWS = 4
NAME_CELLS = 28
WARNINGS = 3
RUN_CELLS = 24
BAD = "bold red"
NO = Text("no", "green")
STATES = {"ready": "bold green", "ok": "green"}
STATES |= {"throttled": "yellow", "leaving": "yellow", "unasked": "dim"}
STYLES = {"bad": BAD, "near": "yellow"}


# --- `status` -------------------------------------------------------------------------------------


def rendered(status: dict[str, Any], now: float) -> Group:
    """Return the status object as it is shown."""
    parts: list[Any] = [_title(status), Text(), _facts(status)]
    if status["exposure"]:
        parts += [Text(), _exposure_table(status)]
    if mounts := status.get("mounts"):
        parts += [Text(), mount_table(mounts, status["exposure_objective_seconds"])]
        parts += [Text(line, style="dim") for line in superseded_lines(mounts, now)]
    if status["pending"]:
        parts += [Text(), _pending_steps(status["pending"], status["pending_steps"], now)]
    for warning in _alarms(status, now):
        parts += [Text(), Text(f"! {warning}", style="yellow")]
    return Group(*parts)


def mount_table(mounts: Sequence[dict[str, Any]], objective: float) -> Table:
    """Show what each mount of the S3 door has that its bucket does not show yet."""
    titles = "<objects of", "exposed", "not in the bucket", "dirty", "in conflict"
    worst_first = sorted(mounts, key=lambda mount: -mount["exposure_seconds"])
    rows = (
        (
            cut(f"{MOUNT_MARK}{mount['mount']}", NAME_CELLS),
            _late(mount["exposure_seconds"], objective) if mount["objects"] else NO,
            str(mount["objects"] or "-"),
            size_or_dash(mount["dirty_bytes"]),
            Text(str(mount["conflicts"]), BAD) if mount["conflicts"] else "-",
        )
        for mount in worst_first[:MOUNT_ROWS]
    )
    return table(*titles, rows=rows, more=len(mounts) - MOUNT_ROWS)


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
        role = str(remote.get("role", "durable"))
        grid.add_row("remote" if role == "durable" else "replica", _remote(remote))
    grid.add_row("drain", _drain(status["drain"]))
    if decided := (status["drain"].get("compression") or {}).get("runs"):
        run, verdict = list(decided.items())[-1]
        grid.add_row("auto", f"{cut(run, PENDING_CELLS)}: {verdict['why']}")
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
        eta = status["eta_seconds"]
        done = "eta not known yet" if eta is None else f"done in {shown_span(eta)}"
        dirty = f"{shown_size(status['dirty_bytes'])} in {shards}, oldest {age}, {done}\n"
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
    state = str(remote["state"])
    is_replica = remote.get("role") == "replica"
    name = f"{remote['name']}  " if is_replica else ""
    shown = remote_state(remote), STATES.get(state, BAD)
    text = Text.assemble(f"{name}{remote['url']}  ", shown)
    if remote["endpoint"]:
        text.append(f"  at {remote['endpoint']}", "dim")
    if is_replica:
        text.append(f"\n{_lag(remote)}; {_drain(remote.get('drain') or {})}")
    if limits := pace_limits(remote):
        text.append(f"\n{', '.join(limits)}", "yellow")
    if remote["reason"]:
        text.append(f"\n{remote['reason']}", "red")
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
    courtesy = drain.get("courtesy") or {}
    if courtesy.get("restraint", "none") != "none":
        busy = courtesy["busy_ranks"]  # none: the kernel says that somebody waits
        ranks = f" ({counted(busy, 'busy rank')})" if busy else ""
        words.append(f"holds back for training{ranks}")
    words += [counted(n, noun) for noun in ("failure", "restart") if (n := drain.get(f"{noun}s"))]
    return ", ".join(words)


def _pending_steps(pending: list[dict[str, Any]], steps: int, now: float) -> Table:
    """Return the table of the ``steps`` not yet durable; ``eta`` is until they are."""
    titles = "<pending run", "step", "<state", "size", "dirty", "age", "eta"
    rows = [
        (
            cut(str(each["run"]), PENDING_CELLS),
            str(each["step"]),
            str(each["state"]),
            shown_size(each["size_bytes"]),
            size_or_dash(each["dirty_bytes"]),
            shown_span(max(0.0, now - each["started_at"])),
            "-" if each["eta_seconds"] is None else shown_span(each["eta_seconds"]),
        )
        for each in pending[:PENDING_ROWS]
    ]
    return table(*titles, rows=rows, more=steps - len(rows))


def _alarms(status: dict[str, Any], now: float) -> list[str]:
    found = [*_exposure_alarms(status), *(str(warning) for warning in status["warnings"])]
    if status["waiting_bytes"]:
        found.append(f"puts wait for {shown_size(status['waiting_bytes'])} of room")
    found += last_error(status["drain"], now)
    found += [str(conflict) for conflict in status["drain"].get("conflicts", ())]
    return found


def _exposure_table(status: dict[str, Any]) -> Table:
    """Return a row for each run, the most exposed first, at most ``RUN_ROWS``."""
    titles = "<run", "durable step", "begun", "exposed", "dirty"
    runs = status["exposure"]
    rows = (
        (
            cut(str(run["run"]), NAME_CELLS),
            "none" if run["durable_step"] is None else str(run["durable_step"]),
            _ago(run["durable_age_seconds"]),
            _exposed(run, status["exposure_objective_seconds"]),
            size_or_dash(run["dirty_bytes"]),
        )
        for run in runs[:RUN_ROWS]
    )
    return table(*titles, rows=rows, more=len(runs) - RUN_ROWS)


def _exposure_alarms(status: dict[str, Any]) -> list[str]:
    """Say which runs are exposed for longer than they should be, and which steps are stuck."""
    objective = status["exposure_objective_seconds"]
    late = [run for run in status["exposure"] if run["exposure_seconds"] > objective]
    found = [
        f"{cut(str(run['run']), NAME_CELLS)} would lose {shown_span(run['exposure_seconds'])} of "
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


def _exposed(run: dict[str, Any], objective: float) -> Text | str:
    """Say for how long a run is exposed: `-` where there is no durable step to count from."""
    if run["exposure_seconds"]:
        return _late(run["exposure_seconds"], objective)
    return "-" if run["durable_step"] is None else NO


def _late(seconds: float, objective: float) -> Text:
    return Text(shown_span(seconds), BAD if seconds > objective else "yellow")


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
    if seconds:
        at_risk = f"{shown_span(seconds)} of {cut(name, RUN_CELLS)}", _danger(seconds, objective)
    elif all(run["durable_step"] is not None for run in status["exposure"]):
        at_risk = "nothing", "green"
    else:
        at_risk = "no durable step to count from", ""
    line = Text.assemble(("exposed  ", "dim"), at_risk)
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
    flows = f"put {_speed(rates.put)}   drained {_speed(rates.drained)}"
    line = Text.assemble(("flow     ", "dim"), flows, f"   restored {_speed(rates.restored)}")
    courtesy = drain.get("courtesy") or {}
    if courtesy.get("restraint", "none") != "none" and courtesy["busy_ranks"]:
        line.append(f"   gives way to {courtesy['busy_ranks']} ranks", "yellow")
    if not drain.get("pid"):
        line.append("   the drain is not running", BAD)
    return _fitted(line, width)


def _remotes(status: dict[str, Any], rates: Rates) -> Table:
    titles = "<remote", "<state", "drained", "to go", "eta", "<held back by"
    rows = (
        (
            remote["name"],
            Text(remote_state(remote), STATES.get(str(remote["state"]), BAD)),
            _speed(rates.remotes.get(remote["name"])),
            size_or_dash(remote["pending_bytes"]),
            _eta(remote["eta_seconds"]),
            _held_back(remote),
        )
        for remote in status["remotes"]
    )
    shown = table(*titles, rows=rows)
    shown.expand, shown.columns[-1].ratio = True, 1  # a long reason is cut, and no other column
    return shown


def _held_back(remote: dict[str, Any]) -> Text:
    if remote["reason"]:
        return Text(str(remote["reason"]), "red")
    words = held_back(remote)
    return Text(", ".join(words) or "-", "yellow" if words else "")


def _runs(status: dict[str, Any], rows: int) -> Table:
    found, more = _that_fit(status["exposure"], rows)
    objective = status["exposure_objective_seconds"]
    cells = (
        (
            cut(run["run"], RUN_CELLS),
            _endangered(run["exposure_seconds"], objective),
            "none" if run["durable_step"] is None else str(run["durable_step"]),
            _ago(run["durable_age_seconds"]),
            size_or_dash(run["dirty_bytes"]),
        )
        for run in found
    )
    return table("<run", "exposed", "durable step", "saved", "dirty", rows=cells, more=more)


def _pending(status: dict[str, Any], rows: int) -> Table:
    found, more = _that_fit(status["pending"], rows, status["pending_steps"])
    cells = (
        (
            cut(step["run"], RUN_CELLS),
            str(step["step"]),
            str(step["state"]),
            shown_size(step["size_bytes"]),
            _share_sent(step),
            _eta(step["eta_seconds"]),
        )
        for step in found
    )
    return table("<pending run", "step", "<state", "size", "<sent", "eta", rows=cells, more=more)


def _share_sent(step: dict[str, Any]) -> Text:
    sent = int(10 * (1 - min(1.0, step["dirty_bytes"] / max(1, step["size_bytes"]))))
    return Text("█" * sent).append("░" * (10 - sent), "dim")


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


# --- `top`: several ------------------------------------------------------------------------------


def _fleet(nodes: Sequence[Node], width: int, height: int) -> list[RenderableType]:
    """Return one row for each node, the worst first."""
    ranked = sorted(nodes, key=_badness, reverse=True)
    rows = len(nodes) if not height else max(1, height - 8)
    titles = "<node", "<state", "exposed", "dirty", "eta", "put", "drained", "used", "warn"
    found, more = _that_fit(ranked, rows)
    shown = table(*titles, rows=map(_row, found), more=more)
    ready = sum(
        node.error is None and (node.status or {}).get("state") == "ready" for node in nodes
    )
    head = Text.assemble((f"{len(nodes)} nodes", "bold"), f"  {ready} ready  ")
    head.append(time.strftime("%H:%M:%S"), "dim")
    troubles = [line for node in ranked for line in _troubles(node)]
    body: list[RenderableType] = [head, Text(), shown, Text()]
    return body + [_cut(f"! {line}", width, "yellow") for line in troubles[:WARNINGS]]


def _row(node: Node) -> tuple[str | Text, ...]:
    status, rates = node.status, node.rates()
    if node.error is not None or status is None:
        return (_label(node.url), Text(f"away {_away(node)}", BAD), *"-------")
    exposed, _ = worst(status)
    return (
        _label(node.url),
        _state(worst_state(status)),
        _endangered(exposed, status["exposure_objective_seconds"]),
        size_or_dash(status["dirty_bytes"]),
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


def cut(text: str, cells: int) -> str:
    return text if len(text) <= cells else f"{text[: cells - 1]}…"


def size_or_dash(size_bytes: int) -> str:
    return shown_size(size_bytes) if size_bytes else "-"


def _ago(seconds: float | None) -> str:
    return "-" if seconds is None else f"{shown_span(seconds)} ago"


def _that_fit(
    found: Sequence[Any], rows: int, total: int | None = None
) -> tuple[Sequence[Any], int]:
    """Return what fits ``rows``, and how many more there are, which one of the rows says."""
    total = len(found) if total is None else total
    shown = found if total <= rows else found[: rows - 1]
    return shown, total - len(shown)


def _state(state: str) -> Text:
    return Text(state, STATES.get(state, BAD))


def _danger(seconds: float, objective: float) -> str:
    return STYLES.get(danger(seconds, objective), "")


def _endangered(seconds: float, objective: float) -> Text:
    return Text(shown_span(seconds) if seconds else "-", _danger(seconds, objective))


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
