"""The answers of the socket protocol: a header, and perhaps a body or a descriptor.

Source: docs/protocol.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from cachetier_client.io import digests
from cachetier_client.transport.wire import Header

from cachetier.restore.restore import Opened


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; ``descriptor`` is closed once it is sent."""

    header: Header
    body: bytes = b""
    descriptor: int | None = None


def opened_reply(opened: Opened) -> Reply:
    header = opened_header(opened)
    if opened.body is not None:
        return Reply(header, opened.body)
    return Reply(header, digests.pack(opened.shard.content.block_digests), opened.descriptor)


def opened_header(opened: Opened) -> Header:
    content = opened.shard.content
    return {
        "size_bytes": content.size_bytes,
        "digest": digests.to_hex(content.digest),
        "source": opened.source,
        "inline": opened.body is not None,
        **({"arriving": opened.shard.version} if opened.arriving else {}),
        **({"checked_at": opened.stale.checked_at} if opened.stale else {}),
    }
