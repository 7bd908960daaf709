"""``python -m tests.fuzz.honest URL...``: a client beside the fuzzing, in a process of its own.

It saves and reads back through each of the doors, in turns, until its input ends. Then it reads all
again that was acknowledged, and prints what is lost and how long it waited at worst.
"""

from __future__ import annotations

import json
import random
import select
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, field

from cachetier_client import Client
from cachetier_client.errors import CachetierClientError

RUN = "honest"
SIZES = {"small": 2_000, "large": 300_000}
KEPT_STEPS = 50  # what is older is read once more and deleted
PAUSE_SECONDS = 0.2


@dataclass
class Account:
    """What an honest client did and met."""

    puts: int = 0
    reads: int = 0
    worst_seconds: float = 0.0
    worst: str = ""
    lost: list[str] = field(default_factory=list)


class Honest:
    """Saves a step after the other, each by both doors."""

    def __init__(self, urls: list[str]) -> None:
        self.account = Account()
        self._clients = [Client(url, fallback="fail") for url in urls]
        self._steps: deque[int] = deque()

    def save(self, step: int) -> None:
        """Put, seal and read a step; forget the oldest."""
        self._steps.append(step)
        for door, client in enumerate(self._clients):
            for name in SIZES:
                ids = {"rank": 0, "world_size": 1, "save_id": f"save-{step}"}
                self._timed("put", client.put_shard, _data(step, door, name),
                            run=RUN, step=step, name=f"{name}-{door}", **ids)  # fmt: skip
                self.account.puts += 1
        self._timed("seal", self._clients[0].seal, RUN, step, rank=0, world_size=1,
                    save_id=f"save-{step}")  # fmt: skip
        self._read(step)
        if len(self._steps) > KEPT_STEPS:
            oldest = self._steps.popleft()
            self._read(oldest)
            self._clients[0].delete_step(RUN, oldest)

    def read_all(self) -> None:
        for step in self._steps:
            self._read(step)

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def _read(self, step: int) -> None:
        """Read what each door stored by the other one."""
        for door in range(len(self._clients)):
            client = self._clients[-1 - door]
            for name in SIZES:
                self.account.reads += 1
                try:
                    found = self._timed("get", client.get_shard, RUN, step, f"{name}-{door}")
                except CachetierClientError as error:
                    self.account.lost.append(f"{step} {name}-{door}: {error}")
                    continue
                if bytes(found) != _data(step, door, name):  # type: ignore[call-overload]
                    self.account.lost.append(f"{step} {name}-{door}: other bytes")

    def _timed(self, what: str, call: object, *args: object, **named: object) -> object:
        began = time.monotonic()
        result = call(*args, **named)  # type: ignore[operator]
        seconds = time.monotonic() - began
        if seconds > self.account.worst_seconds:
            self.account.worst_seconds, self.account.worst = seconds, what
        return result


def _data(step: int, door: int, name: str) -> bytes:
    return random.Random(f"{step} {door} {name}").randbytes(SIZES[name])


def main() -> None:
    honest, step = Honest(sys.argv[1:]), 0
    honest.save(step)
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], PAUSE_SECONDS)[0]:
        step += 1
        honest.save(step)
    honest.read_all()
    honest.close()
    print(json.dumps(asdict(honest.account)), flush=True)


if __name__ == "__main__":
    main()
