"""The training loops that `make bench` times: from 1.2 thousand to 12.5 million parameters, AdamW, data made in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import AdamW, Optimizer

from tranlogs_demo.training import GPT, GPT_10M, GPT_TINY, TextWindows, read_topics

MIB = 1 << 20


@dataclass(slots=True)
class Work:
    """A model in training."""

    model: nn.Module
    optimizers: list[Optimizer]  # one, or those of a GAN, in the order in which they step
    compute: Callable[[list[Any]], None]  # does one unit of training with the given optimizers, which may be logged ones

    @property
    def step_bytes(self) -> int:
        """Bytes of gradients that a step logs."""
        return sum(p.nbytes for p in self.model.parameters())


@dataclass(frozen=True, slots=True)
class Case:
    """A training loop to time."""

    name: str
    make: Callable[[], Work]  # the same one each time
    steps: int  # in a block
    rounds: int  # of blocks in steady state
    seconds_max: float  # after which no further round begins
    segment_bytes: int  # of a log file: those of a block or two, so that the ring of files is small


def perceptron() -> Work:
    """85,000 parameters, for the monitor."""
    return _perceptron([64, 256, 256, 10], batch=256)


def tiny() -> Work:
    """1,226 parameters: what a step costs whatever its size."""
    return _perceptron([16, 32, 16, 10], batch=64)


def mlp() -> Work:
    """2.1 M parameters, 8.4 MB of gradients."""
    return _perceptron([256, 1024, 1024, 768, 10], batch=64)


def wide() -> Work:
    """12.5 M parameters, 50 MB of gradients."""
    return _perceptron([1024, 2560, 2560, 1280, 10], batch=32)


def many() -> Work:
    """400 tensors of 64 or 64 x 64 numbers."""
    return _perceptron([*[64] * 200, 10], batch=64)


def gpt(batch: int = 8, *, quick: bool = False) -> Work:
    """A transformer of 10.7 M parameters (quick: 0.1 M) on text, some windows of 128 characters a batch."""
    config = replace(GPT_TINY if quick else GPT_10M, block=128)
    torch.manual_seed(0)
    windows = TextWindows(read_topics(), config.block)
    model, at = GPT(config, len(windows.alphabet)), itertools.count(0, batch)

    def compute(optimizers: list[Optimizer]) -> None:
        first = next(at)
        texts, following = zip(*(windows[(first + i) % len(windows)] for i in range(batch)), strict=True)
        model.loss(torch.stack(texts), torch.stack(following)).backward()
        _step(optimizers[0])

    return Work(model, [AdamW(model.parameters(), lr=3e-4)], compute)


def gan() -> Work:
    """A generator and a discriminator of 0.5 M parameters each, which step in turn."""
    torch.manual_seed(0)
    generator, discriminator = layers([64, 512, 512, 256]), layers([256, 512, 512, 1])
    real = torch.randn(128, 256, generator=torch.Generator().manual_seed(1))
    ones, zeros = torch.ones(128, 1), torch.zeros(128, 1)

    def compute(optimizers: list[Optimizer]) -> None:
        made = generator(torch.randn(128, 64))
        judged = discriminator(real), discriminator(made.detach())
        loss = F.binary_cross_entropy_with_logits(judged[0], ones) + F.binary_cross_entropy_with_logits(judged[1], zeros)
        loss.backward()
        _step(optimizers[0])
        F.binary_cross_entropy_with_logits(discriminator(made), ones).backward()
        _step(optimizers[1])
        optimizers[0].zero_grad()

    optimizers: list[Optimizer] = [AdamW(part.parameters(), lr=1e-3) for part in (discriminator, generator)]
    return Work(nn.ModuleDict({"generator": generator, "discriminator": discriminator}), optimizers, compute)


def layers(widths: list[int]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    found: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        found += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*found[:-1])


def _perceptron(widths: list[int], *, batch: int) -> Work:
    torch.manual_seed(0)
    model = layers(widths)
    chance = torch.Generator().manual_seed(1)
    x = torch.randn(batch, widths[0], generator=chance)
    y = torch.randint(0, widths[-1], (batch,), generator=chance)

    def compute(optimizers: list[Optimizer]) -> None:
        F.cross_entropy(model(x), y).backward()
        _step(optimizers[0])

    return Work(model, [AdamW(model.parameters(), lr=1e-3)], compute)


def _step(optimizer: Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()


CASES = (
    Case("tiny, 1.2 k parameters", tiny, 20, 200, 20.0, 4 * MIB),
    Case("MLP, 2.1 M", mlp, 20, 18, 30.0, 256 * MIB),
    Case("wide, 12.5 M", wide, 10, 10, 35.0, 512 * MIB),
    Case("400 small tensors", many, 20, 12, 25.0, 128 * MIB),
    Case("GPT, 10.7 M", gpt, 3, 6, 60.0, 256 * MIB),
    Case("GAN, two optimizers", gan, 20, 12, 25.0, 64 * MIB),
)


def shortened(cases: tuple[Case, ...]) -> Iterator[Case]:
    """Yield the small cases with few rounds and small models: they check the script, not the claim."""
    for case in cases:
        if case.make in (tiny, mlp, gan):
            make = gan if case.make is gan else _small
            yield replace(case, make=make, rounds=2, steps=4, seconds_max=2.0, segment_bytes=MIB)


def _small() -> Work:
    """33,000 parameters: a log file of a MiB is full after eight steps."""
    return _perceptron([64, 256, 64, 10], batch=8)


def gradients_given(work: Work) -> None:
    """Put random gradients where the backward pass would; a log does not ask where a gradient is from."""
    parameters: list[Any] = list(work.model.parameters())
    for p in parameters:
        p.grad = torch.randn_like(p) * 1e-3
