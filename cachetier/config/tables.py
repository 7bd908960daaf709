"""The settings that are tables: principals, mounts of the S3 door, remotes.

A file has ``[[principal]]``, ``[[s3_mount]]``, ``[remote]`` and ``[replicas.NAME]``; a variable has
the same as JSON, such as ``CACHETIER_PRINCIPAL``.

Source: docs/security.md, "Who may do what"; docs/s3.md, "Mounts"; docs/remotes.md.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cachetier_client.bucket_format.at_rest import BUCKETS_OWN, ENCRYPTIONS, AtRest
from cachetier_client.errors import InvalidNameError
from cachetier_client.identity.names import GENERATION_MARK, RESERVED_SEGMENT, checked_run
from cachetier_client.identity.remote_url import PROPERTIES, contradiction_of, remote_of

from cachetier.access.principals import ALLOWED, EVERY_RUN, OWNER, SCRAPER, Principal, Quota
from cachetier.access.roles import Role
from cachetier.config.sources import RENAMED_WITHIN
from cachetier.config.types import (
    CAPACITY,
    COMPRESSION,
    FLAG,
    PATH,
    REMOTE,
    TEXT,
    UIDS,
    URL,
    SettingType,
    checked,
    declared,
    listed,
    number,
    one_of,
    optional,
    plain,
    record,
    records,
    required,
    setting,
    span,
    table,
    whole,
)
from cachetier.model.levels import Level
from cachetier.model.names import DURABLE, PEERS_NAME
from cachetier.model.objects import DEFAULT_MARKERS, Mode, Mount, Order
from cachetier.parsers import capacity_of, is_loopback, table_of
from cachetier.remote.scheme import scheme_of
from cachetier.remote.settings import RemoteSettings

_TAKEN = (ALLOWED, SCRAPER.name)
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}", re.ASCII)


def _checked_name(name: str) -> None:
    if not _NAME.fullmatch(name) or name in _TAKEN:
        raise ValueError(
            f"{name!r} cannot be the name of a principal: a lower-case letter first, then up to 30 "
            f"of a-z 0-9 -, and none of {', '.join(_TAKEN)}"
        )


def _refuse_share(size: str) -> None:
    if size.strip().endswith("%"):
        raise ValueError(f"{size!r} is a share; the bytes of a principal are a size: '200 GB'")


@dataclass(frozen=True, kw_only=True)
class PrincipalSettings:
    """Somebody who may come in: how they are known, what they may touch, how much they may have."""

    name: str = required(checked(TEXT, _checked_name), "Its name in errors and the audit log.")
    role: Role = setting(one_of(*Role), Role.WRITE, "`scrape`, `read`, `write` or `admin`.")
    runs: tuple[str, ...] = setting(
        listed(TEXT, r"[,\s]+"), EVERY_RUN, "Globs of the runs that it may touch: `team-a-*`."
    )
    uid: frozenset[int] = setting(UIDS, frozenset(), "Users who act as it at the socket.")
    gid: frozenset[int] = setting(UIDS, frozenset(), "Groups whose members act as it.")
    socket: Path | None = setting(
        optional(PATH), None, "A socket of its own: anybody who can open it acts as this principal."
    )
    bytes: str | None = setting(
        optional(checked(CAPACITY, _refuse_share)),
        None,
        "The most bytes of its runs that are not in the remote yet, or pinned: `200 GB`.",
    )
    shards: int | None = setting(optional(whole(1)), None, "Likewise, in shards.")
    open_puts: int | None = setting(optional(whole(1)), None, "The most puts it has begun at once.")
    connections: int | None = setting(
        optional(whole(1)), None, "The most connections and requests it has at once."
    )
    drain_weight: float = setting(
        number(above=0),
        1.0,
        "Its share of the drain beside other principals; nothing with all runs.",
    )

    def __post_init__(self) -> None:
        own = ("name", "role", "socket")
        others = [each for each in fields(self) if each.name not in own]
        plain = all(getattr(self, each.name) == each.default for each in others)
        if self.name == OWNER and not (plain and self.role is Role.ADMIN and self.socket):
            raise ValueError(f"`{OWNER}` has the role admin and a `socket`, and nothing else")

    def principal(self) -> Principal:
        size_bytes = None if self.bytes is None else capacity_of(self.bytes, 0)
        return Principal(
            self.name,
            self.role,
            runs=self.runs,
            uids=self.uid,
            gids=self.gid,
            socket=self.socket,
            quota=Quota(size_bytes, self.shards, self.open_puts, self.connections),
            drain_weight=self.drain_weight,
        )


PRINCIPALS = records(
    record(PrincipalSettings, "`name` is not set: give each principal one"),
    "principals",
    "principal",
)


# --- mounts of the S3 door ------------------------------------------------------------------------

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


def _order_of(text: str) -> tuple[Order, float]:
    """Return the order of a mount, and how long a marker waits for other nodes."""
    order, sign, release = text.partition(" ")
    if sign and order == Order.NODE:
        raise ValueError(f"{text!r}: a marker that waits for no other node waits for no time")
    return one_of(*Order).read(order), span().read(release or "1h")


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
    order: str = setting(
        checked(TEXT, _order_of),
        Order.NODE,
        "`cluster`: markers wait for other nodes' objects too, an hour, or as `cluster 2h` says.",
    )
    ack: Level = setting(
        one_of(*tuple(Level)[1:]), Level.LOCAL, "The level a put waits for if it names none."
    )
    markers: tuple[str, ...] = setting(
        listed(TEXT, r"[,\s]+"),
        DEFAULT_MARKERS,
        "Globs of the last segments of keys that speak of other objects.",
    )

    def mount(self) -> Mount:
        bucket, _, prefix = self.bucket.removesuffix("/").partition("/")
        order, release = _order_of(self.order)
        return Mount(
            self.name,
            bucket,
            prefix and f"{prefix}/",
            mode=self.mode,
            order=order,
            ack=self.ack,
            markers=self.markers,
            release_seconds=release,
        )


MOUNTS = records(
    record(
        MountSettings,
        "`name` or `bucket` is not set: give each mount both",
        RENAMED_WITHIN["s3_mount"],
    ),
    "mounts",
    "s3_mount",
)


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
                    f"mount {mount.name} ({url}/{prefix}) and {what} ({url}/{other}) share "
                    "keys: give each its own prefix"
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


# --- remotes --------------------------------------------------------------------------------------

_BEFORE = RENAMED_WITHIN["replicas"]
_MISSING = "`url` is not set: give it as 's3://bucket/prefix'"


def _check_properties(words: Sequence[str]) -> None:
    if both := contradiction_of(words):
        raise ValueError(f"{both[0]!r} and {both[1]!r} contradict each other: keep one")


def _check_encryption(text: str) -> None:
    one_of(*ENCRYPTIONS).read(text.partition(" ")[0])
    AtRest.checked({"encryption": text})


ENCRYPTION: SettingType[str] = replace(
    checked(TEXT, _check_encryption),
    schema={"anyOf": [{"enum": list(ENCRYPTIONS)}, {"type": "string", "pattern": "^aws:kms.* "}]},
)


@dataclass(frozen=True, kw_only=True)
class BucketSettings:
    """Where checkpoints go, and how they are written there."""

    url: str = required(REMOTE, "The bucket, and the prefix in it: `s3://bucket/prefix`.")
    endpoint: str | None = setting(
        optional(URL),
        None,
        "URL of an S3-compatible store; if not given, `AWS_ENDPOINT_URL`, else AWS itself.",
    )
    region: str | None = setting(
        optional(TEXT), None, "Region of the bucket; the AWS chain decides if not given."
    )
    assume: tuple[str, ...] = setting(
        checked(listed(one_of(*PROPERTIES), r"[,\s]+"), _check_properties),
        (),
        "Properties of the store: `path` or `virtual`, where the bucket's name stands (else the "
        "AWS configuration says so, or the store is asked); `readback` without CRC-64/NVME: "
        "objects are read back; `unconditional` without `If-None-Match`: nodes may then overwrite; "
        "`nocopy`: unchanged bytes are sent again, not copied inside the bucket.",
    )
    encryption: str = setting(
        ENCRYPTION,
        BUCKETS_OWN,
        "Every write asks for it: `AES256` (SSE-S3), `aws:kms` or `aws:kms:dsse`, each also with "
        "the id, ARN or alias of a KMS key: `aws:kms alias/key`; `bucket`: the bucket decides.",
    )
    kms_context: dict[str, str] = setting(
        table(TEXT), {}, "KMS encryption context: a table of texts that policies and logs see."
    )
    storage_class: str | None = setting(
        optional(TEXT),
        None,
        "Storage class of shards and packs: `STANDARD_IA`, `GLACIER_IR`, ...; documents have the "
        "bucket's.",
    )

    def __post_init__(self) -> None:
        AtRest.checked(vars(self))


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings(BucketSettings):
    """A second copy of what is drained: any S3 server, near or elsewhere."""

    compression: str = setting(COMPRESSION, "off", "How shards are stored there.")
    required: bool = setting(FLAG, False, "`on`: nothing leaves this node before it is there too.")
    profile: str | None = setting(
        optional(TEXT), None, "The AWS profile whose credentials it takes."
    )


REPLICAS = table(record(ReplicaSettings, _MISSING, _BEFORE))
_BUCKET = record(BucketSettings, _MISSING, _BEFORE)
BUCKET_KEYS = declared(BucketSettings)


def _read_bucket(value: object) -> BucketSettings:
    return _BUCKET.read(as_table(value))


def as_table(value: object) -> object:
    """Return what is given of a bucket as a table: of a URL alone, too."""
    if not isinstance(value, str):
        return value
    return table_of(value) if value.lstrip().startswith("{") else {"url": value}


def _written(value: Any) -> Any:
    if not isinstance(value, BucketSettings):
        return None
    given = {
        name: each
        for name, each in plain(value).items()
        if each != plain(BUCKET_KEYS[name].default)
    }
    return value.url if len(given) == 1 else given


BUCKET: SettingType[BucketSettings] = SettingType(
    _read_bucket,
    {"anyOf": [{"type": "string"}, _BUCKET.schema]},
    written=_written,
    record=BucketSettings,
)


def whole_bucket(sources: Sequence[Mapping[str, Any]]) -> object:
    """Return what ``sources`` say of ``remote``, the last of them first; None if it has no URL.

    Each may have the setting, and its keys one by one: ``remote_endpoint``.
    """
    found: dict[str, Any] = {}
    for source in sources:
        if (given := source.get("remote")) is not None:
            try:
                given = as_table(given)
            except ValueError:
                return given  # which reading it says again
            if not isinstance(given, Mapping):
                return given
            found |= given
        found |= {key: source[one] for key, one in BUCKET_NAMES.items() if one in source}
    return found if "url" in found else None


BUCKET_NAMES = {key: f"remote_{key}" for key in BUCKET_KEYS if key != "url"}


def check_remotes(remotes: Sequence[RemoteSettings]) -> None:
    """Refuse remotes that cannot be told apart: by their names everywhere, or by their places.

    Args:
        remotes: The durable one first; a copy on top of it would be none.

    Raises:
        ValueError: Says what is wrong.
    """
    places: dict[tuple[str, str, str], str] = {}
    for remote in remotes:
        name = remote.name
        taken = name == DURABLE or (name == PEERS_NAME and remote.neighbours is None)
        if places and (not _NAME.fullmatch(name) or taken):
            raise ValueError(
                f"{name!r} cannot be the name of a replica: a lower-case letter first, then up to "
                f"30 of a-z 0-9 -, and neither {DURABLE!r} nor {PEERS_NAME!r}"
            )
        place = scheme_of(remote).identity(remote)
        if place in places:
            raise ValueError(
                f"{name} has the same place as {places[place]}: that would not be a second copy"
            )
        places[place] = remote.called
