"""What others make of the same bytes: ``yardsticks.py FILE ELEMENT_SIZE`` prints JSON.

``{"zipnn": 0.66, "blosc2": 0.69}``: stored size / size, of what can be imported. It stands alone,
so that an interpreter that has these libraries can run it; none of them is needed by anything else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

BLOCK_BYTES = 4 << 20
TYPES = {2: "bfloat16", 4: "float32"}


def zipnn(data: bytes, element_size: int) -> int:
    """Compress all of it at once, as zipnn is meant to be used."""
    ZipNN = import_module("zipnn").ZipNN  # noqa: N806 - its name

    packed = ZipNN(bytearray_dtype=TYPES[element_size]).compress(bytearray(data))
    restored = bytes(ZipNN(bytearray_dtype=TYPES[element_size]).decompress(packed))
    if restored != data:
        raise ValueError("zipnn gives back other bytes")
    return len(packed)


def blosc2(data: bytes, element_size: int) -> int:
    """Shuffle and compress with zstd level 1, block by block, as our frames are."""
    library = import_module("blosc2")
    options = {"codec": library.Codec.ZSTD, "clevel": 1, "typesize": element_size}
    options["filters"] = [library.Filter.SHUFFLE]
    blocks = (data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES))
    return sum(len(library.compress2(block, **options)) for block in blocks)


def main(path: Path, element_size: int) -> None:
    data = path.read_bytes()
    yardsticks: dict[str, Callable[[bytes, int], int]] = {"zipnn": zipnn, "blosc2": blosc2}
    found = {}
    for name, compressed_bytes in yardsticks.items():
        try:
            found[name] = compressed_bytes(data, element_size) / len(data)
        except (ImportError, ValueError) as error:
            print(f"{name}: {error}", file=sys.stderr)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
