"""Look into the bucket with plain boto3: what counts is what S3 has, not what cachetier says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import boto3

from examples.demo.direct import CONFIG

LOOKERS = 8  # each request waits for the distance, so several look at once


class Bucket:
    """Reads what a bucket holds."""

    def __init__(self, name: str, variables: Mapping[str, str]) -> None:
        self._name = name
        self._s3 = boto3.client(
            "s3",
            config=CONFIG,
            endpoint_url=variables["AWS_ENDPOINT_URL"],
            aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
            region_name=variables["AWS_DEFAULT_REGION"],
        )

    def keys(self, prefix: str) -> set[str]:
        """Return the keys of all objects under a prefix."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._name, Prefix=prefix)
        return {each["Key"] for page in pages for each in page.get("Contents", [])}

    def digests(self, keys: Iterable[str]) -> list[str]:
        """Return the CRC-64/NVME that S3 keeps of each object, in base64."""
        with ThreadPoolExecutor(LOOKERS) as pool:
            return list(pool.map(self._digest, keys))

    def _digest(self, key: str) -> str:
        head = self._s3.head_object(Bucket=self._name, Key=key, ChecksumMode="ENABLED")
        return head["ChecksumCRC64NVME"]
