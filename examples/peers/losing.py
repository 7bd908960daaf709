"""Lose a node for good whose step only its neighbours have, and go on. ``make demo LOSE=1``.

Everything is a process on this machine. Ends with 0 only if every comparison held.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from cachetier_client.errors import CachetierClientError
from rich.console import Console

from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.seaweed import seaweedfs
from examples.demo.narrate import Narrator
from examples.demo.telling import run_story, work_dir_of
from examples.demo.verdict import Comparison, concluded
from examples.peers.cluster import RUN, STEP, Cluster, Node

NODES = 3
SHARDS = {f"rank-{rank}": random.Random(rank).randbytes(24 << 20) for rank in range(2)}
BYTES_PER_SECOND = 1e9
OBJECTIVE_SECONDS = 15.0
FINISH_SECONDS = OBJECTIVE_SECONDS / 3  # of silence, then the peers drain what they keep
AFTER_SECONDS = 60.0


class Story:
    """Tells the story once; every process it starts is ended when ``stack`` is."""

    def __init__(self, work_dir: Path, narrator: Narrator, stack: ExitStack) -> None:
        self._narrator, self._stack, self._work_dir = narrator, stack, work_dir
        self.comparisons: list[Comparison] = []

    def tell(self) -> None:
        """Go through all parts; ``comparisons`` fills up on the way."""
        say, phase, enter = self._narrator.say, self._narrator.phase, self._stack.enter_context
        phase(f"Start S3, and {NODES} nodes that keep copies for each other")
        endpoint = enter(seaweedfs(self._work_dir / "s3"))
        s3 = enter(S3Proxy(endpoint.url))
        behind = endpoint.behind(s3.url)
        cluster = Cluster(self._work_dir, behind, NODES, BYTES_PER_SECOND, self._narrator)
        self._stack.callback(cluster.store.close)
        objective = {"CACHETIER_EXPOSURE_OBJECTIVE": f"{OBJECTIVE_SECONDS:g}s"}
        owner, *others = enter(cluster.nodes(NODES, peers=True, copies=1, **objective))

        phase(f"S3 goes away; {owner.name} saves a step")
        s3.stop()
        began_at = time.monotonic()
        with owner.client() as client:
            for name, body in SHARDS.items():
                client.put_shard(body, run=RUN, step=STEP, name=name, ack="replicated")
            client.seal(RUN, STEP)
            client.wait(RUN, STEP, "replicated", timeout_seconds=AFTER_SECONDS)
        say(f"replicated after [bold]{time.monotonic() - began_at:.1f} s[/]: a neighbour has it")

        phase(f"{owner.name} is lost for good: kill -9, and its disk is removed")
        owner.kill()
        owner.lose()
        for each in others:
            whole = _within(AFTER_SECONDS, partial(each.has, SHARDS))
            self._compare(f"{each.name} restores it bit for bit while S3 is away", whole)

        phase("S3 comes back, the node does not")
        s3.come_back()
        began_at = time.monotonic()
        published = _within(FINISH_SECONDS + AFTER_SECONDS, partial(_is_published, others[0]))
        say(f"its neighbour published it after [bold]{time.monotonic() - began_at:.1f} s[/]")
        self._compare("the step is in S3, though its node never returned", published)

        phase("An empty node takes its place")
        owner.start(self._narrator)
        self._compare(f"{owner.name} has the step again", owner.has(SHARDS))

    def _compare(self, what: str, held: bool) -> None:
        self.comparisons.append(Comparison(what, held))
        self._narrator.say(f"{what}: {'[green]yes[/]' if held else '[bold red]no[/]'}")


def _within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Return whether something holds by then; a node that cannot say is asked again."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with suppress(CachetierClientError):
            if holds():
                return True
        time.sleep(0.1)
    return False


def _is_published(node: Node) -> bool:
    with node.client() as client:
        return any("durable" in each.levels for each in client.steps(RUN))


def _report(story: Story, console: Console, seconds: float) -> dict[str, Any]:
    return concluded(story.comparisons, console, seconds)


def main() -> int:
    """Tell the story, print the report, and return the exit status."""
    return run_story(
        Story, _report, work_dir_of("python -m examples.peers.losing", __doc__, ".peers")
    )


if __name__ == "__main__":
    sys.exit(main())
