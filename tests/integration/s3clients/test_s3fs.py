"""s3fs: files and folders, a move, and what torch and pandas write through it."""

from __future__ import annotations

from pathlib import Path

from tests.integration.needs import needs_weed
from tests.integration.s3clients.files import below, read_files, write_files
from tests.integration.s3clients.outside import needs_package, run_program
from tests.integration.s3clients.place import PREFIX, Place

pytestmark = [needs_weed, needs_package("s3fs", "s3fs")]


def test_files_go_there_are_listed_moved_and_come_back(place: Place, tmp_path: Path) -> None:
    contents = write_files(tmp_path / "out")
    told = run_program(place, "s3fs_files.py", place.address("tree"), tmp_path)

    assert read_files(tmp_path / "in") == contents
    root = f"{place.bucket}/{PREFIX}tree/"
    assert told["found"] == sorted(root + name for name in contents)
    assert told["listed"] == [f"{root}config.json", f"{root}empty", f"{root}shards"]
    assert told["middle"] == contents["shards/large.bin"][6_000_000:6_000_010].hex()
    assert told["moved"] == [False, True]
    assert told["streamed"] == 11 << 20
    place.assert_arrives(below("tree", contents))
