"""The settings of one remote: the table ``[remote]``, and those of replicas, ``[replicas.<name>]``.

Source: docs/remotes.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cachetier_client.bucket_format.at_rest import BUCKETS_OWN, ENCRYPTIONS, AtRest
from cachetier_client.identity.remote_url import PROPERTIES, contradiction_of

from cachetier.config.fields import declared, record, required, setting
from cachetier.config.types import (
    COMPRESSION,
    FLAG,
    REMOTE,
    TEXT,
    URL,
    SettingType,
    checked,
    listed,
    one_of,
    optional,
    plain,
    table,
)
from cachetier.model.names import DURABLE
from cachetier.parsers import table_of
from cachetier.remote.scheme import scheme_of
from cachetier.remote.settings import RemoteSettings

_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}", re.ASCII)
_BEFORE = {
    "remote": "url",
    "verify": "assume",
    "conditional_writes": "assume",
    "addressing_style": "assume",
    "key_layout": "assume",
    "kms_key": "encryption = 'aws:kms alias/key'",
}
_MISSING = "`url` is not set: give it as 's3://bucket/prefix'"


def _check_properties(words: Sequence[str]) -> None:
    if both := contradiction_of(words):
        raise ValueError(f"{both[0]!r} and {both[1]!r} contradict each other: keep one")


def _check_encryption(text: str) -> None:
    one_of(*ENCRYPTIONS).read(text.partition(" ")[0])
    AtRest.checked({"encryption": text})


ENCRYPTION: SettingType[str] = replace(
    checked(TEXT, _check_encryption),
    schema={"anyOf": [{"enum": list(ENCRYPTIONS)}, {"type": "string", "pattern": "^aws:kms.* "}]},
)


@dataclass(frozen=True, kw_only=True)
class BucketSettings:
    """Where checkpoints go, and how they are written there."""

    url: str = required(REMOTE, "The bucket, and the prefix in it: `s3://bucket/prefix`.")
    endpoint: str | None = setting(
        optional(URL),
        None,
        "URL of an S3-compatible store; if not given, `AWS_ENDPOINT_URL`, else AWS itself.",
    )
    region: str | None = setting(
        optional(TEXT), None, "Region of the bucket; the AWS chain decides if not given."
    )
    assume: tuple[str, ...] = setting(
        checked(listed(one_of(*PROPERTIES), r"[,\s]+"), _check_properties),
        (),
        "Properties of the store: `path` or `virtual`, where the bucket's name stands (else the "
        "AWS configuration says so, or the store is asked); `readback` without CRC-64/NVME: "
        "objects are read back; `unconditional` without `If-None-Match`: nodes may then overwrite.",
    )
    encryption: str = setting(
        ENCRYPTION,
        BUCKETS_OWN,
        "Every write asks for it: `AES256` (SSE-S3), `aws:kms` or `aws:kms:dsse`, each also with "
        "the id, ARN or alias of a KMS key: `aws:kms alias/key`; `bucket`: the bucket decides.",
    )
    kms_context: dict[str, str] = setting(
        table(TEXT), {}, "KMS encryption context: a table of texts that policies and logs see."
    )
    storage_class: str | None = setting(
        optional(TEXT),
        None,
        "Storage class of shards and packs: `STANDARD_IA`, `GLACIER_IR`, ...; documents have the "
        "bucket's.",
    )

    def __post_init__(self) -> None:
        AtRest.checked(vars(self))


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings(BucketSettings):
    """A second copy of what is drained: any S3 server, near or elsewhere."""

    compression: str = setting(COMPRESSION, "off", "How shards are stored there.")
    required: bool = setting(FLAG, False, "`on`: nothing leaves this node before it is there too.")
    profile: str | None = setting(
        optional(TEXT), None, "The AWS profile whose credentials it takes."
    )


REPLICAS = table(record(ReplicaSettings, _MISSING, _BEFORE))
_BUCKET = record(BucketSettings, _MISSING, _BEFORE)
BUCKET_KEYS = declared(BucketSettings)


def _read_bucket(value: object) -> BucketSettings:
    return _BUCKET.read(as_table(value))


def as_table(value: object) -> object:
    """Return what is given of a bucket as a table: of a URL alone, too."""
    if not isinstance(value, str):
        return value
    return table_of(value) if value.lstrip().startswith("{") else {"url": value}


def _written(value: Any) -> Any:
    if not isinstance(value, BucketSettings):
        return None
    given = {
        name: each
        for name, each in plain(value).items()
        if each != plain(BUCKET_KEYS[name].default)
    }
    return value.url if len(given) == 1 else given


BUCKET: SettingType[BucketSettings] = SettingType(
    _read_bucket,
    {"anyOf": [{"type": "string"}, _BUCKET.schema]},
    written=_written,
    record=BucketSettings,
)


def whole_bucket(sources: Sequence[Mapping[str, Any]]) -> object:
    """Return what ``sources`` say of ``remote``, the last of them first; None if it has no URL.

    Each may have the setting, and its keys one by one: ``remote_endpoint``.
    """
    found: dict[str, Any] = {}
    for source in sources:
        if (given := source.get("remote")) is not None:
            try:
                given = as_table(given)
            except ValueError:
                return given  # which reading it says again
            if not isinstance(given, Mapping):
                return given
            found |= given
        found |= {key: source[one] for key, one in BUCKET_NAMES.items() if one in source}
    return found if "url" in found else None


BUCKET_NAMES = {key: f"remote_{key}" for key in BUCKET_KEYS if key != "url"}


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
