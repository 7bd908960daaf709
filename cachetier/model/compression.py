"""Compression modes, and the rules that choose one by run and shard name.

Source: docs/compression.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from cachetier_client.bucket_format.stored import Codec
from cachetier_client.identity.names import base_run

LEVELS = range(1, 20)
# What ``auto`` compresses with: higher levels cost far more CPU and gain little on weights.
AUTO_LEVEL = 1


class Method(StrEnum):
    """``AUTO`` is zstd wherever that makes the shard durable sooner; ``PLANES`` splits first."""

    OFF = "off"
    AUTO = "auto"
    ZSTD = "zstd"
    PLANES = "planes"


CODEC_OF = {
    Method.OFF: Codec.RAW,
    Method.AUTO: Codec.ZSTD,
    Method.ZSTD: Codec.ZSTD,
    Method.PLANES: Codec.PLANES,
}
LEVELS_OF = {Method.ZSTD: LEVELS, Method.PLANES: LEVELS}

_LEVELED = re.compile(f"({'|'.join(LEVELS_OF)}):([0-9]{{1,4}})", re.ASCII)
WANTED = "'off', 'auto', " + " or ".join(
    f"'{method}:{levels[0]}' to '{method}:{levels[-1]}'" for method, levels in LEVELS_OF.items()
)


@dataclass(frozen=True, slots=True)
class Mode:
    """How one shard is to be compressed; as text it is what a setting says."""

    method: Method
    level: int = 0

    def __str__(self) -> str:
        return f"{self.method}:{self.level}" if self.method in LEVELS_OF else str(self.method)


OFF = Mode(Method.OFF)
AUTO = Mode(Method.AUTO, AUTO_LEVEL)


def parsed_mode(text: str) -> Mode:
    """Return the mode that ``text`` names.

    Raises:
        ValueError: It names none; says what would do.
    """
    lowered = text.strip().lower()
    if lowered in ("off", "false"):
        return OFF
    if lowered == "auto":
        return AUTO
    if match := _LEVELED.fullmatch(lowered):
        method, level = Method(match[1]), int(match[2])
        if level in LEVELS_OF[method]:
            return Mode(method, level)
    raise ValueError(f"{text!r} is no compression: give {WANTED}")


def mode_like(mode: Mode, codec: Codec) -> Mode:
    """Return the mode that stores a shard by ``codec``, as it was stored before.

    Nobody wrote down at which level it was compressed: that of ``mode`` is the best guess.
    """
    if codec is Codec.RAW:
        return OFF
    method = next(each for each in LEVELS_OF if CODEC_OF[each] is codec)
    return Mode(method, mode.level or AUTO_LEVEL)


@dataclass(frozen=True, slots=True)
class Rules:
    """Which mode holds for which shard: that of the first glob that matches, else ``usual``.

    A glob without a slash is held against the run, one with a slash against ``run/name``.
    """

    usual: Mode = OFF
    globs: tuple[tuple[str, Mode], ...] = ()

    @classmethod
    def parsed(cls, usual: str, rules: Sequence[tuple[str, str]] = ()) -> Rules:
        """Read them from texts.

        Raises:
            ValueError: A mode is none, or a glob is empty; says which.
        """
        return cls(parsed_mode(usual), tuple(_parsed_rule(*rule) for rule in rules))

    def mode_of(self, run: str, name: str) -> Mode:
        """Return the mode of shard ``name`` of ``run``."""
        run = base_run(run)
        for glob, mode in self.globs:
            if fnmatchcase(f"{run}/{name}" if "/" in glob else run, glob):
                return mode
        return self.usual


UNCOMPRESSED = Rules()


def _parsed_rule(glob: str, text: str) -> tuple[str, Mode]:
    if not glob.strip():
        raise ValueError(f"a rule for {text!r} has an empty glob: '*' is every run")
    try:
        return glob, parsed_mode(text)
    except ValueError as error:
        raise ValueError(f"rule {glob!r}: {error}") from None
