"""The address of a bucket of S3 for direct saves, with its dialect.

The names are those of the service's settings, so that one environment serves both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from cachetier_client.bucket_format.at_rest import AS_THE_BUCKET_DOES, AtRest
from cachetier_client.clock import Clock
from cachetier_client.fallback.direct.s3.bucket import S3Bucket
from cachetier_client.identity.remote_url import remote_of

_OFF = frozenset({"0", "off", "f", "false", "n", "no"})


@dataclass(frozen=True, slots=True)
class S3Address:
    """A bucket, where in it runs begin, and what its store can do.

    Args:
        endpoint: The URL of an S3-compatible store; None for AWS.
        verify: ``checksum`` where the store keeps and judges CRC-64/NVME, else ``readback``.
        conditional_writes: False for a store that ignores ``If-None-Match``.
        spread: Whether new saves spread their shards over several prefixes.
        addressing_style: ``path`` or ``virtual``: the bucket's name stands before the host's;
            ``auto``: at AWS it does.
        at_rest: How objects are encrypted, and their storage class.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    verify: str = "checksum"
    conditional_writes: bool = True
    spread: bool = False
    addressing_style: str = "auto"
    at_rest: AtRest = AS_THE_BUCKET_DOES

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> S3Address:
        try:
            bucket, prefix = remote_of(environ["CACHETIER_REMOTE"])
        except ValueError as error:
            raise ValueError(f"CACHETIER_REMOTE: {error}") from None
        verify = environ.get("CACHETIER_REMOTE_VERIFY") or "checksum"
        if verify not in ("checksum", "readback"):
            raise ValueError(f"CACHETIER_REMOTE_VERIFY={verify!r} is neither checksum nor readback")
        endpoint = environ.get("CACHETIER_REMOTE_ENDPOINT") or None
        if endpoint is not None and not _is_url(endpoint):
            raise ValueError(
                f"CACHETIER_REMOTE_ENDPOINT={endpoint!r} is not the URL of an S3 server"
            )
        return cls(
            bucket=bucket,
            prefix=prefix,
            endpoint=endpoint,
            region=environ.get("CACHETIER_REMOTE_REGION") or None,
            verify=verify,
            conditional_writes=environ.get("CACHETIER_CONDITIONAL_WRITES", "on").lower()
            not in _OFF,
            spread=environ.get("CACHETIER_KEY_LAYOUT") == "spread",
            addressing_style=environ.get("CACHETIER_REMOTE_ADDRESSING_STYLE") or "auto",
            at_rest=_at_rest(environ),
        )

    @classmethod
    def from_hello(cls, hello: Mapping[str, Any]) -> S3Address | None:
        bucket, prefix, endpoint, region = (
            hello.get(name) for name in ("bucket", "prefix", "endpoint", "region")
        )
        known = isinstance(bucket, str) and bucket and isinstance(prefix, str)
        if not known or (endpoint is not None and not _is_url(str(endpoint))):
            return None
        try:
            at_rest = AtRest.checked(hello)
        except (ValueError, TypeError, AttributeError):
            return None  # rather not at all than otherwise than it is wanted
        return cls(
            bucket=str(bucket),
            prefix=str(prefix),
            endpoint=str(endpoint) if endpoint else None,
            region=str(region) if region else None,
            verify="readback" if hello.get("verify") == "readback" else "checksum",
            conditional_writes=hello.get("conditional_writes") is not False,
            spread=hello.get("spread") is True,
            addressing_style=str(hello.get("addressing_style") or "auto"),
            at_rest=at_rest,
        )

    def completed(self, service: object) -> S3Address:
        """Return this address, with what the service has found out of the same place.

        An environment that only says where does not turn off the encryption that the service has
        there, nor forget how the service found that the bucket is to be addressed.
        """
        if not isinstance(service, S3Address):
            return self
        named = self
        same_place = (self.endpoint, self.bucket) == (service.endpoint, service.bucket)
        if same_place and self.addressing_style == "auto" != service.addressing_style:
            named = replace(self, addressing_style=service.addressing_style)
        silent = self.at_rest is AS_THE_BUCKET_DOES and self.url == service.url
        return replace(named, at_rest=service.at_rest) if silent else named

    def open(self, clock: Clock) -> S3Bucket:
        return S3Bucket(self, clock)


def _at_rest(environ: Mapping[str, str]) -> AtRest:
    names = "encryption", "kms_key", "kms_context", "storage_class"
    given: dict[str, Any] = {
        name: environ.get(f"CACHETIER_REMOTE_{name.upper()}") for name in names
    }
    if not any(given.values()):
        return AS_THE_BUCKET_DOES  # itself: not said is no "bucket" that was said
    try:
        given["kms_context"] = json.loads(given["kms_context"] or "{}")
        return AtRest.checked(given)
    except ValueError as error:
        raise ValueError(f"CACHETIER_REMOTE_ENCRYPTION and its kin: {error}") from None


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port that is no number, too
        return False
