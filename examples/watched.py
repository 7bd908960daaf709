"""Train with files alone, and have `cachetier adopt` store each checkpoint.

The job knows nothing of cachetier: it writes `checkpoint-N/`, the marker last, and keeps one.
Start a service first, in another terminal: `cachetier dev` says which CACHETIER_URL to export.
Then: python examples/watched.py
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from cachetier_client import Client

STEPS, EVERY, STEP_SECONDS = 30, 10, 0.3


def train(out: Path, minutes_pass: Callable[[int], object]) -> None:
    """Write a checkpoint now and then, and delete the one before it.

    A real job trains for minutes from one to the next; ``minutes_pass(step)`` stands for them.
    """
    weights = bytearray(8 << 20)
    for step in range(1, STEPS + 1):
        weights[step] = step
        time.sleep(STEP_SECONDS)  # the work of a step
        if step % EVERY == 0:
            folder = out / f"checkpoint-{step}"
            folder.mkdir()
            (folder / "model.bin").write_bytes(weights)
            (folder / "trainer_state.json").write_text("{}")
            print(f"step {step} is written")
            if step > EVERY:
                minutes_pass(step - EVERY)
                shutil.rmtree(out / f"checkpoint-{step - EVERY}")


def wait_until_stored(client: Client, step: int) -> None:
    while step not in [info.step for info in client.steps(level="local")]:
        time.sleep(0.1)


def main() -> None:
    run = f"watched-{uuid.uuid4().hex[:8]}"
    with Client(run=run) as client, tempfile.TemporaryDirectory() as out:
        words = ["adopt", out, run, "--rank", "0", "--world-size", "1"]
        command = [sys.executable, "-m", "cachetier", *words]
        watcher = subprocess.Popen(command)
        try:
            train(Path(out), lambda step: wait_until_stored(client, step))
        finally:
            watcher.terminate()
            watcher.wait()
        subprocess.run([*command, "--once"], check=True)  # what came last
        steps = [info.step for info in client.steps(level="local")]
        weights = client.get_shard(None, steps[-1], "model.bin")
        print(f"steps {steps} are safe on this node; the last has {len(weights)} bytes of weights")


if __name__ == "__main__":
    main()
