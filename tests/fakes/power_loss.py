"""What a power cut may leave of a disk: a choice for each name and each sector not yet synced."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from awscrt.checksums import crc64nvme

SECTOR_BYTES = 512
COARSE_BYTES = 64 << 10  # how large files are torn, so that it takes no time
LOG_SUFFIX = "-wal"

Names = Mapping[str, int]
Attributes = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes and the extended attributes of a file."""

    data: bytes = b""
    attributes: Attributes = ()
    digest: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", int(crc64nvme(self.data)))

    @classmethod
    def of(cls, path: str) -> Content:
        data = Path(path).read_bytes()
        names = sorted(os.listxattr(path))
        return cls(data, tuple((name, os.getxattr(path, name)) for name in names))

    def other_than(self, start: int, size_bytes: int) -> Content:
        """Return this, but other bytes from ``start`` on."""
        part = slice(start, start + size_bytes)
        other = bytes(byte ^ 0xFF for byte in self.data[part])
        return Content(self.data[:start] + other + self.data[part.stop :], self.attributes)

    def write(self, path: str) -> None:
        Path(path).write_bytes(self.data)
        for name, value in self.attributes:
            os.setxattr(path, name, value)


EMPTY = Content()


def torn(old: bytes, new: bytes, *, size_bytes: int, keep: Callable[[int], bool]) -> bytes:
    """Return ``size_bytes`` of ``old``, but ``new`` in the changed sectors that ``keep`` takes."""
    unit = SECTOR_BYTES if max(len(old), len(new)) <= COARSE_BYTES * 8 else COARSE_BYTES
    body = bytearray(old[:size_bytes].ljust(size_bytes, b"\0"))
    for number, start in enumerate(range(0, min(len(new), size_bytes), unit)):
        sector = new[start : min(start + unit, size_bytes)]
        if body[start : start + unit] != sector and keep(number):
            body[start : start + len(sector)] = sector
    return bytes(body)


def merged(old: Content, new: Content, *, skip_like: Content) -> Content:
    """Return ``new``, but ``old`` in every sector that ``skip_like`` already held."""
    unit = SECTOR_BYTES if max(len(old.data), len(new.data)) <= COARSE_BYTES * 8 else COARSE_BYTES

    def written_since(number: int) -> bool:
        part = slice(number * unit, (number + 1) * unit)
        return new.data[part] != skip_like.data[part]

    data = torn(old.data, new.data, size_bytes=len(new.data), keep=written_since)
    return Content(data, new.attributes)


class Fate(Protocol):
    """Decides what a power cut leaves of what was not synced."""

    def name(self, synced: int | None, live: int | None) -> int | None:
        """Choose what a name stands for: as synced, as it was, or nothing."""

    def content(self, path: str, synced: Content, live: Content, /) -> Content:
        """Choose what a file holds."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same for everything: names, bytes, or both survive unsynced, or neither."""

    names: bool
    data: bool

    def name(self, synced: int | None, live: int | None) -> int | None:
        return live if self.names else synced

    def content(self, _path: str, synced: Content, live: Content) -> Content:
        return live if self.data else synced


WORST = Fixed(names=False, data=False)  # only what was synced
NAMES_ONLY = Fixed(names=True, data=False)
DATA_ONLY = Fixed(names=False, data=True)
PROCESS_ONLY = Fixed(names=True, data=True)  # kill -9: the page cache survives


class Luck:
    """Each name and each file by the throw of a die; a file may be torn at any sector."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)

    def name(self, synced: int | None, live: int | None) -> int | None:
        return synced if synced == live or self._dice.random() < 0.5 else live

    def content(self, _path: str, synced: Content, live: Content) -> Content:
        if synced is live or synced == live:
            return synced
        kind = self._dice.randrange(4)
        if kind < 2:
            return live if kind else synced
        size_bytes = len(self._dice.choice((synced, live)).data)
        data = torn(
            synced.data,
            live.data,
            size_bytes=size_bytes,
            keep=lambda _sector: self._dice.random() < 0.5,
        )
        return Content(data, self._dice.choice((synced, live)).attributes)


class TornLog:
    """Only what was synced, but for the log of SQLite, which ends in the middle of a write."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)

    def name(self, synced: int | None, live: int | None) -> int | None:
        return live if synced is None else synced

    def content(self, path: str, synced: Content, live: Content) -> Content:
        if not path.endswith(LOG_SUFFIX) or synced == live:
            return synced
        size_bytes = self._dice.randint(min(len(synced.data), len(live.data)), len(live.data))
        return Content(torn(synced.data, live.data, size_bytes=size_bytes, keep=lambda _: True))


@dataclass(frozen=True, slots=True)
class Survivor:
    """A directory that a power cut left: folders, and files by their relative path."""

    folders: tuple[str, ...]
    files: Mapping[str, Content]

    @property
    def identity(self) -> int:
        """A number that differs between different survivors."""
        files = tuple((path, c.digest, c.attributes) for path, c in sorted(self.files.items()))
        return hash((self.folders, files))

    def write_to(self, top: Path) -> None:
        """Make ``top`` this directory; whatever else is there goes."""
        kept: set[str] = set()
        _clear(os.fspath(top), "", set(self.folders), kept)
        for folder in self.folders:
            if folder not in kept:
                os.mkdir(top / folder, 0o700)
        for path, content in self.files.items():
            content.write(os.path.join(top, path))


@dataclass(frozen=True, slots=True)
class Image:
    """A disk between two steps: for each folder and each file what is synced, and what is there."""

    root: int
    folders: Mapping[int, tuple[Names, Names]]
    files: Mapping[int, tuple[Content, Content]]

    def survivor(self, fate: Fate) -> Survivor:
        """Return what ``fate`` leaves."""
        folders: list[str] = []
        files: dict[str, Content] = {}
        for path, number in self._walk(self.root, "", fate):
            if number in self.folders:
                folders.append(path)
            else:
                files[path] = fate.content(path, *self.files[number])
        return Survivor(tuple(folders), files)

    def _walk(self, folder: int, prefix: str, fate: Fate) -> Iterator[tuple[str, int]]:
        synced, live = self.folders[folder]
        for name in sorted({*synced, *live}):
            number = fate.name(synced.get(name), live.get(name))
            if number is None:
                continue
            yield f"{prefix}{name}", number
            if any(self.folders.get(number, ())):
                yield from self._walk(number, f"{prefix}{name}/", fate)


def _clear(top: str, folder: str, wanted: set[str], kept: set[str]) -> None:
    """Remove every file, and every folder that is not wanted; add the other folders to ``kept``."""
    with os.scandir(os.path.join(top, folder)) as entries:
        for entry in entries:
            path = f"{folder}{entry.name}"
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
            elif path in wanted:
                kept.add(path)
                _clear(top, f"{path}/", wanted, kept)
            else:
                shutil.rmtree(entry.path)
