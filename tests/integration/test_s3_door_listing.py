"""Pages of a bucket at the S3 door: mounts side by side, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from cachetier.access.principals import Principal
from cachetier.access.roles import Role
from cachetier.model.objects import Mount
from tests.integration.s3door import DoorServed, door_over

MOUNTS = (
    Mount("data", "bucket", "a/data/"),
    Mount("more", "bucket", "a/more/"),
    Mount("last", "bucket", "z/"),
    Mount("all", "other"),
)
KEYS = ["a/data/1", "a/data/x/2", "a/data/x/3", "a/more/4", "z/5 +&é"]


@pytest.fixture
def door(tmp_path: Path) -> Iterator[DoorServed]:
    reader = Principal("reader", Role.READ, runs=("data",))
    with door_over(tmp_path, MOUNTS, principals=[reader]) as served:
        client = served.client()
        for key in KEYS:
            client.put_object(Bucket="bucket", Key=key, Body=b"x")
        yield served


def listed(client: Any, **wanted: Any) -> tuple[list[str], list[str]]:
    answer = client.list_objects_v2(Bucket="bucket", **wanted)
    return names(answer)


def names(answer: dict[str, Any]) -> tuple[list[str], list[str]]:
    keys = [each["Key"] for each in answer.get("Contents", ())]
    return keys, [each["Prefix"] for each in answer.get("CommonPrefixes", ())]


def test_all_mounts_of_a_bucket_are_listed_in_order(door: DoorServed) -> None:
    assert listed(door.client()) == (KEYS, [])


@pytest.mark.parametrize(
    ("prefix", "keys", "prefixes"),
    [
        ("", [], ["a/", "z/"]),
        ("a/", [], ["a/data/", "a/more/"]),
        ("a/data/", ["a/data/1"], ["a/data/x/"]),
        ("a/data/x/", ["a/data/x/2", "a/data/x/3"], []),
        ("z/", ["z/5 +&é"], []),
    ],
)
def test_a_prefix_above_the_mounts_shows_them_as_folders(
    door: DoorServed, prefix: str, keys: list[str], prefixes: list[str]
) -> None:
    assert listed(door.client(), Prefix=prefix, Delimiter="/") == (keys, prefixes)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("delimiter", ["", "/"])
def test_pages_of_one_entry_give_all(door: DoorServed, version: int, delimiter: str) -> None:
    client = door.client()
    pages = client.get_paginator("list_objects" if version == 1 else "list_objects_v2")
    for prefix in ("", "a/", "a/data/"):
        wanted = {"Bucket": "bucket", "Prefix": prefix, "Delimiter": delimiter}
        whole = names(client.list_objects_v2(**wanted))
        keys, prefixes = [], []
        for page in pages.paginate(**wanted, PaginationConfig={"PageSize": 1}):
            found = names(page)
            keys += found[0]
            prefixes += found[1]
        assert (keys, prefixes) == whole


@pytest.fixture
def uploads(door: DoorServed) -> list[tuple[str, str]]:
    """Key and id of uploads that are begun, in order; one key has two."""
    client, keys = door.client(), [*KEYS, KEYS[1]]
    begun = [client.create_multipart_upload(Bucket="bucket", Key=key) for key in keys]
    return sorted((each["Key"], each["UploadId"]) for each in begun)


def uploads_of(answer: dict[str, Any]) -> tuple[list[tuple[str, str]], list[str]]:
    found = [(each["Key"], each["UploadId"]) for each in answer.get("Uploads", ())]
    return found, [each["Prefix"] for each in answer.get("CommonPrefixes", ())]


@pytest.mark.parametrize(
    ("prefix", "delimiter", "whole", "prefixes"),
    [
        ("", "", slice(None), []),
        ("", "/", slice(0), ["a/", "z/"]),
        ("a/", "/", slice(0), ["a/data/", "a/more/"]),
        ("a/data/", "/", slice(1), ["a/data/x/"]),
        ("a/data/x", "", slice(1, 4), []),
        ("a/data/x/", "/", slice(1, 4), []),
    ],
)
@pytest.mark.parametrize("page_size", [1, 2, 1000])
def test_uploads_are_listed_in_pages(  # its parameters are the table
    door: DoorServed,
    uploads: list[tuple[str, str]],
    prefix: str,
    delimiter: str,
    whole: slice,
    prefixes: list[str],
    page_size: int,
) -> None:
    pages = door.client().get_paginator("list_multipart_uploads")
    found: tuple[list[tuple[str, str]], list[str]] = [], []
    for page in pages.paginate(
        Bucket="bucket",
        Prefix=prefix,
        Delimiter=delimiter,
        PaginationConfig={"PageSize": page_size},
    ):
        here = uploads_of(page)
        assert len(here[0]) + len(here[1]) <= page_size
        found[0].extend(here[0])
        found[1].extend(here[1])
    assert found == (uploads[whole], prefixes)


def test_markers_of_uploads_are_key_and_id(
    door: DoorServed, uploads: list[tuple[str, str]]
) -> None:
    def behind(**markers: str) -> list[tuple[str, str]]:
        return uploads_of(door.client().list_multipart_uploads(Bucket="bucket", **markers))[0]

    key, first = uploads[1]
    assert uploads[2][0] == key
    assert behind(KeyMarker=key, UploadIdMarker=first) == uploads[2:]
    assert behind(KeyMarker=key) == uploads[3:]
    assert behind(UploadIdMarker=first) == uploads


def test_a_listing_names_the_owner_of_each_object_to_whoever_asks(door: DoorServed) -> None:
    client = door.client()
    owner = client.list_buckets()["Owner"]["ID"]
    where = {"Bucket": "bucket", "Prefix": "a/data/x/"}

    asked = client.list_objects_v2(**where, FetchOwner=True)["Contents"]
    assert {each["Owner"]["ID"] for each in asked} == {owner}
    assert {each["Owner"]["ID"] for each in client.list_objects(**where)["Contents"]} == {owner}
    assert all("Owner" not in each for each in client.list_objects_v2(**where)["Contents"])


def test_a_prefix_that_no_mount_has_is_refused(door: DoorServed) -> None:
    with pytest.raises(ClientError) as error:
        listed(door.client(), Prefix="b/")
    assert error.value.response["Error"]["Code"] == "AccessDenied"


def test_callers_see_only_what_is_theirs(door: DoorServed) -> None:
    reader = door.caller("reader").client()
    assert listed(reader) == (KEYS[:3], [])
    assert [each["Name"] for each in reader.list_buckets()["Buckets"]] == ["bucket"]
    buckets = door.client().list_buckets()["Buckets"]
    assert [each["Name"] for each in buckets] == ["bucket", "other"]
    calls: list[Callable[[], Any]] = [
        lambda: reader.get_object(Bucket="bucket", Key="z/5 +&é"),
        lambda: reader.put_object(Bucket="bucket", Key="a/data/1", Body=b"y"),
        lambda: reader.head_bucket(Bucket="other"),
        lambda: reader.copy_object(
            Bucket="bucket", Key="a/data/1", CopySource={"Bucket": "bucket", "Key": "a/more/4"}
        ),
    ]
    for call in calls:
        with pytest.raises(ClientError) as error:
            call()
        assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


def test_buckets_tell_where_they_are(door: DoorServed) -> None:
    client = door.client()
    client.head_bucket(Bucket="bucket")
    assert client.get_bucket_location(Bucket="bucket")["LocationConstraint"] == "us-east-1"
    with pytest.raises(ClientError) as error:
        client.get_bucket_location(Bucket="nowhere")
    assert error.value.response["Error"]["Code"] == "NoSuchBucket"


def test_a_bucket_may_stand_in_the_name_of_the_host(door: DoorServed) -> None:
    headers = {"Host": f"bucket.s3.test:{door.port}"}
    answer = door("GET", "/a/data/1", headers=headers)
    assert (answer.status, answer.body) == (200, b"x")
