"""A small GPT that predicts the next character: the model of the demo and of the benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """Sizes of a GPT.

    Attributes:
        layers: blocks of attention and feed-forward.
        heads: attention heads in each.
        width: numbers that stand for a character.
        block: characters that the model looks back on.
        dropout: share of activations that a training step drops at random.
    """

    layers: int
    heads: int
    width: int
    block: int
    dropout: float = 0.1


GPT_TINY = GPTConfig(layers=2, heads=4, width=64, block=64)  # 0.1 M parameters: tests
GPT_SMALL = GPTConfig(layers=4, heads=4, width=128, block=64)  # 0.8 M: the quick demo
GPT_10M = GPTConfig(layers=6, heads=6, width=384, block=96)  # 10.7 M: the demo, the benchmarks


class GPT(nn.Module):
    """Decoder-only transformer, pre-norm; the output layer shares its weights with the embedding."""

    def __init__(self, config: GPTConfig, alphabet: int) -> None:
        super().__init__()
        self.character = nn.Embedding(alphabet, config.width)
        self.position = nn.Embedding(config.block, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, alphabet, bias=False)
        self.head.weight = self.character.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:  # what adds to the residual stream starts smaller, the more layers add to it
                std = 0.02 / (2 * config.layers) ** 0.5 if name.endswith("out.weight") else 0.02
                nn.init.normal_(parameter, std=std)

    def forward(self, text: Tensor) -> Tensor:
        """Scores of the next character at each place: (batch, length) -> (batch, length, alphabet)."""
        x = self.character(text) + self.position.weight[: text.size(1)]
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.norm(x))
        return scores

    def loss(self, text: Tensor, following: Tensor) -> Tensor:
        """Mean cross entropy, in nats a character."""
        return F.cross_entropy(self(text).flatten(0, 1), following.flatten())

    @property
    def size(self) -> int:
        """Number of parameters; shared ones count once."""
        return sum(p.numel() for p in self.parameters())


class Block(nn.Module):
    """Attention, then feed-forward, each added to what came in."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        width = config.width
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width, config.heads)
        self.feed_norm, self.feed = nn.LayerNorm(width), FeedForward(width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = x + self.dropout(self.attention(self.attention_norm(x)))
        fed: Tensor = self.dropout(self.feed(self.feed_norm(mixed)))
        return mixed + fed


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


class FeedForward(nn.Module):
    """Two linear layers, four times as wide between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(F.gelu(self.wide(x), approximate="tanh"))
        return result


def build_gpt(config: GPTConfig, alphabet: int, seed: int) -> GPT:
    """Build a GPT whose first weights depend on the seed alone. This sets torch's global random state."""
    torch.manual_seed(seed)
    return GPT(config, alphabet)
