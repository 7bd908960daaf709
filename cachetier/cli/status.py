"""``cachetier status``: the node at a glance, in eighty columns."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cachetier_client.identity.names import MOUNT_MARK
from cachetier_client.units import counted, shown_size, shown_span

from cachetier.cli.output import AsJson, Url, console, print_json, reach, reported, table
from cachetier.status.words import last_error, pace_limits, remote_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

BAR_CELLS = 34
PENDING_ROWS = 10
PENDING_CELLS = 20
RUN_ROWS = 5
SUPERSEDED_SHOWN_SECONDS = 86_400.0
MOUNT_ROWS = 4
RUN_CELLS = 28
_STYLES = {"ready": "bold green", "ok": "green", "throttled": "yellow", "unasked": "dim"}


def status(url: Url = None, as_json: AsJson = False) -> None:
    """Show what losing the node would cost, what it holds and drains, and what is wrong.

    JSON: the status object, see docs/http.md.
    """
    with reported(as_json), reach(url) as client:
        described = client.status()
        if as_json:
            print_json(described)
        else:
            console().print(rendered(described, time.time()))


def rendered(status: dict[str, Any], now: float) -> Group:
    """Return the status object as it is shown."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = [_headline(status), Text(), _facts(status)]
    if status["exposure"]:
        parts += [Text(), _exposure_table(status)]
    if mounts := status.get("mounts"):
        parts += [Text(), mount_table(mounts, status["exposure_objective_seconds"])]
        parts += [Text(line, style="dim") for line in superseded_lines(mounts, now)]
    if status["pending"]:
        parts += [Text(), _pending(status["pending"], status["pending_steps"], now)]
    for warning in _alarms(status, now):
        parts += [Text(), Text(f"! {warning}", style="yellow")]
    return Group(*parts)


def mount_table(mounts: Sequence[dict[str, Any]], objective: float) -> Table:
    """Show what each mount of the S3 door has that its bucket does not show yet."""
    from rich.text import Text

    shown = table("<objects of", "exposed", "not in the bucket", "dirty", "in conflict")
    worst_first = sorted(mounts, key=lambda mount: -mount["exposure_seconds"])
    for mount in worst_first[:MOUNT_ROWS]:
        seconds = mount["exposure_seconds"]
        style = "bold red" if seconds > objective else "yellow"
        shown.add_row(
            cut(f"{MOUNT_MARK}{mount['mount']}", RUN_CELLS),
            Text(shown_span(seconds), style) if mount["objects"] else Text("no", "green"),
            str(mount["objects"] or "-"),
            size_or_dash(mount["dirty_bytes"]),
            Text(str(mount["conflicts"]), "bold red") if mount["conflicts"] else Text("-"),
        )
    if len(mounts) > MOUNT_ROWS:
        shown.add_row(f"and {len(mounts) - MOUNT_ROWS} more", style="dim")
    return shown


def superseded_lines(mounts: Sequence[dict[str, Any]], now: float) -> list[str]:
    """Say which objects were not written lately, as something newer is in the bucket."""
    return [
        f"not written to {MOUNT_MARK}{mount['mount']}: {each['key']}, {each['reason']}"
        for mount in mounts
        for each in mount.get("superseded") or ()
        if now - each["superseded_at"] < SUPERSEDED_SHOWN_SECONDS
    ]


def _headline(status: dict[str, Any]) -> Text:
    from rich.text import Text

    state = str(status["state"])
    line = Text.assemble(
        (f"cachetier {status['version']}", "bold"),
        "  ",
        (state, _STYLES.get(state, "bold red")),
        f"  up {shown_span(status['uptime_seconds'])}  pid {status['pid']}",
    )
    if status["reason"]:
        line.append(f"\n{status['reason']}", "bold red")
    return line


