"""rclone, told by its variables where the keys are."""

from __future__ import annotations

from pathlib import Path

from tests.integration.needs import needs_weed
from tests.integration.s3clients.files import LARGE, below, read_files, write_files
from tests.integration.s3clients.outside import found_program, needs_program, run
from tests.integration.s3clients.place import PREFIX, Place

pytestmark = [needs_weed, needs_program("rclone")]


def rclone(place: Place, *arguments: object) -> str:
    remote = {
        "RCLONE_CONFIG": "/dev/null",
        "RCLONE_CONFIG_NODE_TYPE": "s3",
        "RCLONE_CONFIG_NODE_PROVIDER": "Other",
        "RCLONE_CONFIG_NODE_ENV_AUTH": "true",
        "RCLONE_CONFIG_NODE_ENDPOINT": place.url,
    }
    return run(place, found_program("rclone"), "--retries", "1", *arguments, **remote)


def at(place: Place, name: str) -> str:
    return f"node:{place.bucket}/{PREFIX}{name}"


def test_a_folder_is_synced_checked_and_comes_back(place: Place, tmp_path: Path) -> None:
    contents = write_files(tmp_path / "out")
    parts = ("--s3-upload-cutoff", "6M", "--s3-chunk-size", "5M")
    rclone(place, "sync", *parts, tmp_path / "out", at(place, "tree"))
    rclone(place, "check", "--download", tmp_path / "out", at(place, "tree"))
    rclone(place, "copy", at(place, "tree"), tmp_path / "in")

    assert read_files(tmp_path / "in") == contents
    place.assert_arrives(below("tree", contents))
    rclone(place, "check", tmp_path / "out", at(place, "tree"))  # by the MD5 that it left there
    (tmp_path / "out" / LARGE).unlink()
    rclone(place, "sync", *parts, tmp_path / "out", at(place, "tree"))
    listed = rclone(place, "lsf", "-R", "--files-only", at(place, "tree")).splitlines()
    assert sorted(listed) == sorted(set(contents) - {LARGE})


def test_an_object_is_moved_by_a_copy_in_the_bucket(place: Place, tmp_path: Path) -> None:
    contents = write_files(tmp_path)
    rclone(place, "copyto", tmp_path / LARGE, at(place, "before"))
    rclone(place, "moveto", at(place, "before"), at(place, "after"))

    place.assert_arrives({"after": contents[LARGE]})
    listed = rclone(place, "lsf", at(place, "")).split()
    assert "after" in listed and "before" not in listed
