"""The settings of one remote; credentials come from the usual AWS chain.

A replica may name another profile of that chain. Its keys never pass through our settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from cachetier_client.bucket_format.at_rest import AS_THE_BUCKET_DOES, AtRest
from cachetier_client.identity.remote_url import dialect_of, remote_of

from cachetier.model.names import DURABLE

AddressingStyle = Literal["auto", "path", "virtual"]


@dataclass(frozen=True, slots=True)
class NeighbourSettings:
    """The other nodes of the cluster, and how to reach them.

    Args:
        nodes: Where they listen, as ``host:port``.
        listen: Where this node listens.
        trust: The file of `peers.trust`.
        tls: The files of `tls`.
        place: What names the bucket to the others.
        domain: The failure domain of this node.
        store_id_file: It has the id of this node.
        copies: How many of them keep each object.
    """

    nodes: tuple[str, ...]
    listen: str
    trust: str
    tls: tuple[str, ...]
    place: str
    domain: str
    store_id_file: str
    copies: int = 0


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """One bucket to drain to and restore from.

    The one ``durable`` remote is the system of record; a ``replica`` is a second copy.

    Args:
        name: What the catalog, the status and the metrics call it.
        bucket: The bucket, or what another kind of remote has in its place.
        prefix: Where runs begin in the bucket; empty for its root.
        endpoint: The URL of an S3-compatible store; None for AWS.
        verify: ``checksum`` where the store keeps and judges CRC-64/NVME, else ``readback``.
        conditional_writes: False for a store that ignores ``If-None-Match``.
        spread: Whether new saves spread their shards over several prefixes.
        role: What it is for.
        required: Of a replica: nothing is evicted here before it is there too.
        addressing_style: Where a bucket's name stands; ``auto``: the AWS configuration says so, or
            it is found out.
        stated: The words of ``assume``: what was found out never goes before them.
        at_rest: How objects are encrypted, and their storage class.
        profile: The AWS profile whose credentials it takes; None for the usual chain.
        scheme: Its kind; see ``cachetier.remote.scheme``.
        neighbours: What it is, if its kind is ``peers``.
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
    stated: tuple[str, ...] = ()
    at_rest: AtRest = AS_THE_BUCKET_DOES
    scheme: str = "s3"
    neighbours: NeighbourSettings | None = None

    @classmethod
    def of(cls, name: str, values: Mapping[str, Any]) -> RemoteSettings:
        """Return the remote that ``values`` describe: settings as those of a replica are called.

        Raises:
            ValueError: Says what is wrong.
        """
        bucket, prefix = remote_of(values["url"])
        same = "endpoint", "region"
        others = "required", "profile"  # which the durable remote does not have
        return cls(
            name,
            bucket,
            prefix,
            **{each: values[each] for each in (*same, *others) if each in values},
            **dialect_of(values["assume"]),
            stated=tuple(values["assume"]),
            role="durable" if name == DURABLE else "replica",
            at_rest=AtRest.checked(values),
            scheme=values["url"].partition("://")[0],
        )

    @property
    def in_order(self) -> bool | None:
        """Whether listings come sorted and begin behind any key; None where the store shows it."""
        return next((word == "sorted" for word in self.stated if word.endswith("sorted")), None)

    def beside(self, bucket: str, prefix: str = "") -> RemoteSettings:
        """Return another bucket at the same server, reached in the same way."""
        return replace(self, bucket=bucket, prefix=prefix)

    @property
    def called(self) -> str:
        """Its name in errors: that of its setting."""
        return "`remote`" if self.role == "durable" else f"replica {self.name}"

    @property
    def place(self) -> str:
        """The bucket at its server: what is found out of it holds for no other."""
        return f"{self.endpoint or ''} {self.bucket}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")
