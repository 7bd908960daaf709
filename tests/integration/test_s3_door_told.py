"""The S3 door does as it is told, or says that it does not: conditions, and who may what."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from cachetier.access.principals import Principal
from cachetier.access.roles import Role
from cachetier.model.objects import Mode, Mount
from tests.integration.s3door import MOUNT, DoorServed, door_over
from tests.integration.test_s3_door import served_at

BUCKET = "bucket"
THEIRS = Mount("secret-of-others", BUCKET, "theirs/")
TENANT = Principal("tenant", Role.WRITE, runs=("data", "frozen"))
READER = Principal("reader", Role.READ)


@pytest.fixture
def door(tmp_path: Path) -> Iterator[DoorServed]:
    frozen = Mount("frozen", BUCKET, "frozen/", mode=Mode.READ_ONLY)
    audit = tmp_path / "audit.log"
    mounts = [MOUNT, THEIRS, frozen]
    with door_over(tmp_path, mounts, principals=[TENANT, READER], audit=str(audit)) as served:
        yield served


@pytest.fixture
def s3(door: DoorServed) -> Any:
    return door.client()


def lines(tmp_path: Path, **wanted: object) -> list[dict[str, Any]]:
    """Return the lines of the audit log that say what is ``wanted``."""
    found = map(json.loads, (tmp_path / "audit.log").read_text().splitlines())
    return [each for each in found if all(each.get(n) == v for n, v in wanted.items())]


def code_of(error: pytest.ExceptionInfo[ClientError]) -> tuple[int, str]:
    answer = error.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]


def test_a_deletion_happens_only_under_its_conditions(s3: Any) -> None:
    where = {"Bucket": BUCKET, "Key": "train/a"}
    etag = s3.put_object(**where, Body=b"1234567")["ETag"]
    at = s3.head_object(**where)["LastModified"]
    for wrong in (
        {"IfMatch": '"other"'},
        {"IfMatchSize": 6},
        {"IfMatchLastModifiedTime": at + timedelta(seconds=1)},
        {"IfMatch": etag, "IfMatchSize": 8},
    ):
        with pytest.raises(ClientError) as error:
            s3.delete_object(**where, **wrong)
        assert code_of(error) == (412, "PreconditionFailed")
    right = {"IfMatch": etag, "IfMatchSize": 7, "IfMatchLastModifiedTime": at}
    s3.delete_object(**where, **right)
    with pytest.raises(ClientError) as error:
        s3.delete_object(**where, IfMatch="*")
    assert code_of(error) == (404, "NoSuchKey")


def test_each_key_of_many_has_conditions_of_its_own(s3: Any) -> None:
    etags = {
        name: s3.put_object(Bucket=BUCKET, Key=f"train/{name}", Body=b"x")["ETag"] for name in "abc"
    }
    wanted = [
        {"Key": "train/a", "ETag": etags["b"] + "x"},
        {"Key": "train/b", "ETag": etags["b"], "Size": 1},
        {"Key": "train/c"},
        {"Key": "train/none", "ETag": "*"},
    ]
    answer = s3.delete_objects(Bucket=BUCKET, Delete={"Objects": wanted})
    assert [each["Key"] for each in answer["Deleted"]] == ["train/b", "train/c"]
    assert {each["Key"]: each["Code"] for each in answer["Errors"]} == {
        "train/a": "PreconditionFailed",
        "train/none": "NoSuchKey",
    }
    left = s3.list_objects_v2(Bucket=BUCKET, Prefix="train/")["Contents"]
    assert [each["Key"] for each in left] == ["train/a"]


@pytest.mark.parametrize(
    ("method", "header"),
    [
        ("DELETE", "if-none-match"),
        ("DELETE", "if-unmodified-since"),
        ("PUT", "if-unmodified-since"),
        ("PUT", "x-amz-if-match-size"),
        ("PUT?partNumber=1&uploadId=x", "if-match"),
        ("DELETE?uploadId=x", "x-amz-if-match-initiated-time"),
    ],
)
def test_a_condition_that_is_not_offered_is_refused(
    door: DoorServed, s3: Any, method: str, header: str
) -> None:
    s3.put_object(Bucket=BUCKET, Key="train/a", Body=b"x")
    name, mark, query = method.partition("?")
    answer = door(name, f"/bucket/train/a{mark}{query}", b"", {header: "0"})
    assert (answer.status, answer.code) == (501, "NotImplemented")
    assert s3.get_object(Bucket=BUCKET, Key="train/a")["Body"].read() == b"x"


def test_the_audit_log_names_each_key_that_is_deleted_among_many(
    door: DoorServed, tmp_path: Path
) -> None:
    caller = door.caller("tenant").client()
    wanted = [{"Key": key} for key in ("train/a", "train/b", "theirs/x", "frozen/y")]
    answer = caller.delete_objects(Bucket=BUCKET, Delete={"Objects": wanted})

    assert {each["Key"]: each["Code"] for each in answer["Errors"]} == {
        "theirs/x": "AccessDenied",
        "frozen/y": "AccessDenied",
    }
    done = lines(tmp_path, operation="s3_delete", outcome="ok", principal="tenant")
    assert [each["name"] for each in done] == ["train/a", "train/b"]
    (frozen,) = lines(tmp_path, operation="s3_delete", outcome="read_only")
    assert frozen["name"] == "frozen/y"
    (refused,) = lines(tmp_path, operation="s3_delete", refused=True)
    assert (refused["principal"], refused["run"]) == ("tenant", THEIRS.name)


def test_who_may_not_delete_is_refused_before_the_document_and_that_is_recorded(
    door: DoorServed, tmp_path: Path
) -> None:
    with pytest.raises(ClientError) as error:
        door.caller("reader").client().delete_objects(
            Bucket=BUCKET, Delete={"Objects": [{"Key": "train/a"}]}
        )
    assert code_of(error) == (403, "AccessDenied")
    assert lines(tmp_path, refused=True, principal="reader")


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/bucket/theirs/x", {}),
        ("PUT", "/bucket/theirs/x", {}),
        ("DELETE", "/bucket/theirs/x", {}),
        ("GET", "/bucket?prefix=theirs%2F", {}),
        ("GET", "/bucket?uploads&prefix=theirs%2F", {}),
        ("PUT", "/bucket/train/a", {"x-amz-copy-source": "/bucket/theirs/x"}),
    ],
)
def test_no_error_names_the_mount_of_others(
    door: DoorServed, method: str, path: str, headers: dict[str, str]
) -> None:
    answer = door.caller("tenant")(method, path, b"", headers)
    assert (answer.status, answer.code) == (403, "AccessDenied")
    assert THEIRS.name.encode() not in answer.body


def test_buckets_are_as_old_as_the_directory_of_the_node(tmp_path: Path) -> None:
    seen = []
    for _ in range(2):  # also after a restart
        with served_at(tmp_path / "cache") as (_served, caller):
            answer = caller("GET", "/")
            seen += re.findall(rb"<CreationDate>(.*?)</CreationDate>", answer.body)
    first, again = seen
    assert first == again
    assert not first.startswith(b"1970")
