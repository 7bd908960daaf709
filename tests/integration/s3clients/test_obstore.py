"""obstore, the object store of Rust: puts on condition, parts, lists and ranges."""

from __future__ import annotations

from pathlib import Path

from tests.integration.needs import needs_weed
from tests.integration.s3clients.files import below, write_files
from tests.integration.s3clients.outside import needs_package, run_program
from tests.integration.s3clients.place import PREFIX, Place

pytestmark = [needs_weed, needs_package("obstore", "obstore")]


def test_objects_are_put_listed_read_in_ranges_and_created_once(
    place: Place, tmp_path: Path
) -> None:
    contents = write_files(tmp_path)
    told = run_program(place, "obstore_objects.py", place.bucket, f"{PREFIX}tree", tmp_path)

    assert told["listed"] == sorted(contents)
    assert told["read"] == {name: len(content) for name, content in contents.items()}
    assert told["range"] == contents["shards/large.bin"][-10:].hex()
    assert told["created_again"] == "AlreadyExistsError"
    place.assert_arrives(below("tree", contents))
