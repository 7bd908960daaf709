"""s3torchconnector as a training script uses it: ``torch_states.py WHAT ADDRESS``."""

from __future__ import annotations

import json
import sys
from typing import Any, cast

import torch
import torch.distributed.checkpoint as dcp
from s3torchconnector import S3Checkpoint, S3ClientConfig, S3IterableDataset, S3MapDataset
from s3torchconnector.dcp import S3StorageReader, S3StorageWriter

REGION = "us-east-1"
# The endpoint is in AWS_ENDPOINT_URL: the variable for S3 alone is ignored.
CONFIG = S3ClientConfig(force_path_style=True)
SCALE = 1 << 20


def state(fill: bool) -> dict[str, torch.Tensor]:
    torch.manual_seed(17)
    make = torch.randn if fill else torch.zeros
    return {"weights": make(5 * SCALE), "bias": make(3)}


def sums(tensors: dict[str, torch.Tensor]) -> dict[str, float]:
    return {name: float(tensor.double().abs().sum()) for name, tensor in tensors.items()}


def saved_by_dcp(address: str) -> dict[str, dict[str, float]]:
    saved, loaded = state(fill=True), state(fill=False)
    dcp.save(saved, storage_writer=S3StorageWriter(REGION, address, CONFIG), no_dist=True)
    dcp.load(loaded, storage_reader=S3StorageReader(REGION, address, CONFIG), no_dist=True)
    return {"saved": sums(saved), "loaded": sums(loaded)}


def saved_as_a_stream(address: str) -> dict[str, dict[str, float]]:
    checkpoint, saved = S3Checkpoint(REGION, s3client_config=CONFIG), state(fill=True)
    with checkpoint.writer(address) as writer:
        torch.save(saved, writer)
    with checkpoint.reader(address) as reader:
        return {
            "saved": sums(saved),
            "loaded": sums(torch.load(cast("Any", reader), weights_only=True)),
        }


def read_as_sets(address: str) -> dict[str, dict[str, int]]:
    sets: dict[str, Any] = {"mapped": S3MapDataset, "iterated": S3IterableDataset}
    return {
        name: {
            each.key: len(each.read())
            for each in kind.from_prefix(address, region=REGION, s3client_config=CONFIG)
        }
        for name, kind in sets.items()
    }


if __name__ == "__main__":
    does = {"dcp": saved_by_dcp, "stream": saved_as_a_stream, "sets": read_as_sets}
    print(json.dumps(does[sys.argv[1]](sys.argv[2])))
