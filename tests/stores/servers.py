"""The S3 servers that ``make stores`` puts in the place of SeaweedFS, each in child processes.

Programs are looked for where ``make stores`` has them, below ``build/stores``. Every server listens
on free ports of loopback, keeps its data below a folder of the caller's, and ends with the block,
or with the thread that entered it.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from cachetier.testing.s3_endpoint import DEFAULT_BUCKET, S3Endpoint, free_ports
from cachetier.testing.seaweed import seaweedfs
from cachetier.testing.weed import LAUNCH, OWNER, wait_for_bucket

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "build" / "stores"
HOST = "127.0.0.1"
STOP_SECONDS = 5.0

NGINX = """
daemon off;
user {user};
pid {folder}/pid;
error_log {folder}/log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/bodies; proxy_temp_path {folder}/answers;
    fastcgi_temp_path {folder}/1; uwsgi_temp_path {folder}/2; scgi_temp_path {folder}/3;
    server {{
        listen 127.0.0.1:{port};
        {settings}
        location / {{ proxy_pass {upstream}; }}
    }}
}}
"""
# Without the first every signature is refused, without the second every body above 1 MiB.
HOST_KEPT = "proxy_set_header Host $http_host;"
ANY_BODY = "client_max_body_size 0;"
# The time-outs are those of the file that the package installs.
HAPROXY = """
defaults
    mode http
    option httplog
    option dontlognull
    timeout connect 5000
    timeout client 50000
    timeout server 50000
frontend s3
    bind 127.0.0.1:{port}
    default_backend store
backend store
    server one {upstream}
"""


Before = Callable[[S3Endpoint, Path], AbstractContextManager[S3Endpoint]]


def program(name: str) -> str:
    """Return the path of a program: where ``make stores`` puts it, else that of the machine.

    A package that this Python has already (``make bench``) is not installed a second time.

    Raises:
        FileNotFoundError: It is in neither.
    """
    own = [PROGRAMS / name / "bin", PROGRAMS / name / "usr/sbin", Path(sys.executable).parent]
    places = [*map(str, own), os.environ["PATH"], "/usr/sbin"]
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        raise FileNotFoundError(f"no {name}: make stores ONLY={name}")
    return found


def libraries_of(name: str) -> dict[str, str]:
    """Return the variable that lets a program of Debian's, unpacked there, find its libraries."""
    folders = (PROGRAMS / name / "usr" / "lib").glob("*-linux-gnu")
    return {"LD_LIBRARY_PATH": os.pathsep.join(map(str, folders))}


@contextmanager
def serving(
    endpoint: S3Endpoint, command: str, folder: Path, **environment: str
) -> Iterator[S3Endpoint]:
    """Run a server that listens where the endpoint says, until the block ends.

    Raises:
        RuntimeError: It ended before; the message ends with its log.
    """
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *command.split()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
        )
    try:
        while process.poll() is None:
            with suppress(OSError), socket.create_connection((HOST, urlsplit(endpoint.url).port)):
                break
            time.sleep(0.05)
        else:
            raise RuntimeError(f"{command}: {(folder / 'log').read_text()[-2000:]}")
        yield endpoint
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _alone() -> tuple[str, S3Endpoint]:
    """Return the address and the endpoint of a server that knows no checksums and conditions."""
    where = f"{HOST}:{free_ports(1)[0]}"
    return where, S3Endpoint(f"http://{where}", DEFAULT_BUCKET, OWNER, "readback", False)


@contextmanager
def rclone(folder: Path) -> Iterator[S3Endpoint]:
    """Serve a local folder."""
    where, endpoint = _alone()
    (folder / "data").mkdir()
    keys = f"{OWNER.access_key},{OWNER.secret_key}"
    command = f"{program('rclone')} serve s3 --addr {where} --auth-key {keys} {folder}/data"
    with serving(endpoint, command, folder, RCLONE_CONFIG=os.devnull):
        assert wait_for_bucket(endpoint, lambda: True)
        yield endpoint


@contextmanager
def juicefs(folder: Path) -> Iterator[S3Endpoint]:
    """Serve a volume with its metadata in SQLite and its bytes in a local folder."""
    where, endpoint = _alone()
    meta = f"sqlite3://{folder}/meta.db"
    made = f"{program('juicefs')} format --storage file --bucket {folder}/data {meta} volume"
    subprocess.run(made.split(), check=True, capture_output=True)
    command = (
        f"{program('juicefs')} gateway --no-banner --no-usage-report --multi-buckets --keep-etag "
        f"--object-meta --metrics {HOST}:{free_ports(1)[0]} --cache-dir {folder}/cache "
        f"--log {folder}/gateway.log {meta} {where}"
    )
    keys = {"MINIO_ROOT_USER": OWNER.access_key, "MINIO_ROOT_PASSWORD": OWNER.secret_key}
    with serving(endpoint, command, folder, HOME=str(folder), **keys):
        assert wait_for_bucket(endpoint, lambda: True)
        yield endpoint


