"""Checksums of objects that boto3 puts in parts: declared, judged, kept and answered."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from awscrt import checksums as crt
from botocore.exceptions import ClientError

from tests.fakes.bodies import noise
from tests.integration.s3door import MOUNT, door_over

WHERE = {"Bucket": "bucket", "Key": "train/big"}
BODY = noise(9 << 20)
PIECES = (BODY[: 5 << 20], BODY[5 << 20 :])


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[Any]:
    with door_over(tmp_path, [MOUNT]) as served:
        yield served.client()


def text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def crc32(data: bytes) -> str:
    return text(zlib.crc32(data).to_bytes(4, "big"))


def crc64nvme(data: bytes) -> str:
    return text(crt.crc64nvme(data).to_bytes(8, "big"))


def sha256_of_parts() -> str:
    return text(hashlib.sha256(b"".join(hashlib.sha256(x).digest() for x in PIECES)).digest())


class Upload:
    """An upload of ``PIECES``, begun as asked."""

    def __init__(self, s3: Any, algorithm: str | None, **begun: str) -> None:
        self._s3 = s3
        wanted = {"ChecksumAlgorithm": algorithm} if algorithm else {}
        self.begun = s3.create_multipart_upload(**WHERE, **wanted, **begun)
        self.where = {**WHERE, "UploadId": self.begun["UploadId"]}
        self.parts = []
        for number, piece in enumerate(PIECES, 1):
            put = s3.upload_part(**self.where, PartNumber=number, Body=piece, **wanted)
            part = {"PartNumber": number, "ETag": put["ETag"]}
            if algorithm:
                part[f"Checksum{algorithm}"] = put[f"Checksum{algorithm}"]
            self.parts.append(part)

    def complete(self, **declared: Any) -> Any:
        whole = {"Parts": self.parts}
        return self._s3.complete_multipart_upload(**self.where, MultipartUpload=whole, **declared)

    def refusal(self, **declared: Any) -> str:
        with pytest.raises(ClientError) as error:
            self.complete(**declared)
        return str(error.value.response["Error"]["Code"])


@pytest.mark.parametrize(
    ("algorithm", "kind", "whole"),
    [
        ("SHA256", "COMPOSITE", f"{sha256_of_parts()}-2"),
        ("CRC32", "FULL_OBJECT", crc32(BODY)),
        ("CRC64NVME", "FULL_OBJECT", crc64nvme(BODY)),
    ],
)
def test_the_checksum_of_the_whole_is_answered_by_complete_head_and_get(
    s3: Any, algorithm: str, kind: str, whole: str
) -> None:
    upload = Upload(s3, algorithm, ChecksumType=kind)
    assert (upload.begun["ChecksumAlgorithm"], upload.begun["ChecksumType"]) == (algorithm, kind)
    done = upload.complete(ChecksumType=kind, **{f"Checksum{algorithm}": whole})
    found = s3.get_object(**WHERE, ChecksumMode="ENABLED")
    assert found["Body"].read() == BODY
    for answer in (done, found, s3.head_object(**WHERE, ChecksumMode="ENABLED")):
        assert (answer[f"Checksum{algorithm}"], answer["ChecksumType"]) == (whole, kind)
    of_bytes = found.get("ChecksumCRC64NVME")  # never beside that of another type
    assert of_bytes == (None if kind == "COMPOSITE" else crc64nvme(BODY))
    assert "ChecksumType" not in s3.head_object(**WHERE)


def test_an_upload_that_names_no_checksum_has_the_crc64nvme(s3: Any) -> None:
    upload = Upload(s3, None)
    assert upload.refusal(ChecksumCRC64NVME=crc64nvme(BODY[1:])) == "BadDigest"
    assert upload.complete()["ChecksumCRC64NVME"] == crc64nvme(BODY)


def test_the_parts_show_their_checksums(s3: Any) -> None:
    upload = Upload(s3, "SHA256")
    listed = s3.list_parts(**upload.where)
    assert (listed["ChecksumAlgorithm"], listed["ChecksumType"]) == ("SHA256", "COMPOSITE")
    for part, piece in zip(listed["Parts"], PIECES, strict=True):
        assert part["ChecksumSHA256"] == text(hashlib.sha256(piece).digest())
        assert part["ChecksumCRC64NVME"] == crc64nvme(piece)
    (open_upload,) = s3.list_multipart_uploads(Bucket="bucket")["Uploads"]
    assert open_upload["ChecksumAlgorithm"] == "SHA256"


@pytest.mark.parametrize(
    ("declared", "code"),
    [
        ({"ChecksumSHA256": text(hashlib.sha256(BODY).digest())}, "BadDigest"),
        ({"ChecksumSHA256": f"{sha256_of_parts()}-3"}, "BadDigest"),
        ({"ChecksumSHA256": "AAAA"}, "InvalidRequest"),
        ({"ChecksumCRC64NVME": crc64nvme(BODY)}, "InvalidRequest"),
        ({"ChecksumType": "FULL_OBJECT"}, "InvalidRequest"),
        ({"MpuObjectSize": len(BODY) - 1}, "InvalidRequest"),
    ],
)
def test_a_completion_that_declares_something_else_is_refused_and_may_be_mended(
    s3: Any, declared: dict[str, Any], code: str
) -> None:
    upload = Upload(s3, "SHA256")
    assert upload.refusal(**declared) == code
    done = upload.complete(ChecksumSHA256=sha256_of_parts(), MpuObjectSize=len(BODY))
    assert done["ChecksumSHA256"] == f"{sha256_of_parts()}-2"


def test_a_part_with_another_checksum_than_was_put_is_no_part(s3: Any) -> None:
    upload = Upload(s3, "CRC32")
    right = upload.parts[1]["ChecksumCRC32"]
    upload.parts[1]["ChecksumCRC32"] = crc32(b"x")
    assert upload.refusal() == "InvalidPart"
    upload.parts[1] |= {"ChecksumCRC32": right, "ETag": '"other"'}
    assert upload.refusal() == "InvalidPart"


def test_a_part_that_is_copied_has_the_checksum_of_its_upload(s3: Any) -> None:
    s3.put_object(Bucket="bucket", Key="train/a", Body=BODY)
    begun = s3.create_multipart_upload(**WHERE, ChecksumAlgorithm="SHA256")
    where = {**WHERE, "UploadId": begun["UploadId"]}
    source = {"Bucket": "bucket", "Key": "train/a"}
    copied = s3.upload_part_copy(**where, PartNumber=1, CopySource=source)["CopyPartResult"]
    assert copied["ChecksumSHA256"] == text(hashlib.sha256(BODY).digest())


def test_a_checksum_that_not_all_parts_were_put_with_cannot_be_judged(s3: Any) -> None:
    upload = Upload(s3, None)
    assert upload.refusal(ChecksumSHA1=text(bytes(20))) == "InvalidRequest"


def test_an_upload_that_was_completed_is_answered_again(s3: Any) -> None:
    upload = Upload(s3, "CRC32")
    assert upload.complete()["ETag"] == upload.complete()["ETag"]
