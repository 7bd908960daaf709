"""Restore one step on four nodes: each alone, then as peers. ``make peers``.

Everything is a process on this machine. Ends with 0 only if every comparison held.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.table import Table

from cachetier.testing.seaweed import seaweedfs
from examples.demo.narrate import Narrator
from examples.demo.telling import run_story, work_dir_of
from examples.demo.verdict import Comparison, concluded
from examples.peers.cluster import Cluster, Node, restored

NODES = 4
SHARDS = {f"rank-{rank}": random.Random(rank).randbytes(24 << 20) for rank in range(4)}
SIZE_BYTES = sum(map(len, SHARDS.values()))
BYTES_PER_SECOND = 30e6
BAR_WIDTH = 24


@dataclass(frozen=True, slots=True)
class Reads:
    """What a node read at one restore: from the bucket, and from each of its peers."""

    what: str
    node: str
    bucket_bytes: int
    peer_bytes: dict[str, int]


class Story:
    """Tells the story once; every process it starts is ended when ``stack`` is."""

    def __init__(self, work_dir: Path, narrator: Narrator, stack: ExitStack) -> None:
        self._narrator, self._stack = narrator, stack
        self._work_dir = work_dir
        self.comparisons: list[Comparison] = []
        self.reads: list[Reads] = []

    def tell(self) -> None:
        """Go through all parts; ``comparisons`` and ``reads`` fill up on the way."""
        say, phase = self._narrator.say, self._narrator.phase
        phase(f"Start S3, held to {BYTES_PER_SECOND / 1e6:.0f} MB/s in all, and publish a step")
        endpoint = self._stack.enter_context(seaweedfs(self._work_dir / "s3"))
        cluster = Cluster(self._work_dir, endpoint, NODES, BYTES_PER_SECOND, self._narrator)
        self._stack.callback(cluster.store.close)
        self._cluster = cluster
        cluster.save(SHARDS)
        say(f"{len(SHARDS)} shards, {SIZE_BYTES / 1e6:.0f} MB; the node that saved them is gone")

        phase(f"{NODES} empty nodes restore it at once, each from the bucket")
        with cluster.nodes(NODES, peers=False) as nodes:
            alone = self._restored("each alone", nodes)

        phase(f"{NODES} empty nodes restore it at once, as peers")
        with cluster.nodes(NODES, peers=True) as nodes:
            self._know_each_other(nodes)
            together = self._restored("as peers", nodes)
            self._compare(
                "the peers took the bucket less than half of the bytes", 2 * together < alone
            )
            *others, replaced = nodes
            phase(f"{replaced.name} is replaced by an empty one, and restores from the others")
            replaced.lose()
            replaced.start(self._narrator)
            self._know_each_other(nodes)
            from_bucket = self._restored("replaced", [replaced], of=[*others, replaced])
            self._compare("it read the disks of its peers, not the bucket", from_bucket < 0.1)

        phase("One of the nodes is killed while the others read from it")
        with cluster.nodes(NODES, peers=True) as nodes:
            self._know_each_other(nodes)
            victim, *others = nodes
            with self._cluster.killing(victim, SIZE_BYTES):
                self._restored("one is killed", others, of=nodes)
            self._narrator.say(f"[bold]kill -9[/] of {victim.name} came half-way")

    def _know_each_other(self, nodes: Sequence[Node]) -> None:
        """Let nodes find those that started after them."""
        time.sleep(2.0)
        self._narrator.say(f"{len(nodes)} nodes list each other under `\\[peers]`")

    def _restored(self, what: str, nodes: Sequence[Node], of: Sequence[Node] = ()) -> float:
        """Have nodes restore; return the bytes from the bucket as multiples of the size."""
        before = self._cluster.store.sent_bytes
        seconds = restored(nodes)
        share = (self._cluster.store.sent_bytes - before) / SIZE_BYTES
        self._narrator.say(
            f"{what}: all of it on {len(nodes)} nodes after [bold]{seconds:.1f} s[/]; "
            f"the bucket sent [bold]{share:.2f}[/] times its size"
        )
        names = {node.store_id: node.name for node in of or nodes}
        for node in nodes:
            found = node.status()["restore"]
            peers = {names.get(each, each): size for each, size in found["peers"].items()}
            self.reads.append(Reads(what, node.name, found["from_remotes_bytes"], peers))
        same = all(node.has(SHARDS) for node in nodes)
        self._compare(f"{what}: every node has the step bit for bit", same)
        return share

    def _compare(self, what: str, held: bool) -> None:
        self.comparisons.append(Comparison(what, held))
        self._narrator.say(f"{what}: {'[green]yes[/]' if held else '[bold red]no[/]'}")


def figure(reads: Sequence[Reads]) -> Table:
    """Return who read what from where, a row for each node of each restore."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", title_justify="left")
    for title in ("restore", "node", "read from"):
        table.add_column(title)
    for number in range(NODES):
        table.add_column(f"node{number + 1}", justify="right")
    table.add_column("bucket", justify="right")
    for each in reads:
        of_peers = sum(each.peer_bytes.values())
        total = max(1, of_peers + each.bucket_bytes)
        near = round(BAR_WIDTH * of_peers / total)
        bar = f"[green]{'█' * near}[/][yellow]{'█' * (BAR_WIDTH - near)}[/]"
        cells = [each.peer_bytes.get(f"node{number + 1}", 0) for number in range(NODES)]
        sizes = [f"{size / 1e6:.0f} MB" if size else "-" for size in [*cells, each.bucket_bytes]]
        table.add_row(each.what, each.node, bar, *sizes)
    return table


def _report(story: Story, console: Console, seconds: float) -> dict[str, Any]:
    console.print()
    title = "Who read what from where: [green]from peers[/], [yellow]from the bucket[/]"
    console.print(Rule(title, align="left", style="dim"))
    console.print(figure(story.reads))
    return {
        **concluded(story.comparisons, console, seconds),
        "size_bytes": SIZE_BYTES,
        "reads": [
            {
                "what": each.what,
                "node": each.node,
                "bucket_bytes": each.bucket_bytes,
                "peer_bytes": each.peer_bytes,
            }
            for each in story.reads
        ],
    }


def main() -> int:
    """Tell the story, print the report, and return the exit status."""
    return run_story(Story, _report, work_dir_of("python -m examples.peers", __doc__, ".peers"))


if __name__ == "__main__":
    sys.exit(main())
