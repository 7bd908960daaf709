"""``cachetier ls`` and ``status`` about mounts: names, keys with their level, and plain words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client.io.digests import digest_of
from click.testing import CliRunner, Result

from cachetier.cli.app import app
from tests.integration.serving import Served
from tests.integration.test_s3_door import served_at

THERE = "train/there"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    with served_at(tmp_path / "cache") as (served, caller):
        s3 = caller.client()
        s3.put_object(Bucket="bucket", Key="train/step-1/a", Body=b"12345")
        s3.put_object(Bucket="bucket", Key="train/step-2/\x1b[2J", Body=b"")
        served.objects.put(THERE, b"123", digest=digest_of(b"123"))
        yield served


def run(node: Served, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--url", node.unix_url])


def test_mounts_are_named_beside_runs(node: Served) -> None:
    assert run(node, "ls").stdout == "s3:data\n"
    assert json.loads(run(node, "ls", "--json").stdout) == {"runs": [], "mounts": ["data"]}


def test_a_mount_lists_its_keys_with_what_is_known_of_them(node: Served) -> None:
    listed = json.loads(run(node, "ls", "s3:data", "--json").stdout)["objects"]

    found = [(each["key"], each["size_bytes"], each["level"]) for each in listed]
    assert found == [
        ("train/step-1/a", 5, "local"),
        ("train/step-2/\x1b[2J", 0, "local"),
        (THERE, 3, "durable"),
    ]
    assert all(each["etag"] and each["modified_at"] for each in listed)
    shown = run(node, "ls", "s3:data/step-").stdout
    assert "train/step-1/a" in shown
    assert THERE not in shown
    assert "\x1b" not in shown


def test_what_is_not_there_is_said(node: Served) -> None:
    nothing = run(node, "ls", "s3:data/none")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "No object of s3:data/none" in nothing.stderr
    unknown = run(node, "ls", "s3:other")
    assert unknown.exit_code == 1
    assert "No mount is called" in unknown.stderr


def test_status_speaks_of_objects_and_not_of_steps(node: Served) -> None:
    shown = run(node, "status").stdout

    assert "s3:data" in shown
    assert "step 0" not in shown
    (mount,) = json.loads(run(node, "status", "--json").stdout)["mounts"]
    assert (mount["mount"], mount["objects"], mount["dirty_bytes"]) == ("data", 2, 5)
    for verb in (
        ("ls", "s3:data", "--latest"),
        ("wait", "s3:data", "0"),
        ("delete", "s3:data", "0", "-y"),
    ):
        assert run(node, *verb).exit_code != 0
