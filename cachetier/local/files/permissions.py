"""The permissions of the cache directory: the service's user alone, and through no symbolic link.

Nobody else can put a link where nobody else can write, so what is there is looked at once, by
whoever takes the directory; ``unfollowed`` is the second wall. Reading the directory itself is let
to others, as its socket may lie in it. Those above it are for its owner to guard.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cachetier.errors import ConfigError

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep_files_private() -> None:
    """Create files for this process's user alone from now on, whatever it was started with."""
    os.umask(_OTHERS)


def unfollowed(path: str | Path, flags: int) -> int:
    """Open a file, but no symbolic link; for ``open(opener=...)`` too. A new one has mode 0600.

    Raises:
        OSError: ELOOP for a link.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def refuse_exposed(cache_dir: Path, user: int) -> None:
    """Refuse a ``cache_dir`` that anybody but ``user`` could change, or that has a link in it.

    Raises:
        ConfigError: It is so; says what to do.
    """
    status = cache_dir.stat()
    if status.st_uid != user:
        raise ConfigError(
            f"cache_dir {cache_dir} belongs to user {status.st_uid}, and this is user {user}",
            hint=f"Run it as that user, or give it away: chown {user} {cache_dir}",
        )
    if status.st_mode & _OTHERS_WRITE:
        raise ConfigError(
            f"others may write to cache_dir {cache_dir} (mode {stat.S_IMODE(status.st_mode):04o})",
            hint=f"Run: chmod go-w {cache_dir}. In a volume that must stay open to others name a "
            "directory that is not there yet: it is made for this user alone.",
        )
    for path, inside in _entries(cache_dir):
        if stat.S_ISLNK(inside.st_mode):
            raise ConfigError(
                f"{path} is a symbolic link: links in cache_dir are not followed",
                hint="Put what it points to in its place; cache_dir itself may be a link.",
            )
        if inside.st_uid not in (user, 0):
            raise ConfigError(
                f"{path} belongs to user {inside.st_uid}, and this is user {user}",
                hint=f"Find out who put it there; if it is the cache's: chown {user} {path}",
            )


def narrow(cache_dir: Path) -> None:
    """Take from others what an older version let them have of files and folders in ``cache_dir``.

    Data files are behind their folders.
    """
    for path, status in _entries(cache_dir):
        ours = status.st_uid == os.geteuid() and stat.S_IFMT(status.st_mode) != stat.S_IFSOCK
        if ours and status.st_mode & _OTHERS:
            path.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)


def _entries(cache_dir: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield what is in the directory, then the folders of data files; some may go meanwhile."""
    for folder in (cache_dir, cache_dir / "data"):
        with suppress(FileNotFoundError):
            for name in os.listdir(folder):
                path = folder / name
                with suppress(FileNotFoundError):
                    yield path, path.lstat()
