"""The settings of one remote; credentials come from the usual AWS chain.

A replica may name another profile of that chain. Its keys never pass through our settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cachetier_client.bucket_format.at_rest import AS_THE_BUCKET_DOES, AtRest

AddressingStyle = Literal["auto", "path", "virtual"]


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """One bucket to drain to and restore from.

    The one ``durable`` remote is the system of record; a ``replica`` is a second copy.

    Args:
        name: What the catalog, the status and the metrics call it.
        prefix: Where runs begin in the bucket; empty for its root.
        endpoint: The URL of an S3-compatible store; None for AWS.
        verify: ``checksum`` where the store keeps and judges CRC-64/NVME, else ``readback``.
        conditional_writes: False for a store that ignores ``If-None-Match``.
        spread: Whether new saves spread their shards over several prefixes.
        role: What it is for.
        required: Of a replica: nothing is evicted here before it is there too.
        addressing_style: Where a bucket's name stands; ``auto``: the AWS configuration says so, or
            it is found out.
        at_rest: How objects are encrypted, and their storage class.
        profile: The AWS profile whose credentials it takes; None for the usual chain.
    """

    name: str
    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    verify: Literal["checksum", "readback"] = "checksum"
    conditional_writes: bool = True
    spread: bool = False
    role: Literal["durable", "replica"] = "durable"
    required: bool = False
    profile: str | None = None
    addressing_style: AddressingStyle = "auto"
    at_rest: AtRest = AS_THE_BUCKET_DOES

    @property
    def place(self) -> str:
        """The bucket at its server: what is found out of it holds for no other."""
        return f"{self.endpoint or ''} {self.bucket}"

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")
