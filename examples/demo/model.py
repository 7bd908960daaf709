"""A small transformer that predicts the next byte of a text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

BYTE_VALUES = 256


@dataclass(frozen=True, slots=True)
class Shape:
    """How large the model is; the default has 5.1 million parameters, 61 MB with AdamW's state."""

    width: int = 320
    layers: int = 4
    heads: int = 5
    window: int = 64
    dropout: float = 0.1


class Block(nn.Module):
    """Attention to earlier bytes, then a perceptron, each added to what came in."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention_in = nn.Linear(shape.width, 3 * shape.width)
        self.attention_out = nn.Linear(shape.width, shape.width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(shape.width),
            nn.Linear(shape.width, 4 * shape.width),
            nn.GELU(),
            nn.Linear(4 * shape.width, shape.width),
            nn.Dropout(shape.dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._attention(self.attention_norm(x))
        out: Tensor = x + self.perceptron(x)
        return out

    def _attention(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        heads = self.attention_in(x).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.attention_out(mixed.transpose(1, 2).reshape(rows, length, width))
        return out


class ByteTransformer(nn.Module):
    """Gives the mean loss, in nats per byte, of predicting each window's next bytes."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTE_VALUES, shape.width)
        self.positions = nn.Embedding(shape.window, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, BYTE_VALUES)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        x = self.bytes(inputs) + self.positions(torch.arange(inputs.shape[1]))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())
