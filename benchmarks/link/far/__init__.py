"""A second host on this machine, behind a real round trip: a network namespace and a delay line.

TCP pays for it as anywhere: handshakes, slow start, windows, losses. Needs root, iproute2 and gcc.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.drain.remote import Place

SOURCE = Path(__file__).with_name("delay.c")
MTU = 9000  # with 1,500 the delay line itself would be the limit
NETS = 250


def why_not() -> str | None:
    """Return what is missing for a second host; None if it can be had."""
    if os.geteuid():
        return "only root makes network namespaces"
    missing = [name for name in ("ip", "gcc") if shutil.which(name) is None]
    if missing:
        return f"no {' and no '.join(missing)} here"
    return None if Path("/dev/net/tun").exists() else "no /dev/net/tun here"


@contextmanager
def far_host(scratch: Path, rtt_ms: float, losses_per_million: int = 0) -> Iterator[Place]:
    """Have a host that far away until the block ends.

    Raises:
        RuntimeError: It cannot be had; ``why_not`` may know why.
    """
    name, net = f"cachetier-{os.getpid()}", f"10.91.{os.getpid() % NETS}"
    program = scratch / "delay"
    if not program.exists():
        subprocess.run(["gcc", "-O2", "-pthread", "-o", program, SOURCE], check=True)
    subprocess.run(["ip", "netns", "add", name], check=True)
    line = None
    try:
        line = subprocess.Popen(
            [program, name, net, str(rtt_ms), str(MTU), "0", str(losses_per_million)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert line.stdout is not None
        if line.stdout.readline() != "ready\n":
            raise RuntimeError("the delay line did not start")
        yield Place(f"{net}.2", ("ip", "netns", "exec", name))
    finally:
        if line is not None:
            line.kill()
            line.communicate()
        subprocess.run(["ip", "netns", "delete", name], check=True)
