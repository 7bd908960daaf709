"""Each write asks for the encryption and the storage class that are set; no right is needless.

One node lives through all that ever makes a request, over a server of which all are recorded.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from cachetier.testing.s3_endpoint import S3Endpoint
from tests.integration.whole_life import BUCKET, PREFIX, Life, Request, life

ROOT = Path(__file__).parents[2]
KEY = "arn:aws:kms:us-east-1:111122223333:key/1234"
CONTEXT = {"team": "llama", "über": "ä"}
NEW_OBJECTS = {"PutObject", "CreateMultipartUpload", "CopyObject"}
NODE_SIDS = ("NodesReadAndWrite", "NodesList", "DoctorLooks")

# What IAM asks for, and of what: an object, or the bucket.
OF_OBJECT = {
    "GetObject": ("s3:GetObject",),
    "HeadObject": ("s3:GetObject",),
    "PutObject": ("s3:PutObject",),
    "CreateMultipartUpload": ("s3:PutObject",),
    "UploadPart": ("s3:PutObject",),
    "UploadPartCopy": ("s3:PutObject", "s3:GetObject"),
    "CompleteMultipartUpload": ("s3:PutObject",),
    "AbortMultipartUpload": ("s3:AbortMultipartUpload",),
    "ListParts": ("s3:ListMultipartUploadParts",),
    "DeleteObject": ("s3:DeleteObject",),
}
OF_BUCKET = {
    "HeadBucket": ("s3:ListBucket",),
    "ListObjectsV2": ("s3:ListBucket",),
    "ListMultipartUploads": ("s3:ListBucketMultipartUploads",),
    "GetBucketLifecycleConfiguration": ("s3:GetLifecycleConfiguration",),
    "GetBucketVersioning": ("s3:GetBucketVersioning",),
}


@pytest.fixture(scope="module")
def lived(moto_s3: S3Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    asked = {
        "remote_encryption": f"aws:kms {KEY}",
        "remote_kms_context": CONTEXT,
        "remote_storage_class": "STANDARD_IA",
    }
    scratch = tmp_path_factory.mktemp("life")
    with pytest.MonkeyPatch.context() as monkeypatch:
        with life(moto_s3, scratch, monkeypatch, **asked) as node:
            node.live()
            yield node


def written(node: Life, pattern: str) -> list[Request]:
    """Return what made, or began to make, an object of ``pattern``."""
    made = [each for each in node.recorder.requests if each.operation in NEW_OBJECTS]
    made = [each for each in made if "authorization" in each.headers]  # of doctor: to be refused
    return [each for each in made if re.fullmatch(pattern, each.key)]


@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        ("a shard of one part", r"llama/run/4/gone"),
        ("a shard of many parts", r"llama/run/1/weights"),
        ("one that is copied", r"llama/run/2/weights"),
        ("a pack", r"llama/run/1/\.cachetier/pack-.*"),
        ("a manifest", r"llama/run/1/\.cachetier/manifest\.json"),
        ("a tombstone", r"llama/run/4/\.cachetier/manifest\.json"),
        ("a rank's part", r"llama/run/1/\.cachetier/rank-0\.json"),
        ("a pending seal of a client", r"llama/run/6/\.cachetier/pending-0\.json"),
        ("a large shard of a client", r"llama/run/7/direct"),
        ("a small shard of a client", r"llama/run/7/direct-small"),
        ("a manifest of a client", r"llama/run/7/\.cachetier/manifest\.json"),
        ("a claim on the store id", r"llama/\.cachetier/stores/.*"),
        ("an object of doctor", r"llama/\.cachetier/doctor-.*/small"),
    ],
)
def test_each_write_asks_for_the_encryption_and_only_bytes_for_the_class(
    lived: Life, what: str, pattern: str
) -> None:
    requests = written(lived, pattern)
    assert requests, f"{what} was never written"
    for request in requests:
        _check(request)


def test_there_is_no_write_that_asks_for_nothing(lived: Life) -> None:
    for request in written(lived, ".*"):
        _check(request)
    done = {request.operation for request in lived.recorder.requests}
    assert {"UploadPartCopy", "ListParts", "DeleteObject", "CreateMultipartUpload"} <= done
    assert len(written(lived, "llama/run/2/weights")) > 1, "fsck did not repair it"


def _check(request: Request) -> None:
    prefix = "x-amz-server-side-encryption"
    assert request.headers.get(prefix) == "aws:kms", request
    assert request.headers[f"{prefix}-aws-kms-key-id"] == KEY
    context = json.loads(base64.b64decode(request.headers[f"{prefix}-context"]))
    assert context == CONTEXT
    wanted = None if request.key.endswith(".json") else "STANDARD_IA"
    assert request.headers.get("x-amz-storage-class") == wanted, request


# --- the policy ----------------------------------------------------------------------------------


def needed(request: Request) -> Iterator[tuple[str, str]]:
    """Yield (action, resource) of what IAM asks for."""
    bucket = f"arn:aws:s3:::{BUCKET}"
    table, resource = (OF_OBJECT, f"{bucket}/{request.key}") if request.key else (OF_BUCKET, bucket)
    for action in table[request.operation]:
        yield action, resource


def statements(*sids: str) -> list[dict[str, Any]]:
    document = json.loads((ROOT / "deploy" / "bucket-policy.json").read_text())
    by_sid = {each["Sid"]: each for each in document["Statement"]}
    assert len(by_sid) == len(document["Statement"])
    return [by_sid[sid] for sid in sids]


def allows(statement: dict[str, Any], action: str, resource: str, request: Request) -> bool:
    if action not in statement["Action"] or not fnmatchcase(resource, statement["Resource"]):
        return False
    condition = statement.get("Condition", {"StringLikeIfExists": {"s3:prefix": "*"}})
    (patterns,) = condition["StringLikeIfExists"].values()
    return all(
        any(fnmatchcase(prefix, pattern) for pattern in patterns)
        for prefix in request.query.get("prefix", ())
    )


def test_the_policy_lets_a_node_do_all_that_it_does(lived: Life) -> None:
    allowed = statements(*NODE_SIDS)
    refused = {
        (action, resource, str(request.query.get("prefix")))
        for request in lived.recorder.requests
        for action, resource in needed(request)
        if not any(allows(each, action, resource, request) for each in allowed)
    }
    assert not refused


def test_the_policy_lets_a_node_do_nothing_else(lived: Life) -> None:
    used = {action for each in lived.recorder.requests for action, _ in needed(each)}
    granted = [action for each in statements(*NODE_SIDS) for action in each["Action"]]
    assert sorted(granted) == sorted(used)


def test_the_policy_is_about_one_prefix_and_lets_nobody_else_write() -> None:
    document = json.loads((ROOT / "deploy" / "bucket-policy.json").read_text())
    everything = f"arn:aws:s3:::{BUCKET}/{PREFIX}/*"
    resources = {each["Resource"] for each in document["Statement"]}
    assert resources == {f"arn:aws:s3:::{BUCKET}", everything}
    (nodes,) = statements("NodesReadAndWrite")
    (denied,) = statements("NobodyElseWrites")
    writes = {action for action in nodes["Action"] if not action.startswith(("s3:Get", "s3:List"))}
    assert denied["Effect"] == "Deny"
    assert writes <= set(denied["Action"])
    assert denied["Condition"] == {"ArnNotEquals": {"aws:PrincipalArn": nodes["Principal"]["AWS"]}}
    readers = statements("ReadersRead", "ReadersList")
    assert [each["Action"] for each in readers] == [["s3:GetObject"], ["s3:ListBucket"]]


def test_the_page_of_doctor_shows_the_rights_of_the_policy() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text()
    (rows,) = re.findall(r"\| statement \|.*?\n\n", page, re.DOTALL)
    shown = set(re.findall(r"`(s3:\w+)`", rows))
    assert shown == {action for each in statements(*NODE_SIDS) for action in each["Action"]}
