"""The settings of one replica: a table ``[replicas.<name>]``, or JSON in ``CACHETIER_REPLICAS``.

Source: docs/remotes.md.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from cachetier.config_types import Compression, OptionalText, OptionalUrl, Remote
from cachetier.grammars import remote_of
from cachetier.model.replication import DURABLE
from cachetier.nearest import nearest

_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}", re.ASCII)


class ReplicaSettings(BaseModel):
    """A second copy of what is drained: any S3 server, near or elsewhere.

    ``compression`` is how shards are stored there; ``required``: nothing is evicted on this node
    before it is there too; ``profile``: the AWS profile whose credentials it takes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    remote: Remote
    endpoint: OptionalUrl = None
    region: OptionalText = None
    verify: Literal["checksum", "readback"] = "checksum"
    conditional_writes: bool = True
    key_layout: Literal["plain", "spread"] = "plain"
    compression: Compression = "off"
    required: bool = False
    profile: OptionalText = None

    @property
    def bucket(self) -> str:
        return remote_of(self.remote)[0]

    @property
    def prefix(self) -> str:
        return remote_of(self.remote)[1]

    @model_validator(mode="before")
    @classmethod
    def _knows_every_key(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            raise ValueError(f"{table!r} is no table with a `remote`")  # noqa: TRY004  pydantic's
        for key in table:
            if key not in cls.model_fields:
                known = nearest(str(key), cls.model_fields) or ", ".join(cls.model_fields)
                raise ValueError(f"unknown key `{key}`: did you mean {known}?")
        if "remote" not in table:
            raise ValueError("`remote` is not set: give it as 's3://bucket/prefix'")
        return table


def checked_replicas(
    replicas: dict[str, ReplicaSettings], durable: tuple[str, str | None]
) -> dict[str, ReplicaSettings]:
    """Return ``replicas`` if their names can be told apart everywhere, and so can their places.

    Args:
        replicas: By name.
        durable: The durable remote and its endpoint; a copy on top of it would be none.

    Raises:
        ValueError: Says what is wrong.
    """
    places = {_place(*durable): "`remote`"}
    for name, replica in replicas.items():
        if not _NAME.fullmatch(name) or name == DURABLE:
            raise ValueError(
                f"{name!r} cannot be the name of a replica: a lower-case letter first, then up to "
                f"30 of a-z 0-9 -, and not {DURABLE!r}"
            )
        place = _place(replica.remote, replica.endpoint)
        if place in places:
            raise ValueError(
                f"{name} is the same place as {places[place]}: a second copy there is none"
            )
        places[place] = f"replica {name}"
    return replicas


def _place(remote: str, endpoint: str | None) -> tuple[str, str, str]:
    return (*remote_of(remote), (endpoint or "").rstrip("/"))
