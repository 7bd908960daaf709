"""Three trainings at published rates; what each kind of its state is after some steps.

::

    python -m benchmarks.differences.training DIRECTORY language|digits

In a process of its own, with one thread. The same every time on one machine.
"""

from __future__ import annotations

import importlib
import math
import pydoc
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.demo.model import ByteTransformer, Shape
from examples.demo.text import Windows

SEED = 7
SAVED = (100, 101, 110, 200, 500, 501, 510, 600)
LAST = max(SAVED)
WINDOW = 64
ROWS = 4
IMAGES = 128
CLASSES = 10

Loss = Callable[[], Tensor]


@dataclass(frozen=True, slots=True)
class Recipe:
    """AdamW's settings and the schedule: linear warm-up, then down to ``least`` at the end."""

    peak: float
    least: float
    warm_up: int
    betas: tuple[float, float]
    weight_decay: float
    cosine: bool
    clip: float | None = None

    def rate(self, step: int) -> float:
        """Return the rate of ``step``, which counts from 1."""
        if step <= self.warm_up:
            return self.peak * step / self.warm_up
        done = (step - self.warm_up) / (LAST - self.warm_up)
        left = (1 + math.cos(math.pi * done)) / 2 if self.cosine else 1 - done
        return self.least + left * (self.peak - self.least)


# nanoGPT's config/train_shakespeare_char.py, with the rest from its train.py.
SCRATCH = Recipe(1e-3, 1e-4, 100, (0.9, 0.99), 0.1, cosine=True, clip=1.0)
# BERT's paper, appendix A.3: the lowest of its rates; linear decay as in transformers' Trainer.
FINE_TUNING = Recipe(2e-5, 0.0, 0, (0.9, 0.999), 0.01, cosine=False, clip=1.0)
# DeiT's main.py: 5e-4 for each 512 images, warm-up of 5 epochs (11 steps each here), 1e-5 at last.
DIGITS = Recipe(5e-4 * IMAGES / 512, 1e-5, 55, (0.9, 0.999), 0.05, cosine=True)


class VisionTransformer(nn.Module):
    """DeiT-Ti for images of 8 x 8, cut into four patches: 5.3 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        width, layers, heads = 192, 12, 3
        self.patches = nn.Conv2d(1, width, 4, stride=4)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 5, width))
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(len(x), -1, -1), x), dim=1) + self.positions
        scores: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return scores


def drawn_small(model: nn.Module) -> None:
    """Draw all matrices as GPT-2 and ViT do: normal, with a deviation of 0.02."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)


def train(directory: Path, name: str, model: nn.Module, loss: Loss, recipe: Recipe) -> None:
    """Train ``model`` by ``recipe`` and write its state after each step of ``SAVED``."""
    matrices = [each for each in model.parameters() if each.dim() > 1]
    others = [each for each in model.parameters() if each.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.peak, betas=recipe.betas)
    began = time.monotonic()
    for step in range(1, LAST + 1):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(step)
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        if recipe.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        if step in SAVED or step % 50 == 0:
            seconds = time.monotonic() - began
            print(f"{name}: step {step}, loss {value.item():.3f}, {seconds:.0f} s", flush=True)
        if step in SAVED:
            write(directory / name, step, model, optimizer)


def write(directory: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write each kind of the state as one file, as a trainer saves it."""
    directory.mkdir(parents=True, exist_ok=True)
    parameters = list(model.parameters())
    moments: list[dict[str, Any]] = [optimizer.state[each] for each in parameters]
    weights = torch.cat([each.detach().reshape(-1) for each in parameters])
    kinds = {
        "fp32 weights": weights,
        "bf16 weights": weights.to(torch.bfloat16),
        "exp_avg": torch.cat([each["exp_avg"].reshape(-1) for each in moments]),
        "exp_avg_sq": torch.cat([each["exp_avg_sq"].reshape(-1) for each in moments]),
    }
    for kind, values in kinds.items():
        path = directory / f"{kind},{step},{values.element_size()}.state"
        path.write_bytes(values.view(torch.uint8).numpy().tobytes())


def text_loss(model: nn.Module, text: bytes) -> Loss:
    taken = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    windows = Windows(taken, length=WINDOW, rank=0, world_size=1, seed=SEED)

    def loss() -> Tensor:
        value: Tensor = model(*windows.next_batch(ROWS))
        return value

    return loss


def language(directory: Path) -> None:
    """Train on the standard library's sources, then fine-tune on Python's own documentation."""
    model = ByteTransformer(Shape(width=384, layers=6, heads=6, window=WINDOW, dropout=0.0))
    drawn_small(model)
    folder = Path(sysconfig.get_paths()["stdlib"])
    sources = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    train(directory, "from scratch", model, text_loss(model, sources), SCRATCH)
    topics = Path(pydoc.__file__).with_name("pydoc_data") / "topics.py"
    train(directory, "fine-tuned", model, text_loss(model, topics.read_bytes()), FINE_TUNING)


def digits(directory: Path) -> None:
    """Train a vision transformer on scikit-learn's 1,797 digits."""
    found = importlib.import_module("sklearn.datasets").load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(found.target)
    model = VisionTransformer()
    drawn_small(model)

    def loss() -> Tensor:
        chosen = torch.randint(len(labels), (IMAGES,))
        return functional.cross_entropy(model(images[chosen]), labels[chosen], label_smoothing=0.1)

    train(directory, "vision", model, loss, DIGITS)


if __name__ == "__main__":
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    {"language": language, "digits": digits}[sys.argv[2]](Path(sys.argv[1]))
