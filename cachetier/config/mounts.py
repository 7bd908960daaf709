"""The settings of what the S3 door offers: a table ``[[s3_mount]]``, or JSON in CACHETIER_S3_MOUNT.

Source: docs/s3.md, "Mounts".
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from cachetier_client.errors import InvalidNameError
from cachetier_client.identity.names import GENERATION_MARK, RESERVED_SEGMENT, checked_run
from cachetier_client.identity.remote_url import remote_of

from cachetier.config.fields import record, records, required, setting
from cachetier.config.types import TEXT, Duration, checked, listed, one_of, span
from cachetier.model.levels import Level
from cachetier.model.objects import DEFAULT_MARKERS, Mode, Mount, Order
from cachetier.parsers import is_loopback
from cachetier.remote.scheme import scheme_of
from cachetier.remote.settings import RemoteSettings

PREFIX_LIMIT_BYTES = 512  # leaves keys as much again
_EVERY_ADDRESS = ("0.0.0.0", "::")
_PORTS = {"http": 80, "https": 443}


def _check_name(name: str) -> None:
    try:
        checked_run(name)
    except InvalidNameError as error:
        raise ValueError(error.message.replace("run", "the name of a mount", 1)) from None
    if GENERATION_MARK in name:
        raise ValueError(f"{name!r} cannot be the name of a mount: no `{GENERATION_MARK}` in it")


def _check_place(place: str) -> None:
    bucket, _, prefix = place.partition("/")
    remote_of(f"s3://{bucket}")
    segments = prefix.removesuffix("/").split("/") if prefix else []
    wrong = {"", ".", "..", RESERVED_SEGMENT}.intersection(segments)
    if wrong or "\0" in prefix:
        raise ValueError(
            f"{prefix!r} cannot be the prefix of a mount: segments between single slashes, none of "
            f"them '.', '..' or {RESERVED_SEGMENT!r}, and no slash before the first"
        )
    if len(prefix.encode("utf-8", "surrogateescape")) > PREFIX_LIMIT_BYTES:
        raise ValueError(f"a prefix has up to {PREFIX_LIMIT_BYTES} bytes")


@dataclass(frozen=True, kw_only=True)
class MountSettings:
    """A part of a bucket of the durable remote's server that programs reach by the S3 door."""

    name: str = required(checked(TEXT, _check_name), "What principals' `runs` and `ls` call it.")
    bucket: str = required(
        checked(TEXT, _check_place),
        "The bucket, by the name it has there, or `bucket/train` for the keys below a prefix.",
    )
    mode: Mode = setting(
        one_of(*Mode), Mode.WRITE_BACK, "`write_back`, `write_through` or `read_only`."
    )
    order: Order = setting(
        one_of(*Order), Order.NODE, "`cluster`: markers wait for other nodes' objects too."
    )
    ack: Level = setting(one_of(*Level), Level.LOCAL, "What puts wait for that do not say.")
    markers: tuple[str, ...] = setting(
        listed(TEXT, r"[,\s]+"),
        DEFAULT_MARKERS,
        "Globs of the last segments of keys that speak of other objects.",
    )
    release: Duration = setting(span(), Duration(3600), "How long a marker waits for other nodes.")

    def mount(self) -> Mount:
        bucket, _, prefix = self.bucket.removesuffix("/").partition("/")
        return Mount(
            self.name,
            bucket,
            prefix and f"{prefix}/",
            mode=self.mode,
            order=self.order,
            ack=self.ack,
            markers=self.markers,
            release_seconds=self.release,
        )


_ONE = record(
    MountSettings,
    "`name` or `bucket` is not set: give each mount both",
    {"prefix": "bucket = 'bucket/prefix'", "release_seconds": "release = '1h'"},
)
MOUNTS = records(_ONE, "mounts", "s3_mount")


def check_mounts(mounts: Sequence[Mount], remotes: Sequence[RemoteSettings]) -> None:
    """Refuse mounts whose keys another mount has as well, or the checkpoints of a remote.

    Args:
        mounts: At the server of the first of ``remotes``, which is the durable one.
        remotes: All.

    Raises:
        ValueError: Says which two.
    """
    taken = [(each.called, scheme_of(each).identity(each)) for each in remotes]
    for mount in mounts:
        at = remotes[0].beside(mount.bucket, mount.prefix)
        *bucket, prefix = own = scheme_of(at).identity(at)
        url = f"{at.scheme}://{bucket[1]}"
        for what, (*other_bucket, other) in taken:
            if bucket == other_bucket and (prefix.startswith(other) or other.startswith(prefix)):
                raise ValueError(
                    f"mount {mount.name} ({url}/{prefix}) and {what} ({url}/{other}) have keys in "
                    "common: give each a prefix of its own"
                )
        taken.append((f"mount {mount.name}", own))


def check_own_door(
    what: str, found: tuple[str, str] | None, address: tuple[str, int], hosts: Collection[str]
) -> None:
    """Refuse a remote that would be our own S3 door.

    Args:
        what: The remote, as an error calls it.
        found: What names the endpoint of its calls, and its URL; None if nothing does.
        address: Of the door.
        hosts: By which it is called as well.

    Raises:
        ValueError: Says what leads there.
    """
    if found is None or not _leads_to(found[1], address, hosts):
        return
    raise ValueError(
        f"{found[0]}{found[1]} leads {what} to our own S3 door, and what is drained would come "
        "back here: give the service the endpoint of the bucket itself, as `remote.endpoint`, or "
        "take that away for it"
    )


def _leads_to(url: str, address: tuple[str, int], hosts: Collection[str]) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:  # no URL at all, which botocore will say
        return False
    host = parts.hostname or ""
    ours = {address[0], *hosts, socket.gethostname().lower()}
    is_ours = host in ours or host.partition(".")[2] in hosts or _is_of_this_machine(host)
    return port == address[1] and is_ours


def _is_of_this_machine(host: str) -> bool:
    """Return whether ``host`` is an address of this machine; names are not looked up."""
    if is_loopback(host) or host in _EVERY_ADDRESS:
        return True
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except (ValueError, OSError):
        return False
    return True
