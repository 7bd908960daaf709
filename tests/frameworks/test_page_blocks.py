"""Each block of Python on a page runs as it stands, on a node; those that cannot say why."""

from __future__ import annotations

import ast
import asyncio
import gc
import os
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from cachetier_client import Client, traced
from cachetier_client.integrations.step_folders import load_folder, save_folder
from cachetier_client.torch import (
    CachetierReader,
    CachetierWriter,
    LazyStager,
    latest_common_step,
    wait_for_step,
)
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

from tests.frameworks.conftest import Node

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]
ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "design"),
]
BLOCK = re.compile(r"^ *```python\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
Given = Callable[[dict[str, Any]], None]
FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def nothing(names: dict[str, Any]) -> None:
    """Prepare nothing more than every block has."""


def saved_step(names: dict[str, Any]) -> None:
    """Save step 1000, as an earlier block of the page does."""
    dcp.save(names["state"], storage_writer=CachetierWriter("cachetier://my-run/1000"))


def file_of_a_rank(names: dict[str, Any]) -> None:
    """Save step 1000, and lay what a rank wrote into the current folder."""
    saved_step(names)
    stored = names["client"].get_shard("my-run", 1000, "__0_0.distcp")
    Path("__0_0.distcp").write_bytes(stored)


def begun_part(names: dict[str, Any]) -> None:
    """Begin a part for the second save of the block."""
    names["stager"] = LazyStager(names["optimizer"])
    names["client"] = Client(run="my-run")
    names["checkpoint"] = names["client"].checkpoint("my-run", 2000, world_size=1, rank=0)


def optimizer_file(names: dict[str, Any]) -> None:
    """Lay the file that the block stores."""
    Path("optimizer.bin").write_bytes(b"moments" * 1000)


# Of each block that runs, its first line: what it needs beside ``given``.
RUN: dict[tuple[str, str], Given] = {
    ("README.md", "import torch"): nothing,
    ("README.md", "import torch.distributed.checkpoint as dcp"): nothing,
    ("docs/fsspec.md", "from cachetier_client.aio import AsyncClient"): optimizer_file,
    ("docs/compression.md", "def joined(planes: bytes, size: int) -> bytes:"): nothing,
    ("docs/drain.md", "for batch in data:"): nothing,
    (
        "docs/frameworks.md",
        "from cachetier_client.integrations.step_folders import load_folder, save_folder",
    ): nothing,
    ("docs/frameworks.md", 'with save_folder("cachetier://my-model/0", alone=True)'): nothing,
    (
        "docs/frameworks.md",
        "from cachetier_client.torch.huggingface import HuggingFaceWriter",
    ): nothing,
    ("docs/frameworks.md", 'trainer.save_model("out/checkpoint-500")'): nothing,
    ("docs/frameworks.md", "from cachetier_client.torch import export_step"): saved_step,
    ("docs/fsspec.md", "import torch.distributed.checkpoint as dcp"): nothing,
    ("docs/fsspec.md", 'with fsspec.open("cachetier://llama/1000/model.pt", "wb")'): nothing,
    ("docs/guarantees.md", "receipt = client.put_shard(tensor"): nothing,
    ("docs/logs.md", "carrier = {}"): nothing,
    ("docs/torch.md", "import torch.distributed.checkpoint as dcp"): nothing,
    ("docs/torch.md", "writer = CachetierWriter()"): nothing,
    ("docs/torch.md", "import json, pathlib, struct, torch"): file_of_a_rank,
    ("docs/torch.md", "from cachetier_client.torch import CachetierWriter, LazyStager"): nothing,
    ("docs/torch.md", "saved = stager.save("): begun_part,
    (
        "docs/torch.md",
        "from cachetier_client.torch import CachetierReader, latest_common_step",
    ): saved_step,
    ("docs/torch.md", 'step = latest_common_step("my-run", level="local")'): saved_step,
    ("docs/torch.md", "from cachetier_client.torch import open_step"): saved_step,
}
NOT_RUN = {
    ("docs/compression.md", "import json, boto3, zstandard"): "a shard of six compressed blocks",
    ("docs/compression.md", "import json, boto3"): "a shard in a pack",
    ("docs/frameworks.md", "from cachetier_client.integrations.lightning import"): (
        "Lightning: test_lightning.py"
    ),
    ("docs/frameworks.md", "from cachetier_client.integrations.transformers import"): (
        "Transformers: test_transformers.py"
    ),
    ("docs/frameworks.md", "class MyTrainer"): "Transformers: test_transformers.py",
    ("docs/frameworks.md", "upload = CachetierUpload"): "Ray: test_ray.py",
    ("docs/frameworks.md", "engine, *_ = deepspeed"): "DeepSpeed: test_deepspeed.py",
    ("docs/frameworks.md", "strategy = CachetierSaveStrategy"): "Megatron: test_megatron.py",
    ("docs/frameworks.md", "verl.trainer.sft_trainer"): "verl: test_verl.py",
    ("docs/frameworks.md", 'restore_latest("/checkpoints", "my-run")'): "Orbax: test_orbax.py",
}


def blocks() -> list[tuple[str, str]]:
    """Return every block of the pages, each with its page."""
    return [
        (str(page.relative_to(ROOT)), textwrap.dedent(body))
        for page in PAGES
        for body in BLOCK.findall(page.read_text(encoding="utf-8"))
    ]


def body_of(page: str, first: str) -> str:
    """Return the block of a page whose first line begins so: the shortest such line."""
    found = [body for name, body in blocks() if name == page and body.startswith(first)]
    return min(found, key=lambda body: len(body.partition("\n")[0]))


def test_every_block_of_python_is_run_or_says_why_not() -> None:
    listed = [body_of(*key) for key in (*RUN, *NOT_RUN)]

    assert sorted(listed) == sorted(body for _page, body in blocks())


class StandIn:
    """A model, a tokenizer, an accelerator or a trainer of others: it writes a file to a folder."""

    def save_state(self, folder: os.PathLike[str]) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{type(self).__name__}-{id(self)}.bin").write_bytes(b"weights")

    save_pretrained = save_model = save_state

    @staticmethod
    def load_state(folder: os.PathLike[str]) -> None:
        assert list(Path(folder).iterdir())

    from_pretrained = load_state


def a_span(carrier: dict[str, str]) -> None:
    """Fill in the address of a caller's span."""
    carrier["traceparent"] = f"00-{1:032x}-{2:016x}-01"


def given(client: Client) -> dict[str, Any]:
    """Return the names that the pages take as known: a model, its state, a client and so on."""
    model = torch.nn.Linear(256, 256)
    embedding = {"embed": {"weight": torch.randn(512, 8)}, "linear": model.state_dict()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {
        "asyncio": asyncio,
        "cachetier_client": SimpleNamespace(traced=traced),
        "client": client,
        "dcp": dcp,
        "fsspec": fsspec,
        "group": None,
        "torch": torch,
        "HuggingFaceStorageReader": HuggingFaceStorageReader,
        "LazyStager": LazyStager,
        "CachetierReader": CachetierReader,
        "CachetierWriter": CachetierWriter,
        "latest_common_step": latest_common_step,
        "wait_for_step": wait_for_step,
        "load_folder": load_folder,
        "save_folder": save_folder,
        "opentelemetry": SimpleNamespace(propagate=SimpleNamespace(inject=a_span)),
        "accelerator": StandIn(),
        "tokenizer": StandIn(),
        "trainer": StandIn(),
        "AutoModelForCausalLM": StandIn,
        "model": model,
        "model_state": {"weight": torch.randn(16, 16)},
        "optimizer": optimizer,
        "state": {"model": embedding, "optimizer": {"param_groups": ["lr", 0.1]}},
        "data": [1, 2],
        "train": lambda batch: batch,
        "run": "my-run",
        "step": 1000,
        "tensor": torch.randn(512, 8),
        "tensors": {"w": model.weight},
        "shards": {"a": torch.ones(8), "b": torch.zeros(8)},
    }


@pytest.mark.parametrize(("page", "first"), RUN, ids=lambda text: text[:40])
def test_a_block_of_python_runs_as_it_stands(
    page: str,
    first: str,
    node: Node,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CACHETIER_URL", node.url)
    names = given(client)
    if "save_pretrained" in body_of(page, first):
        names["model"] = StandIn()
    RUN[page, first](names)

    # A save in the background has ended before the next paragraph, which may read it.
    for paragraph in body_of(page, first).replace("/nvme/", f"{tmp_path}/").split("\n\n"):
        code = compile(paragraph, page, "exec", FLAGS, dont_inherit=True)
        if (waited := eval(code, names)) is not None:
            asyncio.run(waited)
        for name in ("saving", "saved"):
            if name in names:
                names.pop(name).result()
    for opened in names.values():  # by a fragment of a program that goes on
        if isinstance(opened, Client | CachetierWriter | LazyStager):
            opened.close()
    names.clear()
    gc.collect()  # says here what a block left open
