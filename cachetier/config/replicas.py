"""The settings of one replica: a table ``[replicas.<name>]``, or JSON in ``CACHETIER_REPLICAS``.

Source: docs/remotes.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cachetier_client.bucket_format.at_rest import BUCKETS_OWN, ENCRYPTIONS, AtRest

from cachetier.config.fields import record, required, setting
from cachetier.config.types import COMPRESSION, FLAG, REMOTE, TEXT, URL, one_of, optional, table
from cachetier.model.names import DURABLE
from cachetier.remote.scheme import scheme_of
from cachetier.remote.settings import AddressingStyle, RemoteSettings

ENCRYPTION = one_of(*ENCRYPTIONS)
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings:
    """A second copy of what is drained: any S3 server, near or elsewhere."""

    remote: str = required(REMOTE, "Where the copies go: `s3://bucket/prefix`.")
    endpoint: str | None = setting(optional(URL), None, "URL of the S3 server; AWS if not given.")
    region: str | None = setting(optional(TEXT), None, "Region of the bucket.")
    verify: Literal["checksum", "readback"] = setting(
        one_of("checksum", "readback"), "checksum", "As `remote_verify`, of this server."
    )
    addressing_style: AddressingStyle = setting(
        one_of("auto", "path", "virtual"), "auto", "As `remote_addressing_style`, of this server."
    )
    conditional_writes: bool = setting(FLAG, True, "`off` for a server without `If-None-Match`.")
    key_layout: Literal["plain", "spread"] = setting(
        one_of("plain", "spread"), "plain", "As the node's `key_layout`."
    )
    encryption: str = setting(ENCRYPTION, BUCKETS_OWN, "As `remote_encryption`, and so on.")
    kms_key: str | None = setting(optional(TEXT), None)
    kms_context: dict[str, str] = setting(table(TEXT), {})
    storage_class: str | None = setting(optional(TEXT), None)
    compression: str = setting(COMPRESSION, "off", "How shards are stored there.")
    required: bool = setting(FLAG, False, "`on`: nothing leaves this node before it is there too.")
    profile: str | None = setting(
        optional(TEXT), None, "The AWS profile whose credentials it takes."
    )

    def __post_init__(self) -> None:
        AtRest.checked(vars(self))


REPLICAS = table(record(ReplicaSettings, "`remote` is not set: give it as 's3://bucket/prefix'"))


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
        if places and (not _NAME.fullmatch(name) or name == DURABLE):
            raise ValueError(
                f"{name!r} cannot be the name of a replica: a lower-case letter first, then up to "
                f"30 of a-z 0-9 -, and not {DURABLE!r}"
            )
        place = scheme_of(remote).identity(remote)
        if place in places:
            raise ValueError(
                f"{name} is the same place as {places[place]}: a second copy there is none"
            )
        places[place] = remote.called
