"""The S3 door of a real service: what is put lies in its store, and survives a restart."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from apsw import Connection
from botocore.exceptions import ClientError

from cachetier.access.principals import OWNER
from cachetier.errors import ConfigError
from cachetier.local.catalog import object_uploads, objects
from cachetier.local.catalog.object_uploads import PartRow
from cachetier.model.objects import Mount
from cachetier.objects.base import OpenedObject
from tests.fakes.bodies import noise
from tests.integration.s3door import Key, S3Caller
from tests.integration.serving import Served, serving

MOUNT = {"name": "data", "bucket": "bucket/train"}
WHERE = {"Bucket": "bucket", "Key": "train/a"}
LARGE = 9 << 20


@contextmanager
def served_at(directory: Path, **settings: Any) -> Iterator[tuple[Served, S3Caller]]:
    with serving(directory, s3="127.0.0.1:0", s3_mount=[MOUNT], **settings) as served:
        access = served.service.operations.access
        token, secret = access.create_s3_key(access._named[OWNER], None)
        assert served.service.s3_url is not None
        yield served, S3Caller(served.service.s3_url, Key(token.id, secret))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[Served, S3Caller]]:
    with served_at(tmp_path / "cache") as opened:
        yield opened


def uploaded(s3: Any, where: dict[str, str], body: bytes, part_bytes: int) -> str:
    upload = {**where, "UploadId": s3.create_multipart_upload(**where)["UploadId"]}
    parts = []
    for number, at in enumerate(range(0, len(body), part_bytes), 1):
        part = s3.upload_part(**upload, PartNumber=number, Body=body[at : at + part_bytes])
        parts.append({"PartNumber": number, "ETag": part["ETag"]})
    done = s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    return str(done["ETag"])


@pytest.mark.parametrize("size_bytes", [0, 100, 64 << 10, LARGE])
def test_objects_survive_a_restart_under_their_etags(tmp_path: Path, size_bytes: int) -> None:
    body = noise(size_bytes)
    with served_at(tmp_path / "cache") as (_served, caller):
        etag = caller.client().put_object(**WHERE, Body=body, Metadata={"a": "b"})["ETag"]
    with served_at(tmp_path / "cache") as (_served, caller):
        found = caller.client().get_object(**WHERE)
        assert (found["Body"].read(), found["ETag"], found["Metadata"]) == (body, etag, {"a": "b"})


def test_parts_become_an_object_without_touching_their_bytes(
    node: tuple[Served, S3Caller],
) -> None:
    served, caller = node
    s3, body = caller.client(), noise(11 << 20)
    etag = uploaded(s3, WHERE, body, 5 << 20)
    assert etag.strip('"').endswith("-3")
    assert len(served.data_files()) == 3
    found = s3.get_object(**WHERE)
    assert (found["Body"].read(), found["ETag"]) == (body, etag)
    part = s3.get_object(**WHERE, PartNumber=3)
    assert part["Body"].read() == body[10 << 20 :]
    ranged = s3.get_object(**WHERE, Range=f"bytes={(5 << 20) - 3}-{(5 << 20) + 3}")
    assert ranged["Body"].read() == body[(5 << 20) - 3 : (5 << 20) + 4]


def test_the_checksum_of_an_upload_survives_a_restart(tmp_path: Path) -> None:
    body = noise(LARGE)
    with served_at(tmp_path / "cache") as (_served, caller):
        s3 = caller.client()
        begun = s3.create_multipart_upload(**WHERE, ChecksumAlgorithm="SHA256")
        upload = {**WHERE, "UploadId": begun["UploadId"]}
        parts = []
        for number, piece in enumerate((body[: 5 << 20], body[5 << 20 :]), 1):
            part = s3.upload_part(
                **upload, PartNumber=number, Body=piece, ChecksumAlgorithm="SHA256"
            )
            named = {key: part[key] for key in ("ETag", "ChecksumSHA256")}
            parts.append({"PartNumber": number, **named})
        listed = s3.list_parts(**upload)["Parts"]
        assert [each["ChecksumSHA256"] for each in listed] == [
            each["ChecksumSHA256"] for each in parts
        ]
        with pytest.raises(ClientError) as error:
            wrong = [{**parts[0], "ChecksumSHA256": parts[1]["ChecksumSHA256"]}, parts[1]]
            s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": wrong})
        assert error.value.response["Error"]["Code"] == "InvalidPart"
        done = s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    with served_at(tmp_path / "cache") as (_served, caller):
        found = caller.client().head_object(**WHERE, ChecksumMode="ENABLED")
        assert found["ChecksumSHA256"] == done["ChecksumSHA256"]
        assert found["ChecksumType"] == "COMPOSITE"
        assert "ChecksumCRC64NVME" not in found  # which is of another type


def test_overwrites_deletions_and_listings_are_read_after_write(
    node: tuple[Served, S3Caller],
) -> None:
    _served, caller = node
    s3 = caller.client()
    for turn in range(3):
        s3.put_object(**WHERE, Body=b"%d" % turn)
        assert s3.get_object(**WHERE)["Body"].read() == b"%d" % turn
    assert [each["Key"] for each in s3.list_objects_v2(Bucket="bucket")["Contents"]] == ["train/a"]
    s3.delete_object(**WHERE)
    assert "Contents" not in s3.list_objects_v2(Bucket="bucket")
    with pytest.raises(ClientError) as error:
        s3.get_object(**WHERE)
    assert error.value.response["Error"]["Code"] == "NoSuchKey"


def test_a_refused_put_leaves_nothing_on_the_node(node: tuple[Served, S3Caller]) -> None:
    served, caller = node
    with pytest.raises(ClientError) as error:
        caller.client().put_object(**WHERE, Body=noise(LARGE), ChecksumCRC32="AAAAAA==")
    assert error.value.response["Error"]["Code"] == "BadDigest"
    assert served.holds_nothing()


def test_what_does_not_fit_is_told_to_slow_down(tmp_path: Path) -> None:
    with served_at(tmp_path / "cache", capacity="64 MiB") as (served, caller):
        headers = {"x-cachetier-timeout": "0.2"}
        answer = caller("PUT", "/bucket/train/a", bytes(70 << 20), headers)
        assert (answer.status, answer.code) == (503, "SlowDown")
        assert served.holds_nothing()


def test_an_ack_that_asks_for_the_bucket_waits_in_vain_while_nothing_drains(
    node: tuple[Served, S3Caller],
) -> None:
    _served, caller = node
    headers = {"x-cachetier-ack": "durable", "x-cachetier-timeout": "0.2"}
    answer = caller("PUT", "/bucket/train/a", b"x", headers)
    assert (answer.status, answer.code) == (503, "SlowDown")
    assert caller("GET", "/bucket/train/a").body == b"x"


def test_status_and_metrics_show_the_door(node: tuple[Served, S3Caller]) -> None:
    served, caller = node
    caller("GET", "/bucket/train/none")
    assert served.service.operations.status()["s3"] == served.service.s3_url
    exposed = served.call("GET", "/metrics").body.decode()
    assert 'cachetier_s3_requests_total{operation="GetObject",code="NoSuchKey"} 1.0' in exposed or (
        'cachetier_s3_requests_total{code="NoSuchKey",operation="GetObject"} 1.0' in exposed
    )


def test_many_connections_upload_in_bounded_memory(node: tuple[Served, S3Caller]) -> None:
    served, caller = node
    body = noise(8 << 20)
    sha256 = {"x-amz-content-sha256": "UNSIGNED-PAYLOAD"}
    most = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal most
        blocks = served.service._s3._app._writes._bodies  # type: ignore[union-attr]
        while not ended.wait(0.005):
            most = max(most, len(blocks._uploads._taken))

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(64) as threads:
        answers = list(
            threads.map(
                lambda number: caller("PUT", f"/bucket/train/{number}", body, sha256).status,
                range(64),
            )
        )
    ended.set()
    watcher.join()
    assert set(answers) == {200}
    assert 0 < most <= 12


def test_objects_of_a_mount_that_is_gone_from_the_settings_are_told_of(tmp_path: Path) -> None:
    with served_at(tmp_path / "cache") as (served, caller):
        caller.client().put_object(**WHERE, Body=b"x")
        assert not any("s3_mount" in each for each in served.service.report.status()["warnings"])
    with serving(tmp_path / "cache") as served:
        warnings = served.service.report.status()["warnings"]
        assert any("1 object of s3:data cannot go to the bucket" in each for each in warnings)


def test_a_completion_that_is_asked_again_answers_the_same_with_its_checksum(
    node: tuple[Served, S3Caller],
) -> None:
    _served, caller = node
    s3 = caller.client()
    upload = {**WHERE, "UploadId": s3.create_multipart_upload(**WHERE)["UploadId"]}
    part = s3.upload_part(**upload, PartNumber=1, Body=b"whole")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    first, again = (s3.complete_multipart_upload(**upload, MultipartUpload=parts) for _ in range(2))
    assert first["ETag"] == again["ETag"]
    assert first["ChecksumCRC64NVME"] == again["ChecksumCRC64NVME"]


def test_an_object_that_is_replaced_before_its_bytes_were_read_is_looked_up_again(
    node: tuple[Served, S3Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, caller = node
    s3, listed = caller.client(), served.service.objects
    s3.put_object(**WHERE, Body=noise(LARGE))
    opened, newer = listed.open, noise(LARGE, 1)

    def open_and_lose(mount: Mount, key: str) -> OpenedObject:
        found = opened(mount, key)
        monkeypatch.setattr(listed, "open", opened)
        s3.put_object(**WHERE, Body=newer)
        older = found.pieces[0].shard.name.partition("/")[0]
        served.service.store.write(objects.forget_version, int(older, 16))
        return found

    monkeypatch.setattr(listed, "open", open_and_lose)
    assert s3.get_object(**WHERE)["Body"].read() == newer


def test_a_profile_whose_endpoint_is_our_own_door_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    for text in (
        "[default]\nendpoint_url = http://127.0.0.1:7071\n",
        "[default]\nservices = a\n[services a]\ns3 =\n  endpoint_url = http://localhost:7071\n",
    ):
        config.write_text(text)
        with (
            pytest.raises(ConfigError, match=r"7071 leads .durable. to our own S3 door"),
            serving(s3="127.0.0.1:7071", s3_mount=[MOUNT]),
        ):
            pass


def test_a_part_looks_at_no_other_of_its_upload(
    node: tuple[Served, S3Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    _served, caller = node
    s3 = caller.client()
    upload = {**WHERE, "UploadId": s3.create_multipart_upload(**WHERE)["UploadId"]}
    looked: list[int | None] = []
    parts_of = object_uploads.parts_of

    def counted(sql: Connection, upload_id: str, number: int | None = None) -> list[PartRow]:
        looked.append(number)
        return parts_of(sql, upload_id, number)

    monkeypatch.setattr(object_uploads, "parts_of", counted)
    for number in (1, 2, 3):
        s3.upload_part(**upload, PartNumber=number, Body=b"part")
    assert looked == [1, 2, 3]
