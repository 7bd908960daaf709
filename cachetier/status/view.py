"""The one view of a node: its verdict, figures and tables, in words. Each surface lays them out.

``cachetier status`` and ``top``, the console and its page of the cluster show what is computed
here, from the status object and the rates between two of them, so that a figure reads the same
wherever it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cachetier_client.identity.names import GENERATION_MARK, MOUNT_MARK
from cachetier_client.units import counted, shown_size, shown_span

from cachetier.status.rates import Node, Rates
from cachetier.status.words import (
    OTHERS,
    Status,
    danger,
    held_back,
    is_replica,
    last_error,
    long_span,
    quiet_runs,
    remote_state,
    remote_trouble,
    runbook,
    worst,
    worst_state,
)

GOOD, NEAR, BAD = "good", "near", "bad"
QUIET_SHOWN = 3
NOT_ANNOUNCED = "could not be announced in the bucket"  # a warning while S3 takes no notes
TONES = {"ready": GOOD, "ok": GOOD, "throttled": NEAR, "leaving": NEAR, "unasked": ""}


class TableCell(NamedTuple):
    """A figure in words; ``share`` is drawn as a bar, ``path`` is what it names: a link."""

    text: str
    tone: str = ""
    share: float | None = None
    path: tuple[Any, ...] = ()


class Tile(NamedTuple):
    """One figure of now with its unit, and a note beside it; ``share`` is drawn as a bar."""

    label: str
    value: str
    note: str = ""
    tone: str = ""
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of figures. ``<`` before a title: of words, ``~``: of words that may wrap.

    ``more`` is how many rows there are beside these.
    """

    titles: tuple[str, ...]
    rows: Sequence[tuple[TableCell, ...]]
    more: int = 0

    def first(self, rows: int) -> Table:
        """Return a table of at most ``rows`` lines, the last of which may count the others."""
        if len(self.rows) + self.more <= rows:
            return self
        shown = self.rows[: max(0, rows - 1)]
        return replace(self, rows=shown, more=len(self.rows) + self.more - len(shown))

    def without(self, *titles: str) -> Table:
        """Return the table without the columns of these titles."""
        kept = [at for at, title in enumerate(self.titles) if title.lstrip("<~") not in titles]
        rows = [tuple(row[at] for at in kept) for row in self.rows]
        return replace(self, titles=tuple(self.titles[at] for at in kept), rows=rows)


class Headline(NamedTuple):
    """The loss if this node were lost now, in a sentence; ``details`` stand below it."""

    sentence: str
    tone: str
    details: tuple[str, ...]


def verdict(status: Status) -> Headline:
    """Say what losing the node now would cost."""
    seconds, name = worst(status)
    objective = status["exposure_objective_seconds"]
    details = [f"objective {shown_span(objective)}"]
    if seconds:
        what = "writes" if name.startswith(MOUNT_MARK) else "training"
        sentence = f"Losing this node now costs {long_span(seconds)} of {what}."
        details.insert(0, f"the most exposed is {name}")
    elif any(run["durable_step"] is None for run in status["exposure"] if run["run"] != OTHERS):
        sentence = "No step is whole on this node yet, so its loss costs no finished step."
    else:
        sentence = "Losing this node now costs nothing."
    if status["dirty_bytes"]:
        eta = status["eta_seconds"]
        unknown = "the time until all is sent is not known yet"
        details.append(unknown if eta is None else f"all sent in {shown_span(eta)}")
    if size_bytes := status.get("memory_bytes"):
        details.append(f"{shown_size(size_bytes)} are in memory, which a power cut would take")
    details += [
        f"{each['run']} put nothing for {shown_span(each['quiet_seconds'])} in the middle of a "
        f"save; losing the node would cost {shown_span(each['exposure_seconds'])}"
        for each in quiet_runs(status)[:QUIET_SHOWN]
    ]
    if stuck := status["incomplete"]["steps"]:
        oldest = shown_span(status["incomplete"]["oldest_seconds"])
        what = f"{counted(stuck, 'step')} incomplete, the oldest since {oldest}"
        details.append(f"{what}: {runbook('incomplete-checkpoint')}")
    tone = danger(seconds, objective) or (NEAR if stuck else GOOD)
    return Headline(sentence, tone, tuple(details))


