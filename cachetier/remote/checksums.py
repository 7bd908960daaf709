"""The CRC-64/NVME as S3 writes it in a header: eight bytes, big-endian, in base64."""

from __future__ import annotations

import base64


def to_base64(digest: int) -> str:
    """Write a digest as S3 does."""
    return base64.b64encode(digest.to_bytes(8, "big")).decode()


def from_base64(text: str) -> int | None:
    """Read what ``to_base64`` wrote; None for a composite, which is no digest of the bytes."""
    return None if "-" in text else int.from_bytes(base64.b64decode(text), "big")
