"""One rank's process: import the test's function, call it, and leave what it returned in a file."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist


def call(target: str, arguments: dict[str, Any]) -> dict[str, Any]:
    module, _, name = target.partition(":")
    if os.environ["RANK_GLOO"]:
        dist.init_process_group("gloo")
    try:
        return {"result": getattr(importlib.import_module(module), name)(**arguments)}
    except Exception as error:  # told to the test, whatever it is
        return {"error": {"kind": type(error).__name__, "message": str(error)}}


def main() -> None:
    told = call(sys.argv[1], json.loads(sys.argv[2]))
    path = Path(os.environ["RANK_RESULT"])
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(told), encoding="utf-8")
    partial.rename(path)
    if dist.is_initialized() and "error" not in told:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
