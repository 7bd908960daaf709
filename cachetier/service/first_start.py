"""Check what a start needs before it recovers anything: directory, ports, disk and remotes.

The remotes are checked before a cache directory is used for the first time. A cache that holds
nothing yet has nothing to lose by not starting, so what a person mistyped ends
the first start at once. Later starts never depend on the remote: they serve, and keep, bytes that
may be nowhere else, and the drain says what it is refused.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from cachetier_client.units import shown_size

from cachetier.config.settings import Settings
from cachetier.doctor.checks import lasting_fault, wants_readback
from cachetier.doctor.refusals import lower_cause_of, reason_of
from cachetier.doors.listening import bound
from cachetier.errors import (
    CachetierError,
    ConfigError,
    DiskFullError,
    RemoteError,
    RemoteRefusedError,
    TransientError,
)
from cachetier.local.files.data_files import FULL
from cachetier.local.recovery import CATALOG_NAME, refuse_in_use
from cachetier.remote.bounded_calls import alone
from cachetier.remote.scheme import scheme_of
from cachetier.remote.settings import RemoteSettings
from cachetier.telemetry.events import REMOTE_READBACK, REMOTE_REFUSED, REMOTE_UNREACHABLE, tell

log = logging.getLogger(__name__)

LOOK_SECONDS = 20.0
START_BYTES = 2 << 20  # of the disk: the catalog, its log, and what the probe writes
# What no waiting mends. Other refusals may: a token that ended, a clock, a quota, a missing right
# that is not needed.
_LASTING = frozenset(
    {
        "NoSuchBucket",
        "InvalidBucketName",
        "InvalidAccessKeyId",
        "InvalidSecurity",
        "NotSignedUp",
        "SignatureDoesNotMatch",
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "PermanentRedirect",
    }
)
# Without an answer: the connection was not trusted, or there was nothing to sign with. Credentials
# that could not be had just now may be there later: that is no mistyped name.
_LASTING_CAUSES = ("SSLError", "NoCredentialsError", "PartialCredentialsError")


def refuse_taken(settings: Settings) -> None:
    """Refuse a cache directory or an address that somebody has now, before anything is done.

    Raises:
        DirectoryInUseError: Another service has the directory.
        ConfigError: An address cannot be bound.
    """
    refuse_in_use(settings.cache_dir)
    for name in ("http", "s3", "health"):
        address = getattr(settings, f"{name}_address")
        if address is not None:
            bound(name, address).close()


@contextmanager
def room_on_disk(cache_dir: Path) -> Iterator[None]:
    """Say of a disk that has no room for the start inside what it has, and what it needs.

    Raises:
        DiskFullError: It has none.
    """
    try:
        yield
    except (CachetierError, OSError) as error:
        of_system = error if isinstance(error, OSError) else error.__cause__
        full = isinstance(of_system, OSError) and of_system.errno in FULL
        if not full and not isinstance(error, DiskFullError):
            raise
        disk = os.statvfs(cache_dir)
        free = f"{shown_size(disk.f_bavail * disk.f_frsize)} and {disk.f_favail} inodes are free"
        raise DiskFullError(
            f"the disk of cache_dir {cache_dir} has no room to start: {free}, and a start needs "
            f"{shown_size(START_BYTES)}",
            hint="Free space, and inodes (`df -i`), on that disk, or choose another `cache_dir`.",
        ) from error


def refuse_wrong_remote(settings: Settings) -> None:
    """Look at the remotes once, if ``cache_dir`` is new; each look takes up to twenty seconds.

    What the durable one takes is tried with small objects, which are gone afterwards. What was
    found out is kept: objects are read back if the store keeps no CRC-64/NVME. A store without
    conditional writes is refused, as a person has to say that only one node saves a step.

    A remote that cannot be reached, or may yet change its mind, is told in the log. A replica is
    not asked, as it may be away; but its profile is there, or the start ends.

    Raises:
        ConfigError: The bucket, the region, the credentials or the certificate is wrong, or nothing
            would become durable with such a store or proxy.
    """
    if not _is_new(settings.cache_dir):
        return
    durable, *replicas = settings.remotes
    _refuse_wrong(durable, lambda remote: _ask(remote, settings.cache_dir))
    for replica in replicas:
        _refuse_wrong(replica, lambda remote: scheme_of(remote).inquire(remote))


def _refuse_wrong(remote: RemoteSettings, look: Callable[[RemoteSettings], object]) -> None:
    try:
        _look(remote, look)
    except RemoteError as error:
        if _lasts(error):
            reason, hint = reason_of(error, remote)
            raise ConfigError(f"{_named(remote)}: {reason}", hint=hint) from error
        refused = isinstance(error, RemoteRefusedError)
        event = REMOTE_REFUSED if refused else REMOTE_UNREACHABLE
        tell(log, event, remote=remote.name, reason=error.message)


def _is_new(cache_dir: Path) -> bool:
    try:
        return not (cache_dir / CATALOG_NAME).exists()
    except OSError:
        return False  # the service cannot use it either, and says why


def _ask(remote: RemoteSettings, directory: Path) -> None:
    inquiry = scheme_of(remote).inquire(remote)
    inquiry.look(remote.prefix)
    found = inquiry.remote
    fault = lasting_fault(found)
    if fault is not None:
        raise ConfigError(f"{_named(remote)}: {fault.measured}", hint=fault.fix)
    if found.verify == "checksum" and "checksum" not in found.stated and wants_readback(found):
        found = replace(found, verify="readback")
        tell(log, REMOTE_READBACK, remote=remote.name)
    with suppress(OSError):
        directory.mkdir(mode=0o700, exist_ok=True)
    scheme_of(remote).keep(remote, found, directory)


def _look(remote: RemoteSettings, look: Callable[[RemoteSettings], object]) -> None:
    """Look, but never for longer than ``LOOK_SECONDS``, whatever hangs: a program, a name, a key.

    Raises:
        RemoteError: What came of it.
        ConfigError: As ``RemoteScheme.inquire``.
    """
    try:
        alone("first-look", lambda: look(remote)).result(LOOK_SECONDS)
    except (ConfigError, RemoteError):
        raise
    except Exception as error:  # no answer that we understand is no refusal
        nothing = f"no answer in {LOOK_SECONDS:g} s, or no credentials"
        why = nothing if isinstance(error, TimeoutError) else repr(error)
        raise TransientError(f"the first look at the bucket: {why}") from error


def _lasts(error: RemoteError) -> bool:
    """Return whether no waiting mends it. What a server in trouble says of the bucket may pass."""
    of_server = int(error.context.get("remote_status") or 0) >= 500
    if of_server or not isinstance(error, RemoteRefusedError):
        return False
    code = error.context.get("remote_code")
    return code in _LASTING if code else lower_cause_of(error) in _LASTING_CAUSES


def _named(remote: RemoteSettings) -> str:
    return f"{remote.url} at {remote.endpoint}" if remote.endpoint else remote.url
