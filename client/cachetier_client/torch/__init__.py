"""PyTorch: save and load through cachetier by changing one line.

    from cachetier_client.torch import CachetierReader, CachetierWriter

    dcp.save(state, storage_writer=CachetierWriter("cachetier://my-run/1000"))
    dcp.load(state, storage_reader=CachetierReader("cachetier://my-run/1000"))

Needs the extra: ``pip install 'cachetier-client[torch]'``.
"""

from __future__ import annotations

import torch

OLDEST = (2, 6)

if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < OLDEST:
    raise ImportError(
        f"cachetier_client.torch needs torch {OLDEST[0]}.{OLDEST[1]} or later; this is "
        f"{torch.__version__}. Put shards with cachetier_client.Client, or upgrade torch."
    )
