"""Does ``auto`` compress when it pays, and only then? From the seal until the step is published.

The link is the sink's: so many bytes a second for all connections together, 35 ms to each answer.
Each mode drains the same bytes in turns, by a real drain process that knows from its own parts
alone how fast the link is.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cachetier_client import Client

from benchmarks.bytes.payloads import compressible, filled, gaussian_bf16, noise
from benchmarks.bytes.sizes import Sizes, sizes_of
from benchmarks.bytes.stamped import stamp
from benchmarks.bytes.states import trained
from benchmarks.drain.remote import put_held, seconds_until_durable, sink
from benchmarks.measures import Result, at_most
from benchmarks.node import node
from benchmarks.scratch import Bench, settle

MODES = ("off", "zstd:1", "auto")
RULES = json.dumps({f"{mode.replace(':', '-')}.*": mode for mode in MODES})
WARM_UP_RUN = "off.warm-up"
LATENCY_SECONDS = 0.035


@dataclass(frozen=True, slots=True)
class Link:
    """A link to measure at: its speed, how much to send, how often."""

    name: str
    bytes_per_second: float
    size_bytes: int
    runs: int


def measure(bench: Bench) -> list[Result]:
    sizes = sizes_of(bench)
    moments = next(
        state
        for state in reversed(trained(bench.directory / "states", sizes.training_steps))
        if state.kind == "fp32 moments"
    )
    kinds: dict[str, Callable[[], bytes]] = {
        "compressible": compressible,
        "gaussian bf16": gaussian_bf16,
        "real AdamW moments": moments.read,
        "random": noise,
    }
    links = [
        Link("1 GB/s", 1e9, sizes.fast_bytes, sizes.fast_runs),
        Link("50 MB/s", 5e7, sizes.slow_bytes, sizes.slow_runs),
    ]
    used = [link for link in links if link.runs]
    return [result for link in used for result in _at_link(bench, link, kinds, sizes)]


def _at_link(
    bench: Bench, link: Link, kinds: dict[str, Callable[[], bytes]], sizes: Sizes
) -> Iterator[Result]:
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    cache_dir = bench.directory / f"cache-{link.bytes_per_second:.0f}"
    settings = {"compression": RULES}
    with sink() as remote:
        remote.narrow(link.bytes_per_second, LATENCY_SECONDS)
        with (
            node(cache_dir, remote=remote.endpoint, settings=settings) as service,
            Client(service.url) as client,
        ):
            _drained(client, WARM_UP_RUN, filled(noise(), link.size_bytes // sizes.shards), 1)
            for kind, made in kinds.items():
                body = filled(made(), link.size_bytes // sizes.shards)
                for number in range(link.runs):
                    for mode in _in_turns(number):
                        run = f"{mode.replace(':', '-')}.{kind.replace(' ', '-')}.{number}"
                        taken = _drained(client, run, body, sizes.shards)
                        seconds[kind, mode].append(taken)
                shown = ", ".join(
                    f"{mode} {statistics.median(seconds[kind, mode]):.2f} s" for mode in MODES
                )
                bench.say(f"{kind} at {link.name}: {shown}")
    for kind in kinds:
        yield _result(kind, link.name, {mode: seconds[kind, mode] for mode in MODES})


def _in_turns(number: int) -> tuple[str, ...]:
    """Return the modes in an order of its own for each run: who goes first differs."""
    turn = number % len(MODES)
    return (*MODES[turn:], *MODES[:turn])


def _drained(client: Client, run: str, body: memoryview, shards: int) -> float:
    put_held(client, run, 1, (stamp(body, f"{run}/{number}") for number in range(shards)))
    settle()
    taken = seconds_until_durable(client, run, 1)
    client.delete_step(run, 1)
    return taken


def _result(kind: str, link: str, seconds: dict[str, list[float]]) -> Result:
    """Compare ``auto`` with the better of the other two, by the medians of the runs."""
    medians = {mode: statistics.median(found) for mode, found in seconds.items()}
    better = min(("off", "zstd:1"), key=lambda mode: medians[mode])
    what = f"time to durable of {kind} at {link}: auto / the better of off and zstd:1"
    pairs = zip(seconds["auto"], seconds[better], strict=True)
    runs = tuple(auto / other for auto, other in pairs)
    return Result(what, medians["auto"] / medians[better], "", at_most(1.1), runs, f"{better}")
