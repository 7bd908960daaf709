"""The drawings of docs/images, for a bright and a dark page; names of states are the code's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from cachetier.model.levels import Level
from cachetier.model.lifecycle import PartState, SaveState, ShardState
from tools.pages import DOCS

WIDTH = 500  # a phone shows all of it, in letters that can be read
LINE = 18
# Each kind of line and letter, in a bright page and in a dark one.
COLOURS = {
    "ink": ("#1f2328", "#e6edf3"),
    "quiet": ("#57606a", "#9198a1"),
    "fast": ("#1a7f37", "#3fb950"),
    "slow": ("#9a6700", "#d29922"),
    "back": ("#0969da", "#58a6ff"),
    "lost": ("#cf222e", "#ff7b72"),
}
_SHAPES = """
    .page { fill: %s; }
    .box { fill: %s; stroke: %s; stroke-width: 1.3; }
    .frame { fill: none; stroke: %s; stroke-dasharray: 5 4; }"""


def documents() -> dict[Path, str]:
    """Return the drawings."""
    drawings = {
        "path-of-a-byte": _path_of_a_byte(),
        "life-of-a-step": _life_of_a_step(),
        "levels": _levels(),
        "processes": _processes(),
        "failures": _failures(),
    }
    return {DOCS / "images" / f"{name}.svg": text for name, text in drawings.items()}


def drawing(title: str, height: int, *parts: str) -> str:
    """Return a whole picture of the parts, one above the other as they come."""
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
            f'  width="{WIDTH}" height="{height}" role="img" aria-labelledby="t" font-size="14"',
            "  font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif\">",
            f'  <title id="t">{escape(title)}</title>',
            f"  <style>{_style(0)}",
            "    text { text-anchor: middle; } .left { text-anchor: start; }",
            "    .head { font-weight: 600; font-size: 15px; }",
            f"    @media (prefers-color-scheme: dark) {{{_style(1)}\n    }}",
            "  </style>",
            *_arrow_heads(),
            f'  <rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
            *(f"  {line}" for part in parts for line in part.splitlines()),
            "</svg>\n",
        )
    )


def _style(theme: int) -> str:
    lines = [
        f"\n    .{kind} {{ fill: {colours[theme]}; }}"
        f" path.{kind} {{ fill: none; stroke: {colours[theme]}; stroke-width: 2; }}"
        for kind, colours in COLOURS.items()
    ]
    box = ("#ffffff", "#f6f8fa", "#57606a", "#8c959f")
    dark_box = ("#0d1117", "#161b22", "#8d96a0", "#6e7681")
    return _SHAPES % (box, dark_box)[theme] + "".join(lines)


def _arrow_heads() -> Iterator[str]:
    for kind in COLOURS:
        yield (
            f'  <marker id="{kind}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="6"'
            f' markerHeight="6" orient="auto"><circle cx="0" cy="0" r="0"/>'
            f'<polygon class="{kind}" points="0,0 10,5 0,10"/></marker>'
        )


def box(x: int, y: int, width: int, head: str, *lines: str, kind: str = "ink") -> str:
    """Return a box with a heading and lines of words in its middle."""
    height = 20 + LINE * (1 + len(lines))
    middle = x + width // 2
    return "\n".join(
        (
            f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>',
            words(middle, y + 24, head, kind=f"head {kind}"),
            words(middle, y + 24 + LINE, *lines),
        )
    )


def words(x: int, y: int, *lines: str, kind: str = "quiet") -> str:
    """Return lines of words below each other, the first at ``y``."""
    return "\n".join(
        f'<text class="{kind}" x="{x}" y="{y + LINE * place}">{escape(line)}</text>'
        for place, line in enumerate(lines)
    )


def arrow(kind: str, path: str) -> str:
    """Return an arrow along a path of SVG."""
    return f'<path class="{kind}" d="{path}" marker-end="url(#{kind})"/>'


def _frame(y: int, height: int, name: str) -> str:
    rect = f'<rect class="frame" x="10" y="{y}" width="480" height="{height}" rx="10"/>'
    return f"{rect}\n{words(22, y + 20, name, kind='left quiet')}"


def _path_of_a_byte() -> str:
    return drawing(
        "How a byte travels from a rank to S3 and back",
        516,
        _frame(10, 318, "one node"),
        box(26, 44, 160, "training rank", "cachetier_client"),
        box(314, 44, 160, "cachetier serve", "socket, catalog"),
        arrow("quiet", "M186 60 H312"),
        words(250, 54, "descriptor"),
        arrow("fast", "M314 86 H188"),
        words(250, 104, "ack", kind="fast"),
        arrow("fast", "M66 100 V224"),
        words(74, 156, "bytes,", "direct", kind="left fast"),
        arrow("back", "M150 226 V102"),
        words(158, 156, "get_shard, each", "block checked", kind="left back"),
        box(26, 226, 160, "NVMe", "or memory first,", "then NVMe"),
        box(314, 226, 160, "drain", "low priority,", "with carriers"),
        arrow("quiet", "M394 100 V224"),
        words(402, 166, "tasks", kind="left quiet"),
        arrow("slow", "M186 250 H312"),
        words(250, 244, "verified", kind="slow"),
        box(26, 388, 160, "peers, replicas", "the same blocks"),
        box(314, 388, 160, "S3", "plain objects,", "manifest last"),
        arrow("slow", "M394 300 V386"),
        words(402, 356, "paced", kind="left slow"),
        arrow("back", "M106 388 V302"),
        arrow("back", "M314 424 H250 V284 H188"),
        words(250, 492, "Green: what a rank waits for. The rest", "happens while it trains."),
    )


def _rows(
    pitch: int, rows: Sequence[tuple[str, Sequence[str], Sequence[tuple[str, str]]]]
) -> Iterator[str]:
    """Yield boxes below each other, an arrow from each to the next, and lines beside each."""
    for place, (head, lines, beside) in enumerate(rows):
        y = 16 + pitch * place
        yield box(16, y, 196, head, *lines)
        if place + 1 < len(rows):
            yield arrow("fast", f"M114 {y + 20 + LINE * (1 + len(lines))} V{y + pitch - 2}")
        for line, (kind, text) in enumerate(beside):
            yield words(228, y + 24 + LINE * line, text, kind=f"left {kind}")


def _life_of_a_step() -> str:
    rows = (
        (
            SaveState.OPEN,
            ("ranks put shards,", f"each is {ShardState.DIRTY}"),
            (
                ("quiet", "An abort takes a rank's part back."),
                ("quiet", "If a rank dies, the step stays"),
                ("quiet", "incomplete."),
            ),
        ),
        (
            PartState.SEALED,
            ("each rank says that", "its part is whole"),
            (
                ("fast", f"level {Level.LOCAL}, or {Level.MEMORY}"),
                ("quiet", f"{SaveState.LOCAL_ONLY}: a policy keeps it"),
                ("quiet", "on the node."),
            ),
        ),
        (
            "uploaded",
            (
                "the drain claims the step,",
                "sends and verifies shards:",
                f"each is {ShardState.CLEAN}",
            ),
            (
                ("fast", f"level {Level.REPLICATED} if a replica"),
                ("fast", "has all of it"),
                ("lost", f"{SaveState.REFUSED}: another save of this step"),
                ("lost", "was published before."),
            ),
        ),
        (
            SaveState.PUBLISHED,
            ("the manifest is written:", "every node sees it"),
            (
                ("fast", f"level {Level.DURABLE}"),
                ("lost", f"{SaveState.SUPERSEDED}: a newer save of this"),
                ("lost", "step was put with overwrite=True."),
            ),
        ),
        (
            ShardState.EVICTED,
            ("local bytes make room,", "S3 has all of them"),
            (
                ("back", f"Read again, it is {ShardState.CLEAN} again."),
                ("quiet", "Shards that are pinned stay."),
            ),
        ),
        (
            SaveState.DELETED,
            ("a person or a policy", "removes the step"),
            (("quiet", "On all nodes and in the bucket;"), ("quiet", "it never comes back.")),
        ),
    )
    return drawing("The life of a step, from the first put to its deletion", 700, *_rows(116, rows))


def _levels() -> str:
    rows = (
        (
            Level.MEMORY,
            ("the node has it, part", "of it in memory only"),
            (
                ("fast", "survives kill -9 of anything"),
                ("lost", "lost with a reboot or a power cut,"),
                ("lost", "and with the node"),
            ),
        ),
        (
            Level.LOCAL,
            ("all of it is synced", "on the node's disk"),
            (
                ("fast", "survives a power cut, and an outage"),
                ("fast", "of S3 of any length"),
                ("lost", "lost with the node's disk"),
            ),
        ),
        (
            Level.REPLICATED,
            ("and any remote has it,", "confirmed"),
            (
                ("fast", "survives the loss of the node"),
                ("lost", "lost with the node and that remote"),
            ),
        ),
        (
            Level.DURABLE,
            ("and the durable remote", "has it, confirmed"),
            (
                ("fast", "survives the loss of the node and of"),
                ("fast", "every replica"),
                ("lost", "lost with the bucket"),
            ),
        ),
    )
    return drawing("The four levels, and what each is lost with", 418, *_rows(104, rows))


def _processes() -> str:
    return drawing(
        "The processes of a node and who talks to whom",
        620,
        _frame(10, 454, "one node"),
        box(26, 40, 200, "ranks", "put and get through", "descriptors"),
        box(274, 40, 200, "other callers", "HTTP, S3 clients, top,", "console, Prometheus"),
        arrow("fast", "M126 114 V166"),
        words(134, 146, "unix socket", kind="left fast"),
        arrow("quiet", "M374 114 V166"),
        words(382, 146, "HTTP, S3 door", kind="left quiet"),
        box(26, 168, 448, "serve", "doors, restores, eviction; it alone writes the catalog"),
        arrow("slow", "M126 224 V286"),
        words(134, 260, "tasks; reports come back", kind="left slow"),
        box(26, 288, 200, "drain, one per remote", "what serve says, at its", "own pace; nice 19"),
        arrow("back", "M374 224 V286"),
        box(274, 288, 200, "carriers of serve", "receive, check and write", "what is restored"),
        arrow("slow", "M126 362 V390"),
        box(26, 392, 200, "carriers of the drain", "read, check and send"),
        arrow("slow", "M96 448 V516"),
        words(104, 496, "uploads", kind="left slow"),
        arrow("back", "M226 526 H260 V330 H272"),
        box(26, 518, 200, "S3, replicas", "plain objects"),
        box(274, 518, 200, "serve of a peer", "sends blocks, keeps copies"),
        arrow("slow", "M190 448 V484 H320 V516"),
        words(328, 506, "copies", kind="left slow"),
        arrow("back", "M474 546 H482 V196 H476"),
        words(250, 604, "One that dies is started again, and its work is repeated."),
    )


def _failures() -> str:
    rows = (
        ("a rank dies", "The step stays incomplete.", "Save it again.", "fast"),
        ("serve is killed", "Calls repeat, then ranks save to S3.", "It is started again.", "fast"),
        (
            "the drain is killed",
            "Ranks see nothing; parts that were",
            "not recorded are sent again.",
            "fast",
        ),
        (
            "power cut, reboot",
            f"What is {Level.LOCAL} stays;",
            f"what was only in {Level.MEMORY} is lost.",
            "slow",
        ),
        (
            "the disk fails",
            "Puts stop; evicted shards still read.",
            "Flush what it has, then replace it.",
            "slow",
        ),
        (
            "the node is lost",
            f"What is not {Level.REPLICATED} or {Level.DURABLE}",
            "is lost: top shows how much.",
            "lost",
        ),
        ("S3 is away", "Nothing, until the cache is full.", "Then what when_full says.", "fast"),
        (
            "the bucket is lost",
            "Nodes and replicas may have steps;",
            "what none of them has is lost.",
            "lost",
        ),
    )
    parts = [
        part
        for place, (head, first, second, kind) in enumerate(rows)
        for part in (
            box(16, 16 + 60 * place, 190, head, kind=kind),
            words(222, 16 + 60 * place + 16, first, second, kind="left quiet"),
        )
    ]
    legend = words(250, 520, "Green: nothing is lost. Amber: look at once. Red: bytes are lost.")
    return drawing("What fails, and what happens", 540, *parts, legend)
