"""What cachetier is compared with: each rank puts its shards straight to S3 and waits for it.

The baseline is treated well: the same three shards, one request each, and without the SHA-256 of
the body that plain HTTP would add (over TLS there is none).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import boto3
import torch
from botocore.config import Config
from torch import Tensor

# Over TLS, as S3 is used, bodies are not signed either.
CONFIG = Config(s3={"payload_signing_enabled": False, "addressing_style": "path"})


class DirectPut:
    """Puts a rank's shards under ``<prefix>/<step>/``, as the AWS chain says where."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._s3 = boto3.client("s3", config=CONFIG)
        self._s3.head_bucket(Bucket=bucket)  # so that the first save finds an open connection
        self._bodies: dict[str, bytearray] = {}

    def save(self, step: int, rank: int, shards: Mapping[str, Tensor | bytes]) -> int:
        """Put one rank's shards of a step; return their bytes."""
        size_bytes = 0
        for shard, data in shards.items():
            body = data if isinstance(data, bytes) else self._body(shard, data)
            self._s3.put_object(
                Bucket=self._bucket,
                Key=f"{self._prefix}/{step}/rank-{rank}/{shard}",
                Body=cast("bytes", body),  # a bytearray will do, which boto3's types do not say
                ChecksumAlgorithm="CRC64NVME",
            )
            size_bytes += len(body)
        return size_bytes

    def _body(self, shard: str, data: Tensor) -> bytearray:
        """Return the tensor's bytes as a type that boto3 takes, in memory that is used again."""
        body = self._bodies.setdefault(shard, bytearray(data.nbytes))
        torch.frombuffer(body, dtype=data.dtype).copy_(data)
        return body
