"""Files that a caller names: regular ones are replaced whole, others are written in place."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from cachetier_client.io.whole_file import whole_file


def test_a_file_appears_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "model.bin"
    target.write_bytes(b"old")

    with pytest.raises(KeyError), whole_file(target) as out:
        out.write(b"half")
        raise KeyError
    assert target.read_bytes() == b"old"

    with whole_file(target) as out:
        out.write(b"new")
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"
    assert [*tmp_path.iterdir()] == [target]


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "model.bin"
    target.touch(0o640)

    with whole_file(target):
        pass

    assert stat.S_IMODE(target.stat().st_mode) == 0o640


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_followed_to_its_file(tmp_path: Path, there: bool) -> None:
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / "model.bin", tmp_path / "link"
    link.symlink_to("disk/model.bin")
    if there:
        target.write_bytes(b"old")

    with whole_file(link) as out:
        out.write(b"new")

    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert [*target.parent.iterdir()] == [target]


def test_a_fifo_is_written_and_stays_one(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read = list[bytes]()
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()))
    reader.start()

    with whole_file(fifo) as out:
        out.write(b"new")
    reader.join()

    assert read == [b"new"]
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_a_device_is_written_and_stays_one() -> None:
    with whole_file("/dev/null") as out:
        out.write(b"new")

    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_an_open_descriptor_is_written_through_its_name(tmp_path: Path) -> None:
    with (tmp_path / "output").open("w+b") as output:
        with whole_file(f"/proc/self/fd/{output.fileno()}") as out:
            out.write(b"new")

        assert output.read() == b"new"
