"""Where a bucket's name stands: in the path, or before the host's name (``virtual``).

A setting or the AWS configuration says so. Otherwise a store that has a name is asked, by listing
a key either way: some refuse the path, and others have no name for each bucket. What was found is
kept beside the catalog. A question that fails tells nothing, and the next client asks again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from cachetier.errors import RemoteError, RemoteRefusedError
from cachetier.remote.bounded_calls import alone
from cachetier.remote.s3.boto_client import (
    configured_style,
    connect_to,
    endpoint_of_profile,
)
from cachetier.remote.s3.boto_errors import translated_errors
from cachetier.remote.settings import AddressingStyle, RemoteSettings
from cachetier.remote.stall_guard import Timeouts

FILE_NAME = "addressing.json"
START_SECONDS = 10.0
TIMEOUTS = Timeouts(connect_seconds=3.0, read_seconds=5.0)


def found_style(remote: RemoteSettings) -> AddressingStyle:
    """Return the style that ``remote`` takes; ``auto`` where there is nothing to be found out.

    Raises:
        ConfigError: As ``connect``.
    """
    endpoint = remote.endpoint or endpoint_of_profile(remote.profile)
    if (style := stated_style(remote)) != "auto" or not _has_a_choice(endpoint):
        return style
    try:
        _list_a_key(remote, "path")
    except RemoteRefusedError:  # perhaps of the style
        with suppress(RemoteError):
            _list_a_key(remote, "virtual")
            return "virtual"
        return "auto"
    except RemoteError:
        return "auto"
    return "path"


def with_style(remote: RemoteSettings, directory: Path) -> RemoteSettings:
    """Return ``remote`` with its style: as it is said, kept in ``directory``, or answered now.

    Nobody waits long for an answer: a client of ``auto`` asks again.
    """
    if remote.addressing_style != "auto" or not _has_a_choice(remote.endpoint):
        return remote
    style = stated_style(remote)
    if style == "auto":
        style = _kept(directory).get(remote.place, style)
    with suppress(Exception):  # of whatever kind: the drain meets it too, and says so
        if style == "auto":
            style = alone("addressing", lambda: found_style(remote)).result(START_SECONDS)
    return replace(remote, addressing_style=style)


def keep_style(as_set: RemoteSettings, found: RemoteSettings, directory: Path) -> None:
    """Keep what ``with_style`` has made of ``as_set``; a disk that takes nothing is no trouble."""
    kept = _kept(directory)
    new = {found.place: found.addressing_style}
    if found.addressing_style == "auto" or new.items() <= kept.items():
        return
    if stated_style(as_set) == "auto":
        with suppress(OSError):
            (directory / FILE_NAME).write_bytes(msgspec.json.encode(kept | new))


def stated_style(remote: RemoteSettings) -> AddressingStyle:
    """Return the style that the settings or the AWS configuration say, ``auto`` if neither does."""
    style = remote.addressing_style
    return style if style != "auto" else configured_style(remote.profile)


def _kept(directory: Path) -> dict[str, AddressingStyle]:
    with suppress(OSError, msgspec.DecodeError):
        text = (directory / FILE_NAME).read_bytes()
        return msgspec.json.decode(text, type=dict[str, AddressingStyle])
    return {}


def _has_a_choice(endpoint: str | None) -> bool:
    """Return whether a bucket's name could stand before the name of a host, and need not."""
    host = urlsplit(endpoint or "").hostname or ""
    is_address = ":" in host or host.rpartition(".")[2].isdigit()
    return "." in host and not is_address and ".amazonaws.com" not in host


def _list_a_key(remote: RemoteSettings, style: AddressingStyle) -> None:
    client = connect_to(remote, style, max_connections=1, timeouts=TIMEOUTS)
    with translated_errors("list_objects_v2", None):
        client.list_objects_v2(Bucket=remote.bucket, Prefix=remote.prefix, MaxKeys=1)
