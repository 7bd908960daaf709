"""Save a checkpoint to S3 with boto3 and nothing else, and read it back.

    python examples/any_s3_client.py s3://bucket/train

It knows nothing of cachetier. After `eval "$(cachetier s3 env)"` the same script saves through the
node: each upload returns once it is synced there, and S3 has it soon after, under the same key.
"""

import io
import json
import random
import sys
import time
from urllib.parse import urlsplit

import boto3

MEBIBYTE = 1 << 20


def main(address: str) -> None:
    parts = urlsplit(address)
    bucket, prefix = parts.netloc, parts.path.strip("/")
    s3 = boto3.client("s3")  # the environment says where, and with which keys
    shards = {f"rank-{rank}.bin": random.Random(rank).randbytes(12 * MEBIBYTE) for rank in range(2)}

    began = time.perf_counter()
    for name, shard in shards.items():
        s3.upload_fileobj(io.BytesIO(shard), bucket, f"{prefix}/step-100/{name}")
    index = json.dumps({name: len(shard) for name, shard in shards.items()}).encode()
    s3.put_object(Bucket=bucket, Key=f"{prefix}/step-100/index.json", Body=index)
    s3.put_object(Bucket=bucket, Key=f"{prefix}/latest", Body=b"step-100")
    seconds = time.perf_counter() - began
    print(f"step 100, {sum(map(len, shards.values()))} bytes, is saved after {seconds:.2f} s")

    latest = s3.get_object(Bucket=bucket, Key=f"{prefix}/latest")["Body"].read().decode()
    for name, shard in shards.items():
        found = s3.get_object(Bucket=bucket, Key=f"{prefix}/{latest}/{name}")
        assert found["Body"].read() == shard
    print(f"{latest} reads back as it was")


if __name__ == "__main__":
    main(sys.argv[1])