def tiles(status: Status, rates: Rates) -> list[Tile]:
    """Return the figures of now."""
    capacity = max(1, status["capacity_bytes"])
    share = status["used_bytes"] / capacity
    backlog, waits = status["dirty_bytes"], status["waiting_bytes"]
    oldest = f", oldest {shown_span(status['oldest_dirty_seconds'])}" if backlog else ""
    puts_wait = f"puts wait for {shown_size(waits)}" if waits else "no put waits"
    running = status["drain"].get("pid")
    shards = counted(status["dirty_shards"], "shard")
    return [
        Tile("Acknowledged", speed(rates.put), puts_wait, BAD if waits else ""),
        Tile("Drained", speed(rates.drained), _drain_note(status["drain"]), "" if running else BAD),
        Tile("Backlog", shown_size(backlog), f"{shards}{oldest}"),
        Tile("Sent in", eta(status["eta_seconds"]), counted(status["pending_steps"], "step")),
        Tile("Restored", speed(rates.restored), restore_note(status)),
        Tile("Cache", f"{100 * share:.0f} %", f"of {shown_size(capacity)}", share=share),
    ]


def restore_note(status: Status) -> str:
    """Say how far the restores are that run, or how much is here without any."""
    now = status.get("restore", {"wanted_bytes": 0})
    if not now["wanted_bytes"]:
        return f"{shown_size(status['clean_bytes'])} clean here"
    done, wanted = shown_size(now["done_bytes"]), shown_size(now["wanted_bytes"])
    peers = now["from_peers_bytes"]
    of_peers = f", {100 * peers / (peers + now['from_remotes_bytes']):.0f} % from peers"
    left = "" if now["eta_seconds"] is None else f", done in {shown_span(now['eta_seconds'])}"
    return f"{done} of {wanted}{left}{of_peers if peers else ''}"


def _drain_note(drain: Status) -> str:
    if not drain.get("pid"):
        return "the drain is not running"
    return ", ".join(restraint(drain)) or f"{drain.get('in_flight', 0)} in flight"


def restraint(drain: Status) -> list[str]:
    """Say whether a drain holds back for training; empty if not."""
    courtesy = drain.get("courtesy") or {}
    if courtesy.get("restraint", "none") == "none":
        return []
    busy = courtesy["busy_ranks"]  # none: the kernel says that somebody waits
    return ["holds back for training" + (f" ({counted(busy, 'busy rank')})" if busy else "")]


def runs(status: Status | None, names: Sequence[str] | None = None) -> Table:
    """Return a row for each run, the most exposed first; without a status only ``names``."""
    exposure = status["exposure"] if status is not None else ()
    known = {str(each["run"]): each for each in exposure}
    names = list(known) if names is None else names
    seen = {*names, OTHERS}
    objective = status["exposure_objective_seconds"] if status is not None else 0.0
    rows = [_run(each, objective) for run, each in known.items() if run in seen]
    rows += [(TableCell(run, path=(run,)), *_dashes(4)) for run in names if run not in known]
    return Table(("<run", "exposed", "durable step", "saved", "dirty"), rows)


def _run(run: Status, objective: float) -> tuple[TableCell, ...]:
    name, age, step = str(run["run"]), run["durable_age_seconds"], run["durable_step"]
    return (
        TableCell(name, path=(name,) if name != OTHERS else ()),
        exposed(run["exposure_seconds"], objective, calm=step is not None),
        TableCell(str(step) if step is not None else "-" if name == OTHERS else "none"),
        TableCell("-" if age is None else f"{shown_span(age)} ago"),
        TableCell(size_or_dash(run["dirty_bytes"])),
    )


def mounts(found: Sequence[Status], objective: float = 0.0) -> Table:
    """Return what each mount of the S3 door has that its bucket does not show yet, worst first."""
    rows = [
        (
            TableCell(name := f"{MOUNT_MARK}{each['mount']}", path=(name,)),
            exposed(each["exposure_seconds"], objective, calm=not each["objects"]),
            TableCell(str(each["objects"] or "-")),
            TableCell(size_or_dash(each["dirty_bytes"])),
            TableCell(str(each["conflicts"] or "-"), BAD if each["conflicts"] else ""),
        )
        if "objects" in each
        else (TableCell(name := f"{MOUNT_MARK}{each['mount']}", path=(name,)), *_dashes(4))
        for each in sorted(found, key=lambda each: -each.get("exposure_seconds", 0.0))
    ]
    return Table(("<objects of", "exposed", "not in the bucket", "dirty", "in conflict"), rows)


