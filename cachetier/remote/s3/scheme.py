"""S3 as one of the kinds of remotes; see ``cachetier.remote.scheme``.

botocore is imported by what needs it, as it takes a while and few commands call a bucket.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from cachetier_client.identity.remote_url import oddity_of

from cachetier.remote.bounded_calls import alone
from cachetier.remote.fair_slots import AT_ONCE
from cachetier.remote.settings import AddressingStyle, RemoteSettings

if TYPE_CHECKING:
    from cachetier.remote.s3.inquiry import S3Inquiry
    from cachetier.remote.s3.store import S3Server
    from cachetier.remote.stall_guard import Timeouts
    from cachetier.remote.store_clock import StoreClock

# Where botocore takes an endpoint from that nobody set, the first one first.
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
IGNORE_VARIABLE = "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"
FOUND_FILE = "found.json"  # the properties of stores that were found out, beside the catalog
STYLES: tuple[AddressingStyle, ...] = ("path", "virtual")
START_SECONDS = 10.0


def identity(remote: RemoteSettings) -> tuple[str, str, str]:
    prefix = f"{remote.prefix.removesuffix('/')}/" if remote.prefix else ""
    return _server(remote.endpoint), remote.bucket, prefix


def shown(remote: RemoteSettings) -> str:
    return f"{remote.url} at {remote.endpoint or 'AWS'}"


def oddity(remote: RemoteSettings) -> str | None:
    why = oddity_of(remote.bucket)
    return why and (
        f"no bucket can be made under the name {remote.bucket}: {why}. Old buckets "
        "and other stores may have one: `cachetier doctor` asks."
    )


def endpoint(remote: RemoteSettings) -> tuple[str, str] | None:
    if remote.endpoint is not None:
        return "the endpoint ", remote.endpoint
    named = next((each for each in ENDPOINT_VARIABLES if os.environ.get(each)), None)
    if os.environ.get(IGNORE_VARIABLE, "").lower() == "true":
        named = None
    return None if named is None else (f"{named}=", os.environ[named])


def used_endpoint(remote: RemoteSettings) -> str | None:
    """Return the endpoint that the clients of ``remote`` take; None for AWS's own."""
    from cachetier.remote.s3.boto_client import endpoint_of_profile

    _, url = endpoint(remote) or ("", endpoint_of_profile(remote.profile))
    return url


def for_clients(remote: RemoteSettings) -> dict[str, Any]:
    where = "bucket", "prefix", "endpoint", "region", "addressing_style"
    how = "verify", "conditional_writes", "spread"
    known = {name: getattr(remote, name) for name in where + how}
    return known | remote.at_rest.described()


def load() -> None:
    from cachetier.remote.s3 import boto_client, store  # noqa: F401 - calls need both

    boto_client.load_models()


def resolved(remote: RemoteSettings, directory: Path) -> RemoteSettings:
    """Return ``remote`` with its properties: as said, kept in ``directory``, or answered now.

    Nobody waits long for an answer: a client of ``auto`` asks again.
    """
    from cachetier.remote.s3.inquiry import found_style

    # Clients and peers hear of it, and they have another environment.
    remote = replace(remote, endpoint=used_endpoint(remote))
    kept = _kept(directory).get(remote.place, ())
    if "readback" in kept and "checksum" not in remote.stated:
        remote = replace(remote, verify="readback")
    if remote.addressing_style != "auto" or not has_a_choice(remote.endpoint):
        return remote
    style = stated_style(remote)
    if style == "auto":
        style = next((each for each in STYLES if each in kept), style)
    with suppress(Exception):  # of whatever kind: the drain meets it too, and says so
        if style == "auto":
            style = alone("addressing", lambda: found_style(remote)).result(START_SECONDS)
    return replace(remote, addressing_style=style)


def keep(remote: RemoteSettings, resolved: RemoteSettings, directory: Path) -> None:
    """Keep what ``resolved`` has made of ``remote``; a disk that takes nothing is no trouble."""
    kept = _kept(directory)
    new = set(kept.get(resolved.place, ()))
    if resolved.addressing_style != "auto" and stated_style(remote) == "auto":
        new = new.difference(STYLES) | {resolved.addressing_style}
    if resolved.verify != remote.verify:
        new.add(resolved.verify)
    if new.difference(kept.get(resolved.place, ())):
        with suppress(OSError):
            text = msgspec.json.encode(kept | {resolved.place: sorted(new)})
            (directory / FOUND_FILE).write_bytes(text)


def server(
    remote: RemoteSettings,
    store_clock: StoreClock | None = None,
    *,
    max_connections: int = AT_ONCE,
    timeouts: Timeouts | None = None,
) -> S3Server:
    from cachetier.remote.s3.store import S3Server

    return S3Server(remote, store_clock, max_connections=max_connections, timeouts=timeouts)


def inquire(remote: RemoteSettings) -> S3Inquiry:
    from cachetier.remote.s3.inquiry import S3Inquiry

    return S3Inquiry(remote)


def stated_style(remote: RemoteSettings) -> AddressingStyle:
    """Return the style that the settings or the AWS configuration say, ``auto`` if neither does."""
    from cachetier.remote.s3.boto_client import configured_style

    style = remote.addressing_style
    return style if style != "auto" else configured_style(remote.profile)


def _kept(directory: Path) -> dict[str, list[str]]:
    """Return what was found out, by place: words as ``assume`` has them."""
    with suppress(OSError, msgspec.DecodeError):
        text = (directory / FOUND_FILE).read_bytes()
        return msgspec.json.decode(text, type=dict[str, list[str]])
    return {}


def has_a_choice(endpoint: str | None) -> bool:
    """Return whether a bucket's name could stand before the name of a host, and need not."""
    host = urlsplit(endpoint or "").hostname or ""
    is_address = ":" in host or host.rpartition(".")[2].isdigit()
    return "." in host and not is_address and ".amazonaws.com" not in host


def _server(endpoint: str | None) -> str:
    """Return ``endpoint`` in the one way to write it; empty for AWS."""
    if not endpoint:
        return ""
    parts = urlsplit(endpoint)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{parts.hostname}:{port}{parts.path.rstrip('/')}"
