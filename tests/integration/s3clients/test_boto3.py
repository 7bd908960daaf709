"""boto3 as it comes, with its newest defaults: everything that a script of ours may do with S3."""

from __future__ import annotations

import io
import random
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.integration.needs import needs_weed
from tests.integration.s3clients.place import PREFIX, Place

pytestmark = needs_weed
MEBIBYTE = 1 << 20
PARTS = TransferConfig(multipart_threshold=5 * MEBIBYTE, multipart_chunksize=5 * MEBIBYTE)


def some_bytes(size_bytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


def target(place: Place, name: str) -> dict[str, Any]:
    return {"Bucket": place.bucket, "Key": PREFIX + name}


def code_of(error: pytest.ExceptionInfo[ClientError]) -> str:
    return error.value.response["Error"]["Code"]


@pytest.mark.parametrize("size_bytes", [0, 1, 4096, 65_536, 65_537, 9 * MEBIBYTE])
def test_a_put_arrives_with_its_headers_and_metadata(place: Place, size_bytes: int) -> None:
    body, name = some_bytes(size_bytes), f"put/{size_bytes}"
    place.boto().put_object(
        **target(place, name),
        Body=body,
        ContentType="application/x-weights",
        CacheControl="no-store",
        Metadata={"step": "7", "loss": "0.5"},
    )

    place.assert_arrives({name: body})
    for client in (place.boto(), place.straight()):
        head = client.head_object(**target(place, name))
        assert (head["ContentType"], head["CacheControl"]) == ("application/x-weights", "no-store")
        assert head["Metadata"].items() >= {"step": "7", "loss": "0.5"}.items()
        assert head["ContentLength"] == size_bytes
    if place.is_door:  # our own entries are the bucket's only
        head = place.boto().head_object(**target(place, name))
        assert head["Metadata"] == {"step": "7", "loss": "0.5"}


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
def test_a_checksum_is_judged_and_kept(place: Place, algorithm: Any) -> None:
    name, field = f"sum/{algorithm}", f"Checksum{algorithm}"
    put = place.boto().put_object(
        **target(place, name), Body=some_bytes(100_000), ChecksumAlgorithm=algorithm
    )

    found = place.boto().get_object(**target(place, name), ChecksumMode="ENABLED")
    assert found["Body"].read() == some_bytes(100_000)
    assert dict(found)[field] == dict(put)[field]
    wrong: Any = {field: dict(put)[field]}
    with pytest.raises(ClientError) as refused:
        place.boto().put_object(**target(place, name), Body=some_bytes(100_000, seed=1), **wrong)
    assert code_of(refused) in {"BadDigest", "InvalidRequest", "XAmzContentChecksumMismatch"}
    place.assert_arrives({name: some_bytes(100_000)})


def test_a_file_goes_up_in_parts_and_comes_down(place: Place, tmp_path: Path) -> None:
    content = some_bytes(18 * MEBIBYTE + 5)
    (tmp_path / "out").write_bytes(content)
    client = place.boto()
    client.upload_file(str(tmp_path / "out"), place.bucket, f"{PREFIX}parts/file", Config=PARTS)
    client.download_file(place.bucket, f"{PREFIX}parts/file", str(tmp_path / "in"), Config=PARTS)

    assert (tmp_path / "in").read_bytes() == content
    assert client.head_object(**target(place, "parts/file"))["ETag"].endswith('-4"')
    place.assert_arrives({"parts/file": content})
    one = client.get_object(**target(place, "parts/file"), PartNumber=4)
    assert one["Body"].read() == content[15 * MEBIBYTE :]


def test_a_stream_of_unknown_length_goes_up(place: Place) -> None:
    class Pipe(io.RawIOBase):
        def __init__(self, content: bytes) -> None:
            self._content = io.BytesIO(content)

        def readable(self) -> bool:
            return True

        def read(self, size: int = -1) -> bytes:
            return self._content.read(size)

    content = some_bytes(7 * MEBIBYTE, seed=3)
    pipe: Any = Pipe(content)
    place.boto().upload_fileobj(pipe, place.bucket, f"{PREFIX}stream", Config=PARTS)

    place.assert_arrives({"stream": content})


def test_parts_come_in_any_order_and_are_listed_and_given_up(place: Place) -> None:
    client, name = place.boto(), "upload"
    upload: Any = {
        **target(place, name),
        "UploadId": client.create_multipart_upload(**target(place, name))["UploadId"],
    }
    pieces = {number: some_bytes(5 * MEBIBYTE, seed=number) for number in (2, 1)}
    tags = {}
    for number, piece in pieces.items():
        client.upload_part(**upload, PartNumber=number, Body=b"replaced")
        tags[number] = client.upload_part(**upload, PartNumber=number, Body=piece)["ETag"]

    listed = client.list_parts(**upload)["Parts"]
    if place.is_door:  # SeaweedFS lists those that were replaced, too
        assert [(part["PartNumber"], part["ETag"]) for part in listed] == sorted(tags.items())
    uploads = client.list_multipart_uploads(Bucket=place.bucket, Prefix=PREFIX)["Uploads"]
    assert upload["UploadId"] in [each["UploadId"] for each in uploads]
    parts: Any = [{"PartNumber": number, "ETag": tags[number]} for number in (1, 2)]
    client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    place.assert_arrives({name: pieces[1] + pieces[2]})

    gone: Any = {
        **upload,
        "UploadId": client.create_multipart_upload(**target(place, "x"))["UploadId"],
    }
    gone["Key"] = f"{PREFIX}x"
    client.upload_part(**gone, PartNumber=1, Body=b"never seen")
    client.abort_multipart_upload(**gone)
    with pytest.raises(ClientError) as refused:
        client.list_parts(**gone)
    assert code_of(refused) == "NoSuchUpload"


def test_links_that_are_signed_work_without_keys(place: Place) -> None:
    client = place.boto(Config(signature_version="s3v4"))
    put = client.generate_presigned_url(
        "put_object", Params={**target(place, "link")}, ExpiresIn=60
    )
    get = client.generate_presigned_url(
        "get_object", Params={**target(place, "link")}, ExpiresIn=60
    )

    with urllib.request.urlopen(urllib.request.Request(put, b"by link", method="PUT")) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(get) as answer:
        assert answer.read() == b"by link"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(get.replace("link?", "other?"))
    with refused.value as answer:
        assert answer.status == 403
        assert b"SignatureDoesNotMatch" in answer.read()
    place.assert_arrives({"link": b"by link"})


def test_puts_with_conditions_arbitrate(place: Place) -> None:
    client = place.boto()
    first = client.put_object(**target(place, "lock"), Body=b"first", IfNoneMatch="*")["ETag"]

    with pytest.raises(ClientError) as refused:
        client.put_object(**target(place, "lock"), Body=b"second", IfNoneMatch="*")
    assert code_of(refused) == "PreconditionFailed"
    client.put_object(**target(place, "lock"), Body=b"third", IfMatch=first)
    with pytest.raises(ClientError) as refused:
        client.put_object(**target(place, "lock"), Body=b"fourth", IfMatch=first)
    assert code_of(refused) == "PreconditionFailed"
    place.assert_arrives({"lock": b"third"})


def test_reads_take_ranges_and_conditions(place: Place) -> None:
    client, content = place.boto(), some_bytes(5 * MEBIBYTE)
    tag = client.put_object(**target(place, "read"), Body=content)["ETag"]

    for asked, expected in [
        ("bytes=0-9", content[:10]),
        ("bytes=4194300-4194309", content[4194300:4194310]),
        ("bytes=-7", content[-7:]),
        ("bytes=5242870-", content[5242870:]),
    ]:
        found = client.get_object(**target(place, "read"), Range=asked)
        assert found["Body"].read() == expected
        assert found["ContentRange"].endswith(f"/{len(content)}")
    for condition, code in [
        ({"IfNoneMatch": tag}, "304"),
        ({"IfMatch": '"x"'}, "PreconditionFailed"),
    ]:
        asked_if: Any = condition
        with pytest.raises(ClientError) as refused:
            client.get_object(**target(place, "read"), **asked_if)
        assert code_of(refused) == code
    with pytest.raises(ClientError) as refused:
        client.get_object(**target(place, "read"), Range="bytes=9999999-")
    assert code_of(refused) == "InvalidRange"


def test_listings_page_and_fold_what_is_here_and_what_is_only_in_the_bucket(place: Place) -> None:
    client = place.boto()
    names = [f"list/{folder}/{number:02}" for folder in "ab" for number in range(12)]
    for name in names[:12]:  # somebody else's
        place.straight().put_object(**target(place, name), Body=b"theirs")
    for name in names[12:]:
        client.put_object(**target(place, name), Body=b"ours")

    pages = list(
        client.get_paginator("list_objects_v2").paginate(
            Bucket=place.bucket, Prefix=f"{PREFIX}list/", PaginationConfig={"PageSize": 5}
        )
    )
    assert [len(page["Contents"]) for page in pages] == [5, 5, 5, 5, 4]
    assert [each["Key"] for page in pages for each in page["Contents"]] == [
        PREFIX + name for name in names
    ]
    folded = client.list_objects_v2(Bucket=place.bucket, Prefix=f"{PREFIX}list/", Delimiter="/")
    assert [each["Prefix"] for each in folded["CommonPrefixes"]] == [
        f"{PREFIX}list/a/",
        f"{PREFIX}list/b/",
    ]
    first = client.list_objects(Bucket=place.bucket, Prefix=f"{PREFIX}list/", MaxKeys=3)
    assert [each["Key"] for each in first["Contents"]] == [PREFIX + name for name in names[:3]]
    assert place.bucket in [each["Name"] for each in client.list_buckets()["Buckets"]]
    client.head_bucket(Bucket=place.bucket)


@pytest.mark.parametrize("size_mebibytes", [1, 11])
def test_a_copy_has_the_bytes_and_the_metadata(place: Place, size_mebibytes: int) -> None:
    content, client = some_bytes(size_mebibytes * MEBIBYTE), place.boto()
    name, copy = f"from/{size_mebibytes}", f"to/{size_mebibytes}"
    client.put_object(**target(place, name), Body=content, Metadata={"step": "9"})
    source: Any = target(place, name)
    client.copy(source, place.bucket, PREFIX + copy, Config=PARTS)

    place.assert_arrives({copy: content})
    if size_mebibytes == 1:  # a copy in parts carries none, at S3 either
        assert client.head_object(**target(place, copy))["Metadata"]["step"] == "9"


def test_an_overwrite_and_a_deletion_reach_the_bucket(place: Place) -> None:
    client = place.boto()
    for body in (b"one", b"two", b"three"):
        client.put_object(**target(place, "again/a"), Body=body)
    client.put_object(**target(place, "again/b"), Body=b"b")
    client.put_object(**target(place, "again/c"), Body=b"c")
    client.delete_object(**target(place, "again/b"))
    gone: Any = {"Objects": [{"Key": f"{PREFIX}again/c"}, {"Key": f"{PREFIX}never"}]}
    told = client.delete_objects(Bucket=place.bucket, Delete=gone)

    assert len(told["Deleted"]) == 2
    with pytest.raises(ClientError) as refused:
        client.get_object(**target(place, "again/b"))
    assert code_of(refused) == "NoSuchKey"
    client.put_object(**target(place, "again/last"), Body=b"last")  # shown after all of that
    place.assert_arrives({"again/a": b"three", "again/last": b"last"})
    assert place.names_in_bucket("again/") == ["again/a", "again/last"]


def test_what_is_not_offered_is_refused_by_the_code_of_s3(place: Place) -> None:
    if not place.is_door:
        pytest.skip("each S3 server has its own answer")
    client = place.boto()
    client.put_object(**target(place, "private"), Body=b"?")

    with pytest.raises(ClientError) as refused:
        client.put_object_acl(**target(place, "private"), ACL="public-read")
    assert code_of(refused) == "NotImplemented"
    for bucket, code in ((place.bucket, "BucketAlreadyOwnedByYou"), ("others", "NoSuchBucket")):
        with pytest.raises(ClientError) as refused:
            client.create_bucket(Bucket=bucket)
        assert code_of(refused) == code
    with pytest.raises(ClientError) as refused:
        client.put_object(Bucket="somebody-elses", Key="train/x", Body=b"?")
    assert code_of(refused) == "NoSuchBucket"
    with pytest.raises(ClientError) as refused:
        client.put_object(Bucket=place.bucket, Key="outside/x", Body=b"?")
    assert code_of(refused) == "AccessDenied"
    wrong = Place({**place.environment, "AWS_SECRET_ACCESS_KEY": "wrong"}, "", place.behind, True)
    with pytest.raises(ClientError) as refused:
        wrong.boto().put_object(**target(place, "private"), Body=b"?")
    assert code_of(refused) == "SignatureDoesNotMatch"