def _facts(status: dict[str, Any]) -> Table:
    from rich.table import Table

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
    from rich.text import Text

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
    from rich.text import Text

    text = Text()
    if status["dirty_shards"]:
        age = shown_span(status["oldest_dirty_seconds"])
        shards = counted(status["dirty_shards"], "shard")
        text.append("dirty ", "yellow")
        text.append(f"{shown_size(status['dirty_bytes'])} in {shards}, oldest {age}, ")
        text.append(f"{_eta(status['eta_seconds'])}\n")
    else:
        text.append("nothing dirty   ", "green")
    text.append("clean ", "green")
    text.append(shown_size(status["clean_bytes"]))
    if status["evictable_bytes"] != status["clean_bytes"]:
        text.append(f", {shown_size(status['evictable_bytes'])} can go for room")
    if most := status.get("lent_most"):
        text.append(f"\nlent {shown_size(status['lent_bytes'])} to readers", "yellow")
        text.append(f", most to {most['holder']}: {shown_size(most['size_bytes'])}")
    if status["quarantined_shards"]:
        text.append(f"   {status['quarantined_shards']} quarantined", "bold red")
    for what, count, noun, style in (
        ("pinned", status["pinned"], "step", ""),
        ("local only, by policy:", status["local_only"], "step", "yellow"),
        ("unwanted", status["unwanted"], "shard", "yellow"),
    ):
        if number := count[f"{noun}s"]:
            text.append(f"\n{what} ", style)
            text.append(f"{shown_size(count['size_bytes'])} in {counted(number, noun)}")
    return text


def _eta(seconds: float | None) -> str:
    return "eta not known yet" if seconds is None else f"done in {shown_span(seconds)}"


def _remote(remote: dict[str, Any]) -> Text:
    from rich.text import Text

    state = str(remote["state"])
    is_replica = remote.get("role") == "replica"
    name = f"{remote['name']}  " if is_replica else ""
    shown = remote_state(remote), _STYLES.get(state, "bold red")
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
    words = ["has everything"]
    if remote["pending_shards"]:
        pending = counted(remote["pending_shards"], "shard")
        words = [f"{shown_size(remote['pending_bytes'])} in {pending} to go"]
    if remote["required"]:
        words.append("required")
    if remote["given_up_steps"]:
        words.append(f"{counted(remote['given_up_steps'], 'step')} given up")
    return ", ".join(words)


def _drain(drain: dict[str, Any]) -> str:
    pid = f"pid {drain['pid']}" if drain.get("pid") else "not running"
    words = [pid]
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
    for count, noun in ((drain.get("failures"), "failure"), (drain.get("restarts"), "restart")):
        if count:
            words.append(counted(count, noun))
    return ", ".join(words)


def _pending(pending: list[dict[str, Any]], steps: int, now: float) -> Table:
    """Return the table of the ``steps`` not yet durable; ``eta`` is until they are."""
    shown = table("<pending run", "step", "<state", "size", "dirty", "age", "eta")
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
    for row in rows:
        shown.add_row(*row)
    if (more := steps - len(rows)) > 0:
        shown.add_row(f"and {more} more", style="dim")
    return shown


def _alarms(status: dict[str, Any], now: float) -> list[str]:
    found = [*_exposure_alarms(status), *(str(warning) for warning in status["warnings"])]
    if status["waiting_bytes"]:
        found.append(f"puts wait for {shown_size(status['waiting_bytes'])} of room")
    found += last_error(status["drain"], now)
    found += [str(conflict) for conflict in status["drain"].get("conflicts", ())]
    return found


# --- what losing the node would cost --------------------------------------------------------------


def _exposure_table(status: dict[str, Any]) -> Table:
    """Return a row for each run, the most exposed first, at most ``RUN_ROWS``."""
    shown = table("<run", "durable step", "begun", "exposed", "dirty")
    runs = status["exposure"]
    for run in runs[:RUN_ROWS]:
        shown.add_row(
            cut(str(run["run"]), RUN_CELLS),
            "none" if run["durable_step"] is None else str(run["durable_step"]),
            _ago(run["durable_age_seconds"]),
            _exposed(run, status["exposure_objective_seconds"]),
            size_or_dash(run["dirty_bytes"]),
        )
    if len(runs) > RUN_ROWS:
        shown.add_row(f"and {len(runs) - RUN_ROWS} more", style="dim")
    return shown


def _exposure_alarms(status: dict[str, Any]) -> list[str]:
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
