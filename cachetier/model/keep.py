"""The rule of whether a shard that was brought back from a remote stays here, as a clean copy.

Source: docs/configuration.md, "What a restore leaves here".
"""

from __future__ import annotations

from enum import StrEnum


class Keep(StrEnum):
    ON = "on"
    OFF = "off"
    AUTO = "auto"


def stays(keep: Keep, used_bytes: int, low_bytes: int, *, scarce: bool) -> bool:
    """Return whether a shard stays, which is counted in ``used_bytes`` already.

    ``low_bytes`` is the low watermark; room is ``scarce`` when puts wait for it, or the disk is
    full.
    """
    if keep is Keep.AUTO:
        return used_bytes <= low_bytes and not scarce
    return keep is Keep.ON
