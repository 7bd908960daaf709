"""One rank's process: import the test's function, call it, and leave what it returned in a file."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# What the tests' modules import, and optimizers later, once for all ranks: see ``ranks.FORKS``.
import pytest  # noqa: F401
import torch._dynamo  # noqa: F401
import torch.distributed as dist

import tests.frameworks.training
import tests.integration.serving  # noqa: F401


def call(target: str, arguments: dict[str, Any]) -> dict[str, Any]:
    module, _, name = target.partition(":")
    if os.environ["RANK_GLOO"]:
        dist.init_process_group("gloo")
    try:
        return {"result": getattr(importlib.import_module(module), name)(**arguments)}
    except Exception as error:  # told to the test, whatever it is
        return {"error": {"kind": type(error).__name__, "message": str(error)}}


def main(
    target: str, arguments: dict[str, Any], environment: Mapping[str, str], result: Path
) -> None:
    """Call ``target``, a ``module:function``, in ``environment``; its answer is in ``result``."""
    os.environ.clear()
    os.environ.update(environment)
    told = call(target, arguments)
    partial = result.with_suffix(".partial")
    partial.write_text(json.dumps(told), encoding="utf-8")
    partial.rename(result)
    if dist.is_initialized() and "error" not in told:
        dist.destroy_process_group()
