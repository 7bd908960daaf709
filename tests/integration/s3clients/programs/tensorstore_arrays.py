"""An array by tensorstore: ``tensorstore_arrays.py LAYOUT BUCKET PREFIX``."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np
import tensorstore as ts

INDEXES = {"zarr3": "zarr.json", "ocdbt": "manifest.ocdbt"}


def kvstore(layout: str, bucket: str, prefix: str) -> dict[str, Any]:
    objects = {
        "driver": "s3",
        "bucket": bucket,
        "path": prefix,
        "endpoint": os.environ["AWS_ENDPOINT_URL_S3"],
        "aws_region": "us-east-1",
        "aws_credentials": {"type": "environment"},
    }
    if layout == "zarr3":
        return objects
    return {"driver": "ocdbt", "base": objects, "config": {"max_inline_value_bytes": 16}}


def main(layout: str, bucket: str, prefix: str) -> None:
    spec = {"driver": "zarr3", "kvstore": kvstore(layout, bucket, prefix)}
    values = np.arange(1 << 21, dtype=np.int64).reshape(1 << 10, 1 << 11)
    grid = ts.ChunkLayout(chunk_shape=(256, 1024))
    array = ts.open(
        spec, create=True, dtype=ts.int64, shape=values.shape, chunk_layout=grid
    ).result()
    array.write(values).result()
    array[3, :5] = -1  # a chunk is read, changed, and put on its condition
    read = ts.open(spec).result().read().result()
    values[3, :5] = -1
    told = {"written": int(values.sum()), "read": int(read.sum()), "index": INDEXES[layout]}
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
