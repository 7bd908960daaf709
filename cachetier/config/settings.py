"""Settings of the service, read once: flag > ``CACHETIER_*`` > ``cachetier.toml`` > default.

A setting that nobody knows is an error, with the nearest one that somebody does: a misspelt
``capacity`` must not fill a disk.

Source: docs/configuration.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cachetier.access.principals import OWNER
from cachetier.config.sources import (
    DEFAULT,
    RENAMED_WITHIN,
    SettingsFile,
    config_file,
    missing,
    origins_of,
    read_file,
    shown_secrets,
    unknown_keys,
    unknown_variables,
    values_of_variables,
    wrong_values,
)
from cachetier.config.tables import (
    BUCKET,
    BUCKET_KEYS,
    BUCKET_NAMES,
    MOUNTS,
    PRINCIPALS,
    REPLICAS,
    BucketSettings,
    MountSettings,
    PrincipalSettings,
    ReplicaSettings,
    check_mounts,
    check_own_door,
    check_remotes,
    whole_bucket,
)
from cachetier.config.types import (
    BUDGET,
    FLAG,
    PATH,
    SECRET,
    TEXT,
    UIDS,
    URL,
    Duration,
    Secret,
    SettingType,
    checked,
    declared,
    is_secret,
    listed,
    number,
    one_of,
    optional,
    read_values,
    record,
    required,
    setting,
    span,
    table,
    text_or_table,
    whole,
)
from cachetier.cpus import parsed_cores
from cachetier.errors import ConfigError
from cachetier.model.backpressure import WhenFull
from cachetier.model.bandwidth import parsed_bandwidth, parsed_rate
from cachetier.model.compression import WANTED, Rules
from cachetier.model.keep import Keep
from cachetier.model.names import DURABLE, PEERS_NAME, STORE_ID_NAME
from cachetier.model.objects import Mount
from cachetier.model.policy import Policy
from cachetier.parsers import address_of, capacity_of, host_of, why_not_open
from cachetier.remote.scheme import scheme_of
from cachetier.remote.settings import NeighbourSettings, RemoteSettings
from cachetier.tls import TlsFiles

SOCKET_NAME = "cachetier.sock"
SOCKET_PATH_LIMIT_BYTES = 107
CLEAR_TEXT = "http://"
NEWEST = "newest"
LEVELS = ("debug", "info", "warning", "error")


def _check_watermarks(shares: tuple[float, ...]) -> None:
    if len(shares) != 2 or shares[0] > shares[1]:
        raise ValueError(f"{list(shares)} are not two shares, the lower first: [0.8, 0.9]")


def rules_of(compression: str | Mapping[str, str]) -> Rules:
    """Return how to compress which shard: a mode for all, or modes by glob.

    Raises:
        ValueError: A mode is none, or a glob is empty.
    """
    if isinstance(compression, str):
        return Rules.parsed(compression)
    return Rules.parsed("off", tuple(compression.items()))


def _check_tls(paths: tuple[Path, ...]) -> None:
    if len(paths) not in (0, 2, 3):
        raise ValueError(
            "give two files, the certificate and its key, and perhaps a third, the CA of clients: "
            "'/tls.crt,/tls.key'"
        )


def _check_log(text: str) -> None:
    level, colon, form = text.partition(":")
    one_of(*LEVELS).read(level)
    if colon:
        one_of("json", "console").read(form)


def _check_rate(text: str) -> None:
    if text and not parsed_rate(text):
        raise ValueError("a rate of 0 would never restore anything; empty is no limit")


def copies_of(words: tuple[str, ...]) -> tuple[int, str]:
    """Return how many peers keep each step, and the room for copies of other nodes.

    Raises:
        ValueError: ``peers.copies`` is wrong.
    """
    count, room, *more = (*words, *("0", "20%")[len(words) :])
    if more:
        raise ValueError("give how many peers keep each step, and perhaps the room: '1, 20%'")
    return whole(0, 2).read(count), BUDGET.read(room)


def _check_every(words: tuple[str, ...]) -> None:
    numbers = [whole(1).read(word) for word in words if word != NEWEST]
    if len(numbers) > 1:
        raise ValueError(f"give one number, and perhaps {NEWEST!r}: '10, newest'")


def memory_level_of(text: str) -> tuple[str, Path]:
    """Return the size of the first level, empty for none, and the tmpfs that it lies in.

    Raises:
        ValueError: ``memory`` is wrong.
    """
    if text.startswith("{"):
        raise ValueError("it is no table any more: write '64 GiB in /mnt/memory'")
    size, _, directory = text.partition(" in ")
    return text and BUDGET.read(size), PATH.read(directory or "/dev/shm")


ADDRESS = checked(TEXT, lambda text: text and address_of(text))


def address_of_door(door: str) -> tuple[str, int]:
    """Return where a door listens, in clear text or not."""
    return address_of(door.removeprefix(CLEAR_TEXT))


DOOR = checked(TEXT, lambda text: text and address_of_door(text))
LOG = replace(
    checked(TEXT, _check_log),
    schema={"enum": [level + form for form in ("", ":json", ":console") for level in LEVELS]},
)
HOSTS = listed(checked(TEXT, host_of), r"[,\s]+")
CORES = checked(TEXT, parsed_cores)
COMPRESSIONS = checked(text_or_table(TEXT), rules_of)
RATE = checked(TEXT, _check_rate)
WORD = SettingType(str, {"type": ["string", "integer"]})
EVERY = SettingType(str, {**WORD.schema, "minimum": 1})
RATES = checked(listed(TEXT, ","), parsed_bandwidth)
WATERMARKS = checked(listed(number(above=0, at_most=1), ","), _check_watermarks)


@dataclass(frozen=True, kw_only=True)
class PeerSettings:
    """The nodes that share restores with this one; none without ``nodes``."""

    nodes: tuple[str, ...] = setting(
        listed(checked(TEXT, address_of), r"[,\s]+"),
        (),
        "Where the peers listen: `node1:7072,node2:7072`, or one DNS name of all: `peers:7072`.",
    )
    listen: str = setting(DOOR, "0.0.0.0:7072", "Where this node listens for them; as `http`.")
    trust: str = setting(
        TEXT,
        "",
        "File with a token that all peers share, or PEM file of the CA of their certificates.",
    )
    domain: str = setting(TEXT, "", "Failure domain of this node: a rack, a zone.")
    copies: tuple[str, ...] = setting(
        checked(listed(WORD, ","), copies_of),
        (),
        "How many peers of other failure domains keep each step until it is durable, 1 or 2, and "
        "the room here for copies of other nodes, a size or a share of `capacity`: `1, 20%`.",
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of the service; see ``load``."""

    cache_dir: Path = required(PATH, "Directory of the cache, on a local ext4 or XFS disk.")
    capacity: str = setting(
        BUDGET, "80%", "Hard budget: a size (`200 GB`, `1.5 TiB`) or a share of the filesystem."
    )
    memory: str = setting(
        checked(WORD, memory_level_of),
        "",
        'Room in memory for puts with `ack="memory"`: a size, or a share of the tmpfs; of another '
        "than `/dev/shm`, `64 GiB in /mnt/memory`; see docs/guarantees.md.",
    )
    socket: Path | None = setting(
        optional(PATH),
        None,
        "Unix socket for ranks on this node; default `<cache_dir>/cachetier.sock`.",
    )
    allowed_uids: frozenset[int] = setting(
        UIDS, frozenset(), "Users beside the service's own who may use the socket: `1000,1001`."
    )
    principal: tuple[PrincipalSettings, ...] = setting(
        PRINCIPALS, (), "Principals and their roles: a list of tables; see docs/security.md."
    )
    http: str = setting(
        DOOR,
        "127.0.0.1:7070",
        "Address of the HTTP door; empty for none, port 0 for a free one. Beyond loopback it wants "
        "`tls`, or where the network is private `http://0.0.0.0:7070`: clear text.",
    )
    hosts: tuple[str, ...] = setting(
        HOSTS,
        (),
        "Names of this node, beside `localhost` and addresses: by them browsers call the HTTP "
        "door, and before them a bucket may stand at the S3 door: `node7,s3.example.org`.",
    )
    token: Secret | None = setting(
        optional(SECRET),
        None,
        "The owner's token, which HTTP callers send as `Authorization: Bearer`; if not given, the "
        "first start makes `<cache_dir>/token`. On a command line all users see it: better in "
        "`CACHETIER_TOKEN`.",
    )
    scrape_token: Secret | None = setting(
        optional(SECRET),
        None,
        "A token that opens `/metrics` and nothing else, for Prometheus; with it the console asks "
        "the nodes of `cluster`. Likewise better in `CACHETIER_SCRAPE_TOKEN`.",
    )
    cluster: tuple[str, ...] = setting(
        listed(URL, r"[,\s]+"),
        (),
        "HTTP doors of all nodes, for the console's page of the cluster: "
        "`https://node1:7070,https://node2:7070`.",
    )
    audit: str = setting(
        TEXT, "", "File of the audit log; `-` for standard output, empty for none."
    )
    tls: tuple[Path, ...] = setting(
        checked(listed(PATH, ","), _check_tls),
        (),
        "PEM files of the doors' certificate, its chain below, and of its key, which others must "
        "not be able to read: `/tls/tls.crt,/tls/tls.key`. With them the doors speak HTTPS. A "
        "third has the CA of clients: others are refused. Read again when they change.",
    )
    s3: str = setting(
        DOOR, "", "Address of the S3 door: `127.0.0.1:7071`; empty for none. Else as `http`."
    )
    s3_mount: tuple[MountSettings, ...] = setting(
        MOUNTS, (), "The buckets that the S3 door offers: a list of tables; see docs/s3.md."
    )
    health: str = setting(
        ADDRESS, "", "Address of a port for probes alone, `/livez` and `/readyz`; empty for none."
    )
    remote: BucketSettings = required(
        BUCKET, "Where checkpoints go: `s3://bucket/prefix`, or a table with the keys below."
    )
    replicas: dict[str, ReplicaSettings] = setting(
        REPLICAS, {}, "Second copies at other S3 servers: a table of name to table; nearest first."
    )
    peers: PeerSettings = setting(
        record(PeerSettings, "", RENAMED_WITHIN["peers"]),
        PeerSettings(),
        "Nodes that read each range of a restore from the bucket once, and may keep copies: a "
        "table with `nodes`, `listen`, `trust`, `domain`, `copies`; see docs/remotes.md.",
    )
    when_full: WhenFull = setting(
        one_of(*WhenFull),
        WhenFull.WAIT,
        "When only dirty bytes remain: `wait`, `write_through`, or `reject`.",
    )
    compression: str | dict[str, str] = setting(
        COMPRESSIONS,
        "off",
        "How shards are stored: "
        + WANTED.replace("'", "`")
        + "; or a table of glob to the same, by run or by `run/name`.",
    )
    pack: bool = setting(
        FLAG, False, "`on`: shards of a sealed rank of up to 1 MiB go together, as one object."
    )
    watermarks: tuple[float, ...] = setting(
        WATERMARKS,
        (0.8, 0.9),
        "Shares of `capacity`: above the second clean shards are evicted, down to the first.",
    )
    restore_keep: Keep = setting(
        one_of(*Keep),
        Keep.AUTO,
        "Whether what is restored stays here as a clean copy: `on`, `off` (it goes with its last "
        "reader), or `auto`: below the first of `watermarks`, while no put waits for room.",
    )
    max_rate: tuple[str, ...] = setting(
        RATES,
        (),
        "The most the drain sends: `2 GB/s`; empty for no limit. Further ones hold at a time of "
        "day: `08:00-20:00 200 MB/s`; `0` pauses.",
    )
    max_restore_rate: str = setting(
        RATE,
        "",
        "The most that restores read, from remotes and peers together: `1 GB/s`; empty for no "
        "limit.",
    )
    durable_every: tuple[str, ...] = setting(
        checked(listed(EVERY, ","), _check_every),
        ("1",),
        "Only steps divisible by it are drained; the others are local-only. With `newest` "
        "(`10, newest`) a published step makes older ones not yet begun local-only, too.",
    )
    local_every: int = setting(
        whole(1),
        1,
        "Of the steps put in `memory`, those divisible by it are copied to the disk; the others "
        "only when `memory` is half full.",
    )
    keep_local: int = setting(
        whole(0), 0, "Complete steps of a run that stay here; 0 for all there is room for."
    )
    run_weights: dict[str, float] = setting(
        table(number(above=0)),
        {},
        "Shares of the drain by run: a table of glob to weight; 1 for all others.",
    )
    drain_workers: int = setting(whole(1, 64), 8, "Shards that the drain uploads at once.")
    drain_cores: str = setting(
        CORES,
        "",
        "How many threads compress at once, and on which CPUs the drain runs: `3`, `of 2-3,7` or "
        "`2 of 4-7`; else a quarter of the CPUs, up to 2, of all. Each has 128 MiB for what is "
        "being sent, and all at least 256 MiB.",
    )
    carriers: int | None = setting(
        optional(whole(0, 63)),
        None,
        "Processes that move large parts for the drain, and as many for restores; 0: none, the "
        "drain and the service move them. Else half as many as CPUs, up to 4.",
    )
    grace: Duration = setting(
        span(at_most=3600),
        Duration(30),
        "How long a stopping service finishes what is in flight.",
    )
    notice: Duration = setting(
        span(at_most=86_400),
        Duration(0),
        "How long SIGTERM lets the node flush before it stops: `4min`.",
    )
    allow_volatile: bool = setting(
        FLAG, False, "Accept a `cache_dir` in memory (tmpfs): nothing survives a power cut."
    )
    exposure_objective: Duration = setting(
        span(above=0),
        Duration(1800),
        "How long a run's newest training may lie on this node alone.",
    )
    log: str = setting(
        LOG,
        "info",
        "How much the log says: `debug`, `info`, `warning` or `error`, as text on a terminal and "
        "as JSON elsewhere; `info:json` or `info:console` wherever it goes.",
    )

    # --- what they mean ------------------------------------------------------------------------

    @property
    def socket_path(self) -> Path:
        return self.socket or self.cache_dir / SOCKET_NAME

    @property
    def admin_socket(self) -> Path | None:
        """The socket at which alone the owner is an admin, if the principal `owner` has one."""
        return next((each.socket for each in self.principal if each.name == OWNER), None)

    @property
    def tenants(self) -> tuple[PrincipalSettings, ...]:
        return tuple(each for each in self.principal if each.name != OWNER)

    @property
    def socket_permissions(self) -> int:
        """The mode of the socket: open to all where the kernel says who they are."""
        others = self.allowed_uids or any(each.uid or each.gid for each in self.tenants)
        return 0o666 if others else 0o600

    @property
    def http_address(self) -> tuple[str, int] | None:
        """(host, port) of the HTTP door, or None when it is off."""
        return address_of_door(self.http) if self.http else None

    @property
    def s3_address(self) -> tuple[str, int] | None:
        """(host, port) of the S3 door, or None when it is off."""
        return address_of_door(self.s3) if self.s3 else None

    @property
    def s3_mounts(self) -> tuple[Mount, ...]:
        """The mounts that the S3 door offers.

        Objects of mounts are drained where the door is off, too.
        """
        return tuple(each.mount() for each in self.s3_mount)

    @property
    def health_address(self) -> tuple[str, int] | None:
        """(host, port) of the health door, or None when it is off."""
        return address_of(self.health) if self.health else None

    @property
    def tls_files(self) -> TlsFiles | None:
        """The certificate files of the HTTP and the S3 door; None where they speak clear text."""
        return TlsFiles(self.tls[0], self.tls[1], *self.tls[2:]) if self.tls else None

    @property
    def durable(self) -> RemoteSettings:
        return RemoteSettings.of(DURABLE, vars(self.remote))

    @property
    def remotes(self) -> list[RemoteSettings]:
        """The durable remote, then the replicas in the order of the settings: of nearness."""
        return [*self.buckets[:1], *self._copies, *self.buckets[1:]]

    @property
    def buckets(self) -> list[RemoteSettings]:
        """The durable remote and the replicas, without the peers."""
        replicas = self.replicas.items()
        return [self.durable, *(RemoteSettings.of(name, vars(each)) for name, each in replicas)]

    @property
    def neighbours(self) -> NeighbourSettings | None:
        """The peers, if there are any, and how to reach them."""
        if not self.peers.trust:
            return None
        place = " ".join(filter(None, scheme_of(self.durable).identity(self.durable)))
        return NeighbourSettings(
            self.peers.nodes,
            self.peers.listen.removeprefix(CLEAR_TEXT),
            self.peers.trust,
            tuple(map(str, self.tls)),
            quote(place, safe="/: "),
            self.peers.domain,
            str(self.cache_dir / STORE_ID_NAME),
            self.copies,
        )

    @property
    def _copies(self) -> list[RemoteSettings]:
        found = self.neighbours if self.copies else None
        remote = RemoteSettings(PEERS_NAME, "", role="replica", scheme="peers", neighbours=found)
        return [remote] if found is not None else []

    @property
    def rules(self) -> Rules:
        """How to compress which shard."""
        return rules_of(self.compression)

    @property
    def low_watermark(self) -> float:
        return self.watermarks[0]

    @property
    def high_watermark(self) -> float:
        return self.watermarks[1]

    def capacity_bytes(self, filesystem_bytes: int) -> int:
        """Return the budget on a filesystem of ``filesystem_bytes``."""
        return capacity_of(self.capacity, filesystem_bytes)

    @property
    def copies(self) -> int:
        """How many peers keep each step."""
        return copies_of(self.peers.copies)[0]

    def room_bytes(self, capacity_bytes: int) -> int:
        """Return how much of the budget is for copies of other nodes."""
        copies, room = copies_of(self.peers.copies)
        return capacity_of(room, capacity_bytes) if copies else 0

    @property
    def policy(self) -> Policy:
        """Which steps are drained, and which stay here."""
        every = next((int(word) for word in self.durable_every if word != NEWEST), 1)
        return Policy(every, NEWEST in self.durable_every, self.keep_local, self.local_every)

    @property
    def promised_bytes(self) -> int:
        """The bytes that all principals together may have here."""
        return sum(each.principal().quota.size_bytes or 0 for each in self.tenants)

    # --- checks --------------------------------------------------------------------------------

    def __post_init__(self) -> None:
        check_remotes(self.remotes)
        listen = self.peers.listen if self.peers.nodes else ""
        for door, text in (("http", self.http), ("s3", self.s3), ("peers.listen", listen)):
            is_clear = text.startswith(CLEAR_TEXT)
            if self.tls and is_clear:
                raise ValueError(f"`{door}` = {text} asks for clear text, and `tls` for HTTPS")
            is_private = is_clear or bool(self.tls)
            why_not = text and why_not_open(address_of_door(text), is_private=is_private, door=door)
            if why_not:
                raise ValueError(why_not)
        if bool(self.peers.nodes) != bool(self.peers.trust) or not self.peers.listen:
            raise ValueError("set both of `peers.nodes` and `peers.trust`, or none")
        if self.copies and not self.peers.nodes:
            raise ValueError("`peers.copies` wants `peers.nodes` and `peers.trust`")
        self._check_s3()
        self._check_sockets()

    def _check_s3(self) -> None:
        check_mounts(self.s3_mounts, self.remotes)
        if self.s3_address is None:
            return
        if not self.s3_mount:
            raise ValueError("the S3 door (`s3`) has nothing to offer: add an [[s3_mount]]")
        for each in self.remotes:
            endpoint = scheme_of(each).endpoint(each)
            check_own_door(each.called, endpoint, self.s3_address, self.hosts)

    def _check_sockets(self) -> None:
        own = [each.socket for each in self.tenants if each.socket]
        paths = [self.socket_path, *dict.fromkeys(own)]
        paths += [self.admin_socket] if self.admin_socket else []  # shared with nobody
        for path in paths:
            if paths.count(path) > 1:
                raise ValueError(f"{path} is the socket of two principals: give each its own")
            length = len(os.fsencode(path))
            if length > SOCKET_PATH_LIMIT_BYTES:
                raise ValueError(
                    f"the socket's path {path} has {length} bytes, the system takes "
                    f"{SOCKET_PATH_LIMIT_BYTES}: set a shorter `socket`"
                )


