"""Objects by obstore: ``obstore_objects.py BUCKET PREFIX FOLDER``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store


def main(bucket: str, prefix: str, folder: str) -> None:
    endpoint = os.environ["AWS_ENDPOINT_URL_S3"]
    options: Any = {"allow_http": True}
    store = S3Store(
        bucket, prefix=prefix, endpoint=endpoint, region="us-east-1", client_options=options
    )
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    names = [path.relative_to(folder).as_posix() for path in files]
    for path, name in zip(files, names, strict=True):
        obstore.put(store, name, path, chunk_size=5 << 20)
    told = {
        "listed": sorted(each["path"] for page in obstore.list(store) for each in page),
        "read": {name: len(obstore.get(store, name).bytes()) for name in names},
    }
    large = "shards/large.bin"
    size = obstore.head(store, large)["size"]
    ranged = obstore.get_range(store, large, start=size - 10, end=size)
    try:
        obstore.put(store, large, b"again", mode="create")
        told["created_again"] = ""
    except BaseError as refused:
        told["created_again"] = type(refused).__name__
    print(json.dumps({**told, "range": bytes(ranged).hex()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
