"""The AWS command line, with nothing but the variables that `cachetier s3 env` prints."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.needs import needs_weed
from tests.integration.s3clients.files import LARGE, below, read_files, write_files
from tests.integration.s3clients.outside import client_python, needs_package, run
from tests.integration.s3clients.place import PREFIX, Place

pytestmark = [needs_weed, needs_package("awscli", "awscli")]


def aws(place: Place, *arguments: object) -> str:
    return run(place, client_python(), "-m", "awscli", *arguments)


def test_a_folder_is_synced_there_and_back(place: Place, tmp_path: Path) -> None:
    contents = write_files(tmp_path / "out")
    aws(place, "s3", "sync", "--no-progress", tmp_path / "out", place.address("sync"))
    aws(place, "s3", "sync", "--no-progress", place.address("sync"), tmp_path / "in")

    assert read_files(tmp_path / "in") == contents
    listed = aws(place, "s3", "ls", "--recursive", place.address("sync/"))
    assert [line.split(None, 3)[3] for line in listed.splitlines()] == [
        f"{PREFIX}sync/{name}" for name in contents
    ]
    place.assert_arrives(below("sync", contents))
    again = aws(place, "s3", "sync", "--no-progress", tmp_path / "out", place.address("sync"))
    assert again == ""  # sizes and times are as it left them


def test_a_file_is_copied_moved_and_removed(place: Place, tmp_path: Path) -> None:
    contents = write_files(tmp_path)
    aws(place, "s3", "cp", "--no-progress", tmp_path / LARGE, place.address("one"))
    aws(place, "s3", "cp", "--no-progress", place.address("one"), place.address("two"))
    aws(place, "s3", "mv", "--no-progress", place.address("two"), place.address("three"))

    place.assert_arrives({"one": contents[LARGE], "three": contents[LARGE]})
    aws(place, "s3", "rm", place.address("one"))
    listed = aws(place, "s3", "ls", place.address())
    assert " one" not in listed and " two" not in listed and " three" in listed


def test_the_calls_of_the_api_answer_in_its_words(place: Place, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"by hand")
    where = ("--bucket", place.bucket, "--key", f"{PREFIX}api")
    put = json.loads(aws(place, "s3api", "put-object", *where, "--body", tmp_path / "body"))
    head = json.loads(aws(place, "s3api", "head-object", *where, "--checksum-mode", "ENABLED"))

    assert (head["ETag"], head["ContentLength"]) == (put["ETag"], 7)
    declared = {name: put[name] for name in put if name.startswith("ChecksumCRC")}
    assert declared and declared.items() <= head.items()
    aws(place, "s3api", "wait", "object-exists", *where)
    place.assert_arrives({"api": b"by hand"})
