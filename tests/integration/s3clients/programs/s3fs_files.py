"""s3fs as a script uses it: ``s3fs_files.py ADDRESS FOLDER``; puts FOLDER/out, fills FOLDER/in."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import fsspec


def main(address: str, folder: str) -> None:
    fs, root = fsspec.core.url_to_fs(address)
    fs.put(f"{folder}/out/", f"{root}/", recursive=True)
    fs.get(f"{root}/", f"{folder}/in/", recursive=True)
    with fs.open(f"{root}/shards/large.bin") as file:
        file.seek(6_000_000)
        middle = file.read(10)
    told = {"found": fs.find(root), "listed": sorted(fs.ls(root, detail=False))}
    piece = bytes(1 << 20)
    with fs.open(f"{root}-streamed", "wb", block_size=5 << 20) as file:
        for _ in range(11):
            file.write(piece)
    fs.mv(f"{root}-streamed", f"{root}-moved")
    fs.invalidate_cache()
    told |= {
        "middle": middle.hex(),
        "moved": [fs.exists(f"{root}-streamed"), fs.exists(f"{root}-moved")],
        "streamed": fs.size(f"{root}-moved"),
    }
    fs.rm(f"{root}-moved")
    print(json.dumps(told))


if __name__ == "__main__":
    Path(sys.argv[2], "in").mkdir()
    main(*sys.argv[1:])