SETTINGS = declared(Settings)
# What a flag or a variable may name: each key of `remote` by itself, too.
NAMED = SETTINGS | {one: BUCKET_KEYS[key] for key, one in BUCKET_NAMES.items()}


@dataclass(frozen=True)
class Sourced:
    """The values that the sources give.

    ``settings`` is None while there are ``problems``; ``origins`` has an entry for each setting.
    """

    settings: Settings | None
    origins: Mapping[str, str]
    problems: tuple[ConfigError, ...]
    file: str | None


def load(flags: Mapping[str, Any] | None = None, *, config: Path | None = None) -> Settings:
    """Return the settings; ``flags`` that are None count as not given.

    Raises:
        ConfigError: A source cannot be read, names an unknown setting, or gives one a bad value.
        Says which.
    """
    found = sourced(flags, config=config)
    if found.settings is None:
        raise found.problems[0]
    return found.settings


def sourced(flags: Mapping[str, Any] | None = None, *, config: Path | None = None) -> Sourced:
    """Return the settings with who set each, or all that is wrong with them."""
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    path = config_file(config)
    problems = unknown_variables(NAMED)
    file = SettingsFile()
    if path is not None:
        try:
            file = read_file(path)
            problems += unknown_keys(file, SETTINGS)
        except ConfigError as error:
            problems.append(error)
    origins = origins_of(NAMED, given, file)
    variables = values_of_variables(NAMED)
    texts = {**file.values, **variables, **given}
    texts = {name: texts[name] for name in SETTINGS if name in texts and name != "remote"}
    if (
        remote := whole_bucket(({"remote": file.values.get("remote")}, variables, given))
    ) is not None:
        texts["remote"] = remote
    needed = [name for name, each in SETTINGS.items() if each.required and name not in texts]
    if file.path == path:  # else it may well have them
        problems += [missing(name) for name in needed]
    settings = None
    try:
        values = read_values(SETTINGS, texts)
        settings = Settings(**values) if not needed else None
    except ValueError as error:
        problems += wrong_values(error, origins, file)
    secrets = [name for name, each in SETTINGS.items() if is_secret(each.kind)]
    problems += shown_secrets(file, secrets)
    origins = {name: origins[name] for name in SETTINGS} | {"remote": _all_origins(origins)}
    return Sourced(
        None if problems else settings, origins, tuple(problems), str(path) if path else None
    )


def _all_origins(origins: Mapping[str, str]) -> str:
    """Return who says something of ``remote``."""
    found = [origins[name] for name in ("remote", *BUCKET_NAMES.values())]
    return ", ".join(dict.fromkeys(each for each in found if each != DEFAULT)) or DEFAULT
