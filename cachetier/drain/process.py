"""The drain process: ``python -m cachetier.drain.process <descriptor> <parent>``.

``serve`` starts it with one end of a socket pair, and it ends with ``serve``: the kernel kills it
when its parent dies, and the channel closes. A lock in the cache directory keeps a drain that is
still ending apart from its successor.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from cachetier.clock import SystemClock
from cachetier.drain.channel import AskingEnd, ChannelClosedError
from cachetier.drain.courtesy import be_courteous, die_with
from cachetier.drain.loop import Calls, Drain, Signals, Size
from cachetier.errors import StoppingError
from cachetier.remote.factory import bucket_of, open_store
from cachetier.remote.settings import RemoteSettings

LOCK_NAME = "drain.lock"
LOCK_TRIES = 100
LOCK_PAUSE_SECONDS = 0.1

log = logging.getLogger(__name__)


def main(descriptor: int, parent: int) -> int:
    """Drain until ``serve`` says so, or ends."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for serve, which then tells us
    signals = Signals()
    signal.signal(signal.SIGTERM, lambda _number, _frame: signals.stop())
    channel = AskingEnd(socket.socket(fileno=descriptor))
    receiver = signals.listen(channel)
    try:
        settings = channel.ask("hello", pid=os.getpid(), courtesy=be_courteous()).fields["settings"]
        lock = lock_drain(Path(settings["lock"]), signals)
        _drain(channel, signals, settings)
        os.close(lock)
    except (ChannelClosedError, StoppingError):
        pass
    finally:
        channel.close()
        receiver.join()
    return 0


def lock_drain(path: Path, signals: Signals) -> int:
    """Take the drain lock, waiting a while for a predecessor to end.

    Raises:
        SystemExit: It does not.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            signals.sleep(LOCK_PAUSE_SECONDS)
        else:
            return descriptor
    raise SystemExit(f"another drain holds {path}")


def _drain(channel: AskingEnd, signals: Signals, settings: dict[str, Any]) -> None:
    remote = RemoteSettings.from_json(settings["remote"])
    size = Size(**settings["size"])
    calls = Calls()
    store = open_store(remote, observe=calls.observe, max_connections=size.uploads + size.parts + 1)
    drain = Drain(
        channel,
        bucket_of(remote, store, sleep=signals.sleep),
        settings["store_id"],
        SystemClock(),
        probe=store.check,
        signals=signals,
        calls=calls,
        size=size,
    )
    drain.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("botocore").setLevel(logging.WARNING)
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