@contextmanager
def nginx_before(
    behind: S3Endpoint, folder: Path, settings: str = f"{HOST_KEPT} {ANY_BODY}"
) -> Iterator[S3Endpoint]:
    """Serve a server through nginx, with its defaults but for ``settings``."""
    (port,) = free_ports(1)
    user = pwd.getpwuid(os.getuid()).pw_name  # not nobody, who may not enter the folder
    words = {"user": user, "folder": folder, "port": port, "upstream": behind.url}
    (folder / "nginx.conf").write_text(NGINX.format(settings=settings, **words))
    command = f"{program('nginx')} -p {folder} -c {folder}/nginx.conf -e {folder}/errors"
    with serving(behind.behind(f"http://{HOST}:{port}"), command, folder) as front:
        yield front


@contextmanager
def haproxy_before(behind: S3Endpoint, folder: Path) -> Iterator[S3Endpoint]:
    """Serve a server through HAProxy, as Debian's package configures it."""
    (port,) = free_ports(1)
    upstream = urlsplit(behind.url).netloc
    (folder / "haproxy.cfg").write_text(HAPROXY.format(port=port, upstream=upstream))
    command = f"{program('haproxy')} -f {folder}/haproxy.cfg"
    front = behind.behind(f"http://{HOST}:{port}")
    with serving(front, command, folder, **libraries_of("haproxy")):
        yield front


@contextmanager
def seaweedfs_behind(before: Before, folder: Path) -> Iterator[S3Endpoint]:
    """Serve SeaweedFS behind a proxy, which is told no more than S3 needs."""
    with (
        seaweedfs(folder / "seaweedfs") as behind,
        before(behind, folder) as front,
    ):
        yield front


_ONE_AT_A_TIME = "no condition of a write is known: of writers at once, each wins"
_LATE = "a write that the network brings late undoes a newer one"
_FOLDERS = "a key cannot be another's folder (`a` beside `a/b`)"
_COPIES = "ranges are not copied: the bytes are sent"
_ETAG = "the ETag that ends an upload in parts is not that of the object"
_ENCODINGS = ", `Content-Encoding`, `Content-Language`"
_HEADERS = "content headers that it does not know are dropped (`Expires`{})"


@dataclass(frozen=True)
class Store:
    """A server, what it needs, and where it falls short of S3.

    Attributes:
        version: What tells it; the first number of what it says.
        debian: The package that brings the program, if PyPI does not.
        settings: What ours and its own must be set to.
        short: What it does otherwise, by a pattern of the tests that fail of it.
    """

    start: Callable[[Path], AbstractContextManager[S3Endpoint]]
    title: str
    version: tuple[str, ...]
    settings: str
    debian: str = ""
    short: Mapping[str, str] = field(default_factory=dict)


_READ_BACK = '`assume = ["readback", "unconditional"]`'
STORES = {
    "nginx": Store(
        partial(seaweedfs_behind, nginx_before),
        "SeaweedFS behind nginx",
        ("-v",),
        "nginx: `proxy_set_header Host $http_host`, `client_max_body_size 0`",
        debian="nginx",
    ),
    "haproxy": Store(
        partial(seaweedfs_behind, haproxy_before),
        "SeaweedFS behind HAProxy",
        ("-v",),
        "none",
        debian="haproxy",
    ),
    "rclone": Store(
        rclone,
        "rclone `serve s3`",
        ("version",),
        _READ_BACK,
        short={
            r"racers|deletion_of_a_version": _ONE_AT_A_TIME,
            r"\[late-(Put|Delete)Object\]": _LATE,
            r"copied_(and_sent|part|from)|one_copied|was_copied": _COPIES,
            r"prefix_lists_its_keys_in_order": _FOLDERS,
            r"content_headers": _HEADERS.format(""),
            r"^test_parts_become_one": _ETAG,
            r"part_sent_again": "a part cannot be sent again with other bytes",
            r"completed_upload": "parts must be numbered from 1 without a gap",
        },
    ),
    "juicefs": Store(
        juicefs,
        "JuiceFS `gateway`",
        ("version",),
        f"{_READ_BACK}; the gateway: `--multi-buckets --keep-etag --object-meta`",
        short={
            r"racers|deletion_of_a_version": _ONE_AT_A_TIME,
            r"\[late-(Put|Delete)Object\]": _LATE,
            r"prefix_lists_its_keys_in_order": _FOLDERS,
            r"its_label|label_is_kept|content_headers": _HEADERS.format(_ENCODINGS),
            r"too_small_a_part": "parts below 5 MiB are taken",
        },
    ),
}
