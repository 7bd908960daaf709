"""A folder as a training job leaves it, for clients that carry files."""

from __future__ import annotations

import random
from pathlib import Path

LARGE = "shards/large.bin"


def write_files(folder: Path) -> dict[str, bytes]:
    """Write some files below ``folder``; return their bytes, by relative path."""
    draw = random.Random(17)
    contents = {
        "config.json": b'{"layers": 12}\n',
        "empty": b"",
        LARGE: draw.randbytes((17 << 20) + 3),
        "shards/odd name+%é.bin": draw.randbytes(70_000),
        "shards/small.bin": draw.randbytes(4096),
    }
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return contents


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files below ``folder``, by relative path."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(found)}


def below(prefix: str, contents: dict[str, bytes]) -> dict[str, bytes]:
    """Return the same bytes by their names below ``prefix``."""
    return {f"{prefix}/{name}": content for name, content in contents.items()}
