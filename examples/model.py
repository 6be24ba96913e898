"""A small decoder-only transformer over bytes: ordinary PyTorch, nothing of Changeover in it.

About 0.8 million parameters by default. Every choice is a field of `Shape`, so that the same file
serves a demo on two cores and a run that keeps a machine busy.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """Sizes of the model. `context` is in tokens (bytes), `dropout` a probability."""

    vocabulary: int = 256
    context: int = 64
    layers: int = 4
    heads: int = 4
    width: int = 128
    dropout: float = 0.0
    tied: bool = True


class Attention(nn.Module):
    """Causal self-attention with all heads in one projection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.dropout = shape.heads, shape.dropout
        self.inward = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.outward = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mix each position with those before it."""
        B, T, C = x.shape
        q, k, v = self.inward(x).view(B, T, 3, self.heads, C // self.heads).unbind(2)
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
        )
        out: Tensor = self.outward(mixed.transpose(1, 2).reshape(B, T, C))
        return out


class Block(nn.Module):
    """Attention, then two linear layers, each added to what came in."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(shape.width, bias=False)
        self.attention = Attention(shape)
        self.before_mlp = nn.LayerNorm(shape.width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width, bias=False),
            nn.GELU(),
            nn.Linear(4 * shape.width, shape.width, bias=False),
            nn.Dropout(shape.dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        x = x + self.attention(self.before_attention(x))
        out: Tensor = x + self.mlp(self.before_mlp(x))
        return out


class GPT(nn.Module):
    """Predicts the next byte at every position."""

    def __init__(self, shape: Shape) -> None:
        """Build with random weights from torch's global generator."""
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width, bias=False)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.tokens.weight
        self.apply(self._start)

    def _start(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            deep = isinstance(module, nn.Linear) and module.out_features == self.shape.width
            scale = 0.02 / math.sqrt(2 * self.shape.layers) if deep else 0.02
            nn.init.normal_(module.weight, std=scale)

    def forward(self, x: Tensor) -> Tensor:
        """Logits for the byte after each position; `x` is (batch, up to `context`) of int64."""
        places = torch.arange(x.shape[1], device=x.device)
        h = self.dropout(self.tokens(x) + self.positions(places))
        logits: Tensor = self.head(self.norm(self.blocks(h)))
        return logits


def loss_of(logits: Tensor, y: Tensor) -> Tensor:
    """Mean cross entropy of the next byte, in nats."""
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())
