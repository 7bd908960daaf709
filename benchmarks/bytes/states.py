"""Bytes as training has them: the demo's model after some steps, weights and AdamW's moments.

::

    python -m benchmarks.bytes.states DIRECTORY STEP...

Trains in a process of its own, so that torch and its threads are gone when something is measured.
The same every time on one machine: fixed seed, one thread.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.scratch import ROOT

ROWS = 16
SEED = 7


@dataclass(frozen=True, slots=True)
class State:
    """One kind of bytes, and the size of the values in it."""

    kind: str
    step: int
    element_size: int
    path: Path

    def read(self) -> bytes:
        return self.path.read_bytes()


def trained(directory: Path, steps: Sequence[int]) -> list[State]:
    """Train, and return what there is after each of ``steps``.

    Raises:
        RuntimeError: Training failed, or there is no torch.
    """
    command = [sys.executable, "-m", "benchmarks.bytes.states", str(directory), *map(str, steps)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the demo's model cannot be trained here: {done.stderr[-1000:]}")
    found = []
    for path in sorted(directory.glob("*.state")):
        kind, step, element_size = path.stem.split(",")
        found.append(State(kind, int(step), int(element_size), path))
    return found


def main(directory: Path, steps: Sequence[int]) -> None:
    """Train up to the last of ``steps`` and write the states of each into ``directory``."""
    import torch

    from examples.demo.model import ByteTransformer, Shape
    from examples.demo.text import Windows, standard_library

    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    shape = Shape()
    directory.mkdir(parents=True, exist_ok=True)
    model = ByteTransformer(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    windows = Windows(standard_library(), length=shape.window, rank=0, world_size=1, seed=SEED)

    def write(step: int) -> None:
        states = list(optimizer.state.values())
        tensors = {
            "weights": list(model.parameters()),
            "moments": [state[name] for name in ("exp_avg", "exp_avg_sq") for state in states],
        }
        for kind, parts in tensors.items():
            whole = torch.cat([part.detach().reshape(-1) for part in parts])
            for name, typed in (("fp32", whole), ("bf16", whole.to(torch.bfloat16))):
                raw = typed.contiguous().view(torch.uint8).numpy().tobytes()
                path = directory / f"{name} {kind},{step},{typed.element_size()}.state"
                path.write_bytes(raw)

    for step in range(1, max(steps) + 1):
        inputs, targets = windows.next_batch(ROWS)
        optimizer.zero_grad()
        model(inputs, targets).backward()
        optimizer.step()
        if step in steps:
            write(step)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(step) for step in sys.argv[2:]])
