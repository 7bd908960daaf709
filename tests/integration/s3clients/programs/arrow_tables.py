"""Parquet by pyarrow, and DuckDB over it: ``arrow_tables.py BUCKET/PREFIX``."""

from __future__ import annotations

import json
import os
import sys
from urllib.parse import urlsplit

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import S3FileSystem


def main(root: str) -> None:
    endpoint = urlsplit(os.environ["AWS_ENDPOINT_URL_S3"])
    fs = S3FileSystem(endpoint_override=endpoint.netloc, scheme=endpoint.scheme, region="us-east-1")
    numbers = np.arange(1_000_000)
    table = pa.table(
        {"part": numbers % 4, "number": numbers, "noise": np.random.rand(len(numbers))}
    )
    partitioning = ds.partitioning(pa.schema([("part", pa.int64())]), flavor="hive")
    ds.write_dataset(table, root, filesystem=fs, format="parquet", partitioning=partitioning)
    found = ds.dataset(root, filesystem=fs, format="parquet", partitioning=partitioning)
    some = found.to_table(columns=["number"], filter=pc.field("part") == 3)
    ((by_duckdb,),) = duckdb.sql("select sum(number) from found where part = 3").fetchall()
    told = {
        "rows": found.count_rows(),
        "some": pc.sum(some["number"]).as_py(),
        "expected": int(numbers[numbers % 4 == 3].sum()),
        "by_duckdb": int(by_duckdb),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