def pending(status: Status, now: float) -> Table:
    """Return the steps that wait to be durable, oldest first; a branch of a run by its path."""
    rows = [
        (
            TableCell(shown_path(str(each["run"]))),
            TableCell(str(each["step"]), path=(each["run"], each["step"])),
            TableCell(str(each["state"])),
            TableCell(shown_size(each["size_bytes"])),
            TableCell(size_or_dash(each["dirty_bytes"])),
            TableCell(shown_span(max(0.0, now - each["started_at"]))),
            TableCell("", share=1 - min(1.0, each["dirty_bytes"] / max(1, each["size_bytes"]))),
            TableCell(eta(each["eta_seconds"])),
        )
        for each in status["pending"]
    ]
    titles = "<pending run", "step", "<state", "size", "dirty", "age", "<sent", "durable in"
    return Table(titles, rows, status["pending_steps"] - len(rows))


def remotes(status: Status, rates: Rates) -> Table:
    """Return a row for each remote, the durable one first."""
    rows = [
        (
            TableCell(str(each["name"])),
            TableCell(remote_state(each), tone_of(str(each["state"]))),
            TableCell(speed(rates.remotes.get(each["name"]))),
            TableCell(size_or_dash(each["pending_bytes"])),
            TableCell(eta(each["eta_seconds"])),
            TableCell(why := ", ".join(held_back(each)) or "-", "" if why == "-" else NEAR),
        )
        for each in status["remotes"]
    ]
    titles = "<remote", "<state", "drained", "to go", "done in", "~held back by"
    return Table(titles, rows)


def codecs(status: Status) -> tuple[Table, str]:
    """Return what ``auto`` decided lately, the newest first, and what all codecs saved."""
    drain = status["drain"]
    decided = (drain.get("compression") or {}).get("runs") or {}
    rows = [
        (
            TableCell(str(run)),
            TableCell("compress" if each.get("compress") else "store"),
            TableCell(each["why"]),
        )
        for run, each in reversed(decided.items())
    ]
    totals = [
        f"{codec}: {shown_size(each['stored_bytes'])} for {shown_size(each['size_bytes'])}"
        for codec, each in (drain.get("codecs") or {}).items()
        if codec != "raw"
    ]
    return Table(("<run", "<decision", "~why"), rows), "; ".join(totals)


def troubles(status: Status, now: float) -> list[str]:
    """Say what is wrong with a node beside its exposure, the gravest first.

    Each trouble is said once: what follows from a remote that is away is not told beside it. A
    sentence ends with the runbook that says what to do, where there is one.
    """
    drain, damaged, waits = status["drain"], status["quarantined_shards"], status["waiting_bytes"]
    has_s3 = not s3_troubles(status, now)
    shards = f"{counted(damaged, 'damaged shard')}: `cachetier fsck`, {runbook('damaged-shard')}"
    found = [shards] if damaged else []
    found += [_away(each, now) for each in status["remotes"] if _is_away(each)]
    found += [str(each) for each in status["warnings"] if has_s3 or NOT_ANNOUNCED not in each]
    found += [f"puts wait for {shown_size(waits)} of room: {runbook('puts-wait')}"] if waits else []
    found += last_error(drain, now) if has_s3 else []
    return found + [str(conflict) for conflict in drain.get("conflicts", ())]


def s3_troubles(status: Status, now: float) -> list[str]:
    """Return the trouble with the durable remote, as ``troubles`` has it; none if it is well."""
    found = (each for each in status["remotes"] if _is_away(each) and not is_replica(each))
    return [_away(each, now) for each in found]


def _is_away(remote: Status) -> bool:
    return tone_of(str(remote["state"])) == BAD


def _away(remote: Status, now: float) -> str:
    costs, page = "nothing is lost meanwhile", f"remote-{remote['state']}"
    if is_replica(remote):
        page, costs = "replica-away", "steps that are evicted meanwhile never get there"
        if remote.get("required"):
            costs = "nothing is evicted here until it is back"
    advice = f"{costs}; `cachetier doctor` says what is wrong: {runbook(page)}"
    return f"{remote_trouble(remote, now)}; {advice}"


# --- several nodes --------------------------------------------------------------------------------


