"""The AWS SDK for JavaScript: parts, streams, presigned URLs that say what headers would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.needs import needs_weed
from tests.integration.s3clients.files import LARGE, write_files
from tests.integration.s3clients.outside import PROGRAMS, client_python, found_program, run
from tests.integration.s3clients.place import PREFIX, Place

PACKAGES = Path(client_python()).parent.parent
pytestmark = [
    needs_weed,
    pytest.mark.skipif(
        found_program("node") is None or not (PACKAGES / "node_modules").is_dir(),
        reason="the AWS SDK for JavaScript is not installed: make s3clients ONLY=awsjs",
    ),
]


def test_objects_are_put_signed_copied_read_listed_and_deleted(
    place: Place, tmp_path: Path
) -> None:
    content = write_files(tmp_path)[LARGE]
    arguments = PACKAGES, place.bucket, PREFIX, tmp_path / LARGE
    told = json.loads(run(place, found_program("node"), PROGRAMS / "aws_sdk.mjs", *arguments))

    assert set(told["read"].values()) == {True}
    assert (told["signedPut"], told["signedCopy"], told["wrongChecksum"]) == (200, 200, 400)
    assert told["metadata"] == {"step": "7", "run-name": "a b"}
    assert told["deleted"] == ["PreconditionFailed", "done", "NoSuchKey"]
    assert told["listed"] == sorted(PREFIX + name for name in told["read"])
    place.assert_arrives(dict.fromkeys(told["read"], content))
