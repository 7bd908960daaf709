"""PyTorch: save and load through cachetier by changing one line.

    from cachetier_client.torch import CachetierReader, CachetierWriter

    dcp.save(state, storage_writer=CachetierWriter("cachetier://my-run/1000"))
    dcp.load(state, storage_reader=CachetierReader("cachetier://my-run/1000"))

Needs the extra ``torch``: docs/install.md.
"""

from __future__ import annotations

import torch

OLDEST = (2, 6)

if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < OLDEST:
    raise ImportError(
        f"cachetier_client.torch needs torch {OLDEST[0]}.{OLDEST[1]} or later; this is "
        f"{torch.__version__}. Put shards with cachetier_client.Client, or upgrade torch."
    )

from cachetier_client.io import digests  # noqa: E402 - torch first, with a clear error
from cachetier_client.torch.agreement import (  # noqa: E402
    AgreementError,
    agree,
    latest_common_step,
    wait_for_step,
)
from cachetier_client.torch.exports import export_step  # noqa: E402
from cachetier_client.torch.lazy import LazyStager  # noqa: E402
from cachetier_client.torch.reader import CachetierReader  # noqa: E402
from cachetier_client.torch.snapshot import SnapshotAbandonedError, StateChangedError  # noqa: E402
from cachetier_client.torch.step_tensors import (  # noqa: E402
    MemoryBudgetError,
    NoSuchTensorError,
    StepTensors,
    TensorInfo,
    open_step,
)
from cachetier_client.torch.writer import CachetierWriter  # noqa: E402

digests.prepare()  # 35 ms, beside the seconds that torch takes

__all__ = [
    "OLDEST",
    "CachetierReader",
    "CachetierWriter",
    "LazyStager",
    "SnapshotAbandonedError",
    "StateChangedError",
    "AgreementError",
    "agree",
    "latest_common_step",
    "wait_for_step",
    "MemoryBudgetError",
    "NoSuchTensorError",
    "StepTensors",
    "TensorInfo",
    "export_step",
    "open_step",
]
