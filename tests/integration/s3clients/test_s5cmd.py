"""s5cmd, which reads the endpoint from a variable of its own."""

from __future__ import annotations

from pathlib import Path

from tests.integration.needs import needs_weed
from tests.integration.s3clients.files import below, read_files, write_files
from tests.integration.s3clients.outside import found_program, needs_program, run
from tests.integration.s3clients.place import Place

pytestmark = [needs_weed, needs_program("s5cmd")]


def s5cmd(place: Place, *arguments: object) -> str:
    return run(place, found_program("s5cmd"), *arguments, S3_ENDPOINT_URL=place.url)


def test_a_folder_goes_there_and_comes_back(place: Place, tmp_path: Path) -> None:
    contents = write_files(tmp_path / "out")
    s5cmd(place, "cp", "--part-size", "5", f"{tmp_path}/out/", place.address("tree/"))
    s5cmd(place, "cp", place.address("tree/*"), tmp_path / "in/")

    assert read_files(tmp_path / "in") == contents
    assert len(s5cmd(place, "ls", place.address("tree/*")).splitlines()) == len(contents)
    place.assert_arrives(below("tree", contents))
    s5cmd(place, "rm", place.address("tree/shards/*"))
    assert len(s5cmd(place, "ls", place.address("tree/*")).splitlines()) == 2


def test_a_stream_goes_there_and_comes_back(place: Place, tmp_path: Path) -> None:
    contents = write_files(tmp_path)
    program = found_program("s5cmd")
    large = tmp_path / "shards/large.bin"
    piped = f"{program} pipe {place.address('piped')} < {large}"
    run(place, "sh", "-c", piped, S3_ENDPOINT_URL=place.url)

    place.assert_arrives({"piped": contents["shards/large.bin"]})