def fleet(nodes: Iterable[Node], now: float) -> Table:
    """Return a row for each node, the worst first; ``now`` is monotonic.

    The last column names the run that is the most exposed, or says why a node is away. Such a node
    has the dirty bytes that it had when it last answered.
    """
    rows = [_node(node, now) for node in sorted(nodes, key=_badness)]
    titles = "<node", "<state", "exposed", "dirty", "done in", "put", "drained"
    return Table((*titles, "used", "warn", "version", "~why"), rows)


def fleet_tiles(nodes: Sequence[Node]) -> list[Tile]:
    """Return how many nodes there are, and the sums of what they say, or last said."""
    known = [node.status for node in nodes if node.status is not None]
    ready = sum(
        node.error is None and worst_state(node.status or {}) == "ready"
        for node in nodes
        if node.status is not None
    )
    dirty, used, capacity = (
        sum(status[f"{of}_bytes"] for status in known) for of in ("dirty", "used", "capacity")
    )
    rates = [node.rates() for node in nodes]
    put, drained = (sum(getattr(each, of) or 0 for each in rates) for of in ("put", "drained"))
    return [
        Tile("node" if len(nodes) == 1 else "nodes", str(len(nodes)), f"{ready} ready"),
        Tile("dirty", shown_size(dirty)),
        Tile("acknowledged", speed(put)),
        Tile("drained", speed(drained)),
        Tile("used", shown_size(used), f"of {shown_size(capacity)}", share=used / max(1, capacity)),
    ]


def fleet_summary(nodes: Sequence[Node]) -> str:
    """Return the tiles of several nodes as a sentence."""
    shown = ((f"{each.value} {each.label}", each.note) for each in fleet_tiles(nodes)[:-1])
    return ", ".join(filter(None, (words for pair in shown for words in pair)))


def _node(node: Node, now: float) -> tuple[TableCell, ...]:
    status, rates = node.status, node.rates()
    label = TableCell(node.url.partition("://")[2] or node.url, path=(node.url,))
    if node.error is not None or status is None:
        known = TableCell(size_or_dash(status["dirty_bytes"]) if status else "-")
        return (label, away(node, now), *_dashes(1), known, *_dashes(6), TableCell(str(node.error)))
    seconds, name = worst(status)
    state = worst_state(status)
    used = status["used_bytes"] / max(1, status["capacity_bytes"])
    return (
        label,
        TableCell(state, tone_of(state)),
        exposed(seconds, status["exposure_objective_seconds"]),
        TableCell(size_or_dash(status["dirty_bytes"])),
        TableCell(eta(status["eta_seconds"])),
        TableCell(speed(rates.put)),
        TableCell(speed(rates.drained)),
        TableCell(f"{100 * used:.0f} %"),
        TableCell(str(len(status["warnings"]) or "-")),
        TableCell(status["version"]),
        TableCell(name if seconds else "-"),
    )


def _badness(node: Node) -> tuple[bool, bool, float, str]:
    status = node.status
    if node.error is not None or status is None:
        return False, False, 0.0, node.url
    return True, worst_state(status) == "ready", -worst(status)[0], node.url


# --- words ----------------------------------------------------------------------------------------


def away(node: Node, now: float) -> TableCell:
    """Return for how long a node has not answered, or has refused us."""
    what = "refuses us" if node.is_refused else "away"
    return TableCell(f"{what} {shown_span(now - (node.away_since or now))}", BAD)


def shown_path(run: str) -> str:
    """Return a run, or the path that a branch of it stands for; ``!`` is its step."""
    return run.replace(GENERATION_MARK, "/").rstrip("/")


def tone_of(state: str) -> str:
    """Return the tone of a node's or a remote's state."""
    return TONES.get(state, BAD)


def exposed(seconds: float, objective: float, *, calm: bool = True) -> TableCell:
    """Return for how long something is exposed; ``calm``: it is safe where it is not."""
    if seconds:
        return TableCell(shown_span(seconds), danger(seconds, objective))
    return TableCell("no", GOOD) if calm else TableCell("-")


def speed(rate: float | None) -> str:
    return "-" if rate is None else f"{shown_size(rate)}/s"


def size_or_dash(size_bytes: float) -> str:
    return shown_size(size_bytes) if size_bytes else "-"


def eta(seconds: float | None) -> str:
    """Return how long it takes yet: ``-`` if nothing waits."""
    if seconds is None:
        return "unknown"
    return shown_span(seconds) if seconds else "-"


def _dashes(cells: int) -> tuple[TableCell, ...]:
    return (TableCell("-"),) * cells
