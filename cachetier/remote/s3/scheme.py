"""S3 as one of the kinds of remotes; see ``cachetier.remote.scheme``.

botocore is imported by what needs it, as it takes a while and few commands call a bucket.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cachetier_client.identity.remote_url import oddity_of

from cachetier.remote.fair_slots import AT_ONCE
from cachetier.remote.settings import RemoteSettings

if TYPE_CHECKING:
    from cachetier.remote.s3.inquiry import S3Inquiry
    from cachetier.remote.s3.store import S3Server
    from cachetier.remote.stall_guard import Timeouts
    from cachetier.remote.store_clock import StoreClock

# Where botocore takes an endpoint from that nobody set, the first one first.
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


class S3Scheme:
    """The remotes ``s3://bucket/prefix``, at AWS or at the server of an endpoint."""

    def identity(self, remote: RemoteSettings) -> tuple[str, str, str]:
        prefix = f"{remote.prefix.removesuffix('/')}/" if remote.prefix else ""
        return _server(remote.endpoint), remote.bucket, prefix

    def shown(self, remote: RemoteSettings) -> str:
        return f"{remote.url} at {remote.endpoint or 'AWS'}"

    def oddity(self, remote: RemoteSettings) -> str | None:
        why = oddity_of(remote.bucket)
        return why and (
            f"no bucket can be made under the name {remote.bucket}: {why}. Old buckets "
            "and other stores may have one: `cachetier doctor` asks."
        )

    def endpoint(self, remote: RemoteSettings) -> tuple[str, str] | None:
        if remote.endpoint is not None:
            return "the endpoint ", remote.endpoint
        named = next((each for each in ENDPOINT_VARIABLES if os.environ.get(each)), None)
        return None if named is None else (f"{named}=", os.environ[named])

    def configured_endpoint(self, remote: RemoteSettings) -> str | None:
        from cachetier.remote.s3.boto_client import endpoint_of_profile

        return None if self.endpoint(remote) else endpoint_of_profile(remote.profile)

    def for_clients(self, remote: RemoteSettings) -> dict[str, Any]:
        where = "bucket", "prefix", "endpoint", "region", "addressing_style"
        how = "verify", "conditional_writes", "spread"
        known = {name: getattr(remote, name) for name in where + how}
        return known | remote.at_rest.described()

    def resolved(self, remote: RemoteSettings, directory: Path) -> RemoteSettings:
        from cachetier.remote.s3.addressing import with_style

        return with_style(remote, directory)

    def keep(self, remote: RemoteSettings, resolved: RemoteSettings, directory: Path) -> None:
        from cachetier.remote.s3.addressing import keep_style

        keep_style(remote, resolved, directory)

    def server(
        self,
        remote: RemoteSettings,
        store_clock: StoreClock | None = None,
        *,
        max_connections: int = AT_ONCE,
        timeouts: Timeouts | None = None,
    ) -> S3Server:
        from cachetier.remote.s3.store import S3Server

        return S3Server(remote, store_clock, max_connections=max_connections, timeouts=timeouts)

    def inquire(self, remote: RemoteSettings) -> S3Inquiry:
        from cachetier.remote.s3.inquiry import S3Inquiry

        return S3Inquiry(remote)


def _server(endpoint: str | None) -> str:
    """Return ``endpoint`` in the one way to write it; empty for AWS."""
    if not endpoint:
        return ""
    parts = urlsplit(endpoint)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{parts.hostname}:{port}{parts.path.rstrip('/')}"
