"""What stored bytes are of their size: planes and zstd, beside plain zstd and two other libraries.

Made block by block as the drain makes objects, their seek table included. A figure is the worst of
the training steps that were looked at.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from cachetier_client.bucket_format.stored import table_bytes
from cachetier_client.io.digests import BLOCK_BYTES, blocks_of

from benchmarks.bytes.payloads import gaussian_bf16, gaussian_fp32
from benchmarks.bytes.sizes import sizes_of
from benchmarks.bytes.states import State, trained
from benchmarks.measures import Bar, Result, at_most
from benchmarks.scratch import ROOT, Bench
from cachetier.codec import planes
from cachetier.codec.frames import FrameEncoder

LEVEL = 1
INTERPRETER_VARIABLE = "CACHETIER_BENCH_YARDSTICKS"
BARS = {
    "bf16 weights": at_most(0.70),
    "fp32 weights": at_most(0.86),
    "gaussian bf16": at_most(0.70),
    "gaussian fp32": at_most(0.86),
}


def measure(bench: Bench) -> list[Result]:
    states = [*trained(bench.directory, sizes_of(bench).training_steps), *_drawn(bench.directory)]
    ratios: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for state in states:
        found = {**_ours(state), **_yardsticks(state, bench.say)}
        shown = ", ".join(f"{name} {ratio:.3f}" for name, ratio in found.items())
        bench.say(f"{state.kind}, step {state.step}: {shown}")
        for name, ratio in found.items():
            ratios[state.kind][name].append(ratio)
    return list(_results(ratios))


def _results(ratios: dict[str, dict[str, list[float]]]) -> Iterator[Result]:
    for kind, by_name in ratios.items():
        for name, found in by_name.items():
            bar: Bar | None = BARS.get(kind) if name == "planes:1" else None
            what = f"stored size / size of {kind}: {name}"
            yield Result(what, max(found), "", bar, tuple(found))


def _drawn(directory: Path) -> Iterator[State]:
    for name, element_size, drawn in (
        ("gaussian bf16", 2, gaussian_bf16()),
        ("gaussian fp32", 4, gaussian_fp32()),
    ):
        path = directory / f"{name}.drawn"
        path.write_bytes(drawn)
        yield State(name, 0, element_size, path)


def _ours(state: State) -> dict[str, float]:
    data, encoder = state.read(), FrameEncoder(LEVEL)

    def split(block: bytes) -> bytes:
        return encoder.encode(planes.split(block, state.element_size))

    ways: dict[str, Callable[[bytes], bytes]] = {"planes:1": split, "zstd:1": encoder.encode}
    table = table_bytes(blocks_of(len(data)))
    blocks = [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]
    return {
        name: (sum(len(encoded(block)) for block in blocks) + table) / len(data)
        for name, encoded in ways.items()
    }


def _yardsticks(state: State, say: Callable[[str], None]) -> dict[str, float]:
    """Ask the libraries that the interpreter of our environment has, if any."""
    script = Path(__file__).with_name("yardsticks.py")
    interpreter = os.environ.get(INTERPRETER_VARIABLE, sys.executable)
    command = [interpreter, str(script), str(state.path), str(state.element_size)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        say(f"no yardsticks: {done.stderr[-300:]}")
        return {}
    return {name: float(ratio) for name, ratio in json.loads(done.stdout).items()}
