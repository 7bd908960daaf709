"""The address of a bucket of S3 for direct saves, with its dialect.

It is the service's setting ``remote``, so that one environment serves both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from cachetier_client.bucket_format.at_rest import AS_THE_BUCKET_DOES, AtRest
from cachetier_client.clock import Clock
from cachetier_client.fallback.direct.s3.bucket import S3Bucket
from cachetier_client.identity.remote_url import (
    PROPERTIES,
    contradiction_of,
    dialect_of,
    remote_of,
)

_VARIABLE, _ENDPOINT = "CACHETIER_REMOTE", "CACHETIER_REMOTE_ENDPOINT"
_BEFORE = frozenset({"CACHETIER_CONDITIONAL_WRITES", "CACHETIER_KEY_LAYOUT"})
AT_REST = ("encryption", "kms_context", "storage_class")
_KEYS = ("url", "endpoint", "region", "assume", *AT_REST)


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
            given = _table(environ)
            bucket, prefix = remote_of(given["url"])
            words = given.get("assume") or ()
            words = re.findall(r"[^,\s]+", words) if isinstance(words, str) else words
            if unknown := [word for word in words if word not in PROPERTIES]:
                raise ValueError(f"assume: {unknown[0]!r} is not one of {', '.join(PROPERTIES)}")
            if both := contradiction_of(words):
                raise ValueError(f"assume: {both[0]!r} and {both[1]!r} contradict each other")
            endpoint = given.get("endpoint") or None
            if endpoint is not None and not _is_url(endpoint):
                raise ValueError(f"endpoint {endpoint!r} is not the URL of an S3 server")
            wished = [given.get(name) for name in AT_REST]
            return cls(
                bucket=bucket,
                prefix=prefix,
                endpoint=endpoint,
                region=given.get("region") or None,
                **dialect_of(words),
                # Itself: not given is no "bucket" that was given.
                at_rest=AtRest.checked(given) if any(wished) else AS_THE_BUCKET_DOES,
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"{_VARIABLE}: {error}") from None

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


def _table(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the service's setting ``remote`` as the environment says it: a URL, or a JSON table.

    A key of it has a variable of its own only for the service, apart from the endpoint. Another one
    is refused here: without it, saves would be written otherwise than by the service.
    """
    text = environ[_VARIABLE]
    given: dict[str, Any] = {"url": text}
    if text.lstrip().startswith("{"):
        given = json.loads(text)
    if environ.get(_ENDPOINT):
        given["endpoint"] = environ[_ENDPOINT]
    others = {each for each in environ if each.startswith(f"{_VARIABLE}_") and environ[each]}
    others |= _BEFORE & environ.keys()
    wrong = sorted(others - {_ENDPOINT}) or sorted(given.keys() - {*_KEYS})
    if wrong or not isinstance(given.get("url"), str):
        keys = ", ".join(_KEYS)
        raise ValueError(
            f"{', '.join(wrong or ['url'])}: write all as JSON with keys of {keys}, which service "
            "and clients read alike"
        )
    return given


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port that is no number, too
        return False
