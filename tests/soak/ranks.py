"""One rank of a job, as a process of its own: saves step after step until it is told to stop.

``python -m tests.soak.ranks '{"url": …}'``. What it does follows from the seed; what it was told it
appends to its file of events. A service that is away is asked again; whatever refuses a step for
good ends that step, and the next one begins.
"""

from __future__ import annotations

import ctypes
import json
import random
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cachetier_client import Checkpoint, Client
from cachetier_client.errors import CachetierClientError, WaitError

from tests.soak.history import EventLog
from tests.soak.payloads import checksum, payload, some_size

PATIENCE_SECONDS = 45.0
CALL_SECONDS = 20.0
PAUSE_SECONDS = 0.3
ABORTED, REPLACED, WAITED_FOR = 0.04, 0.25, 0.06  # shares of steps, and of puts


@dataclass(frozen=True)
class Orders:
    """What a rank is to do; ``rate`` is in bytes a second."""

    url: str
    node: str
    events: str
    seed: str
    run: str
    save: str
    rank: int
    world: int
    first_step: int
    rate: float

    def as_argument(self) -> str:
        return json.dumps(asdict(self))


class GaveUpError(Exception):
    """A call could not be had in time: the step stays as it is."""


class Rank:
    """Saves steps as its orders say."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._log = EventLog(Path(orders.events))
        self._client = Client(orders.url, fallback="fail")
        self._stopping = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def run(self) -> None:
        step = self._orders.first_step
        while not self._stopping:
            began = time.monotonic()
            sent = self._save_step(step)
            step += 1
            while time.monotonic() < began + sent / self._orders.rate and not self._stopping:
                time.sleep(0.1)

    def _save_step(self, step: int) -> int:
        """Save one step as far as it goes, and return how many bytes were offered."""
        orders, sent = self._orders, 0
        dice = random.Random(f"{orders.seed}/{orders.run}/{step}/{orders.save}/{orders.rank}")
        save = self._client.checkpoint(
            orders.run,
            step,
            rank=orders.rank,
            world_size=orders.world,
            save_id=orders.save,
            timeout_seconds=CALL_SECONDS,
        )
        try:
            for number in range(dice.randint(1, 5)):
                name = f"rank-{orders.rank}/shard-{number}"
                for version in range(1 + (dice.random() < REPLACED)):
                    sent += self._put(save, step, name, version, dice)
            if dice.random() < ABORTED:
                self._call("abort", step, save.abort)
            else:
                self._call("seal", step, lambda: save.seal() and None)
        except (GaveUpError, CachetierClientError):
            pass  # noted; a job would go on with the next step, or be started again
        return sent

    def _put(
        self, save: Checkpoint, step: int, name: str, version: int, dice: random.Random
    ) -> int:
        size = some_size(dice)
        data = payload(self._orders.run, step, self._orders.save, name, version, size)
        what = {"name": name, "size": size, "sum": checksum(data)}
        ack = "durable" if dice.random() < WAITED_FOR else "local"

        def put() -> str:
            if ack == "local":
                return save.put(data, name).level
            return self._client.put_shard(
                data,
                run=self._orders.run,
                step=step,
                name=name,
                rank=self._orders.rank,
                world_size=self._orders.world,
                save_id=self._orders.save,
                ack="durable",
                timeout_seconds=CALL_SECONDS,
            ).level

        self._call("put", step, put, **what)
        return size

    def _call(self, kind: str, step: int, call: Any, **what: Any) -> None:
        """Call until it is done, each attempt an event of its own.

        Raises:
            GaveUpError: Told to stop, or out of patience.
            CachetierClientError: It never will be.
        """
        orders = self._orders
        who = {"node": orders.node, "run": orders.run, "step": step, "save": orders.save}
        who |= {"rank": orders.rank, "world": orders.world}
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with self._log.call(kind, **who, **what) as found:
                    found["level"] = call() or ""
                return
            except WaitError as error:
                if error.code == "not_durable":
                    return  # safe on the node, which is all that is held against it
                if self._stopping or time.monotonic() > give_up_at:
                    raise GaveUpError from error
                time.sleep(PAUSE_SECONDS)


def main() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # however the soak ends, it does not outlive it
    Rank(Orders(**json.loads(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
