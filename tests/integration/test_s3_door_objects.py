"""What boto3 does with objects at the S3 door, over objects in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from cachetier.model.objects import Mode, Mount
from cachetier.objects.base import ObjectPart
from tests.fakes.bodies import noise
from tests.integration.s3door import MOUNT, DoorServed, door_over

BUCKET = "bucket"
LARGE = 9 << 20


@pytest.fixture
def door(tmp_path: Path) -> Iterator[DoorServed]:
    other = Mount("results", BUCKET, "results/")
    only_read = Mount("frozen", "elsewhere", mode=Mode.READ_ONLY)
    with door_over(tmp_path, [MOUNT, other, only_read]) as served:
        yield served


@pytest.fixture
def s3(door: DoorServed) -> Any:
    return door.client()


def code_of(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


@pytest.mark.parametrize("size_bytes", [0, 1, 64 << 10, (64 << 10) + 1, LARGE])
def test_what_was_put_is_read_back(s3: Any, door: DoorServed, size_bytes: int) -> None:
    body = noise(size_bytes)
    put = s3.put_object(Bucket=BUCKET, Key="train/a", Body=body, Metadata={"step": "7"})
    found = s3.get_object(Bucket=BUCKET, Key="train/a", ChecksumMode="ENABLED")
    assert found["Body"].read() == body
    assert found["ETag"] == put["ETag"]
    assert found["Metadata"] == {"step": "7"}
    assert found["ContentLength"] == size_bytes
    assert found["ChecksumCRC64NVME"]
    assert not door.objects.staged


def test_a_head_for_one_byte_brings_all_of_an_object(
    s3: Any, door: DoorServed, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put_object(Bucket=BUCKET, Key="train/a", Body=noise(LARGE))
    opened: list[int] = []
    open_piece = door.objects.open_piece

    def counted(piece: ObjectPart, timeout_seconds: float) -> Any:
        opened.append(piece.size_bytes)
        return open_piece(piece, timeout_seconds)

    monkeypatch.setattr(door.objects, "open_piece", counted)
    s3.head_object(Bucket=BUCKET, Key="train/a")
    assert not opened
    found = s3.head_object(Bucket=BUCKET, Key="train/a", Range="bytes=0-0")
    assert opened == [LARGE]
    assert found["ContentLength"] == 1


def test_the_etag_is_the_md5_of_small_objects_alone(s3: Any) -> None:
    import hashlib

    small, large = noise(100), noise(LARGE)
    put = s3.put_object(Bucket=BUCKET, Key="train/small", Body=small)
    assert put["ETag"] == f'"{hashlib.md5(small, usedforsecurity=False).hexdigest()}"'
    put = s3.put_object(Bucket=BUCKET, Key="train/large", Body=large)
    assert put["ETag"].strip('"').endswith("-1")


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
@pytest.mark.parametrize("size_bytes", [100, LARGE])
def test_each_checksum_is_judged_and_answered(s3: Any, algorithm: str, size_bytes: int) -> None:
    put = s3.put_object(
        Bucket=BUCKET, Key="train/a", Body=noise(size_bytes), ChecksumAlgorithm=algorithm
    )
    assert put[f"Checksum{algorithm}"]
    with pytest.raises(ClientError) as error:
        wrong = {f"Checksum{algorithm}": put[f"Checksum{algorithm}"]}
        s3.put_object(Bucket=BUCKET, Key="train/b", Body=noise(size_bytes, 1), **wrong)
    assert code_of(error) == "BadDigest"
    with pytest.raises(ClientError) as error:
        s3.head_object(Bucket=BUCKET, Key="train/b")
    assert code_of(error) == "404"


def test_ranges_and_parts_are_served(s3: Any) -> None:
    body = noise(LARGE)
    s3.put_object(Bucket=BUCKET, Key="train/a", Body=body)
    for text, wanted in (
        ("bytes=0-0", body[:1]),
        ("bytes=4194300-4194310", body[4194300:4194311]),
        ("bytes=-5", body[-5:]),
        ("bytes=9000000-", body[9000000:]),
    ):
        found = s3.get_object(Bucket=BUCKET, Key="train/a", Range=text)
        assert found["Body"].read() == wanted
        assert found["ResponseMetadata"]["HTTPStatusCode"] == 206
    with pytest.raises(ClientError) as error:
        s3.get_object(Bucket=BUCKET, Key="train/a", Range=f"bytes={LARGE}-")
    assert code_of(error) == "InvalidRange"


def test_conditions_of_reads_hold(s3: Any) -> None:
    etag = s3.put_object(Bucket=BUCKET, Key="train/a", Body=b"x")["ETag"]
    assert s3.get_object(Bucket=BUCKET, Key="train/a", IfMatch=etag)["Body"].read() == b"x"
    with pytest.raises(ClientError) as error:
        s3.get_object(Bucket=BUCKET, Key="train/a", IfNoneMatch=etag)
    assert code_of(error) == "304"
    with pytest.raises(ClientError) as error:
        s3.get_object(Bucket=BUCKET, Key="train/a", IfMatch='"other"')
    assert code_of(error) == "PreconditionFailed"


def test_conditions_of_puts_hold(s3: Any) -> None:
    etag = s3.put_object(Bucket=BUCKET, Key="train/a", Body=b"x", IfNoneMatch="*")["ETag"]
    with pytest.raises(ClientError) as error:
        s3.put_object(Bucket=BUCKET, Key="train/a", Body=b"y", IfNoneMatch="*")
    assert code_of(error) == "PreconditionFailed"
    s3.put_object(Bucket=BUCKET, Key="train/a", Body=b"y", IfMatch=etag)
    assert s3.get_object(Bucket=BUCKET, Key="train/a")["Body"].read() == b"y"


def test_content_headers_are_kept_and_overridden(s3: Any) -> None:
    s3.put_object(
        Bucket=BUCKET,
        Key="train/a",
        Body=b"x",
        ContentType="text/plain",
        ContentEncoding="gzip",
        CacheControl="no-cache",
    )
    found = s3.head_object(Bucket=BUCKET, Key="train/a")
    assert (found["ContentType"], found["ContentEncoding"]) == ("text/plain", "gzip")
    assert found["CacheControl"] == "no-cache"
    found = s3.get_object(Bucket=BUCKET, Key="train/a", ResponseContentType="a/b")
    assert found["ContentType"] == "a/b"


def test_uploads_go_in_any_order_and_are_listed(s3: Any) -> None:
    body = noise(11 << 20)
    where = {"Bucket": BUCKET, "Key": "train/big"}
    upload = s3.create_multipart_upload(**where, Metadata={"a": "b"}, ContentType="x/y")
    where["UploadId"] = upload["UploadId"]
    pieces = {1: body[: 5 << 20], 2: body[5 << 20 : 10 << 20], 3: body[10 << 20 :]}
    s3.upload_part(**where, PartNumber=2, Body=b"to be replaced")
    tags = {
        number: s3.upload_part(**where, PartNumber=number, Body=pieces[number])["ETag"]
        for number in (3, 2, 1)
    }
    listed = s3.list_parts(**where, MaxParts=2)
    assert [each["PartNumber"] for each in listed["Parts"]] == [1, 2]
    assert listed["IsTruncated"]
    (open_upload,) = s3.list_multipart_uploads(Bucket=BUCKET, Prefix="train/")["Uploads"]
    assert open_upload["UploadId"] == upload["UploadId"]
    parts = [{"PartNumber": number, "ETag": tags[number]} for number in sorted(tags)]
    done = s3.complete_multipart_upload(**where, MultipartUpload={"Parts": parts})
    found = s3.get_object(Bucket=BUCKET, Key="train/big")
    assert found["ETag"] == done["ETag"]
    assert done["ETag"].strip('"').endswith("-3")
    assert found["Body"].read() == body
    assert (found["Metadata"], found["ContentType"]) == ({"a": "b"}, "x/y")
    second = s3.get_object(Bucket=BUCKET, Key="train/big", PartNumber=2)
    assert (second["Body"].read(), second["PartsCount"]) == (pieces[2], 3)


def test_an_upload_that_was_given_up_is_gone(s3: Any) -> None:
    where = {"Bucket": BUCKET, "Key": "train/big"}
    where["UploadId"] = s3.create_multipart_upload(**where)["UploadId"]
    s3.abort_multipart_upload(**where)
    calls: list[Callable[[], Any]] = [
        lambda: s3.upload_part(**where, PartNumber=1, Body=b"x"),
        lambda: s3.list_parts(**where),
        lambda: s3.abort_multipart_upload(**where),
    ]
    for call in calls:
        with pytest.raises(ClientError) as error:
            call()
        assert code_of(error) == "NoSuchUpload"


def test_objects_are_copied_within_and_between_mounts(s3: Any) -> None:
    body = noise(LARGE)
    s3.put_object(Bucket=BUCKET, Key="train/a", Body=body, Metadata={"a": "b"})
    source = {"Bucket": BUCKET, "Key": "train/a"}
    s3.copy_object(Bucket=BUCKET, Key="results/b", CopySource=source)
    found = s3.get_object(Bucket=BUCKET, Key="results/b")
    assert (found["Body"].read(), found["Metadata"]) == (body, {"a": "b"})
    s3.copy_object(
        Bucket=BUCKET, Key="train/a", CopySource=source, MetadataDirective="REPLACE", Metadata={}
    )
    assert s3.head_object(Bucket=BUCKET, Key="train/a")["Metadata"] == {}
    with pytest.raises(ClientError) as error:
        s3.copy_object(Bucket=BUCKET, Key="train/a", CopySource=source)
    assert code_of(error) == "InvalidRequest"


def test_a_part_is_copied_from_a_range(s3: Any) -> None:
    body = noise(LARGE)
    source = {"Bucket": BUCKET, "Key": "train/a"}
    s3.put_object(Bucket=BUCKET, Key="train/a", Body=body)
    where = {"Bucket": BUCKET, "Key": "train/big"}
    where["UploadId"] = s3.create_multipart_upload(**where)["UploadId"]
    copied = s3.upload_part_copy(
        **where, PartNumber=1, CopySource=source, CopySourceRange="bytes=1-5242881"
    )
    parts = [{"PartNumber": 1, "ETag": copied["CopyPartResult"]["ETag"]}]
    s3.complete_multipart_upload(**where, MultipartUpload={"Parts": parts})
    assert s3.get_object(Bucket=BUCKET, Key="train/big")["Body"].read() == body[1:5242882]


def test_deletions_go_alone_and_many_at_once(s3: Any, door: DoorServed) -> None:
    for name in "abc":
        s3.put_object(Bucket=BUCKET, Key=f"train/{name}", Body=b"x")
    s3.delete_object(Bucket=BUCKET, Key="train/a")
    s3.delete_object(Bucket=BUCKET, Key="train/was-never")
    wanted = [{"Key": "train/b"}, {"Key": "train/was-never"}, {"Key": "outside/x"}]
    answer = s3.delete_objects(Bucket=BUCKET, Delete={"Objects": wanted})
    assert [each["Key"] for each in answer["Deleted"]] == ["train/b", "train/was-never"]
    assert [(each["Key"], each["Code"]) for each in answer["Errors"]] == [
        ("outside/x", "AccessDenied")
    ]
    quiet = {"Objects": [{"Key": "train/c"}], "Quiet": True}
    assert "Deleted" not in s3.delete_objects(Bucket=BUCKET, Delete=quiet)
    assert door.objects.keys("data") == []


def test_what_only_the_bucket_has_is_read_through(s3: Any, door: DoorServed) -> None:
    body = noise(LARGE)
    s3.put_object(Bucket=BUCKET, Key="train/a", Body=body)
    door.objects.make_foreign("data", "train/a")
    found = s3.get_object(Bucket=BUCKET, Key="train/a")
    assert found["Body"].read() == body
    assert found["ResponseMetadata"]["HTTPHeaders"]["x-cachetier-level"] == "durable"
    ranged = s3.get_object(Bucket=BUCKET, Key="train/a", Range="bytes=5-4194400")
    assert ranged["Body"].read() == body[5:4194401]


def test_a_read_only_mount_takes_nothing(s3: Any) -> None:
    with pytest.raises(ClientError) as error:
        s3.put_object(Bucket="elsewhere", Key="a", Body=b"x")
    assert code_of(error) == "AccessDenied"
