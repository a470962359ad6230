"""A PyTorch script whose bits depend on the number of threads: it adds up many numbers in each step."""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
import xxhash

from tranlogs_torch import LoggedOptimizer


@dataclass(frozen=True, slots=True)
class Said:
    """Where the script is: at a boundary, or where it came back to (the first one)."""

    step: int
    sum: int
    seconds: float = 0.0


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = torch.nn.Linear(16, 2048)
    return model, torch.optim.AdamW(model.parameters(), 0.01)


def one_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    found = model(torch.rand(64, 16))
    (found / found.square().sum().sqrt()).tanh().sum().backward()
    optimizer.step()


def sum_of(model: torch.nn.Module) -> int:
    return xxhash.xxh3_64_intdigest(b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters()))


def sums(threads: int, until: int) -> list[int]:
    """After each step of a run without a log."""
    torch.set_num_threads(threads)
    model, optimizer = build()
    found = [sum_of(model)]
    for _ in range(until):
        one_step(model, optimizer)
        found.append(sum_of(model))
    return found


def train(pipe: Connection, run: str, threads: int, until: int) -> None:
    """Come back, and train to a step."""
    torch.set_num_threads(threads)
    model, plain = build()
    start = time.monotonic()
    with LoggedOptimizer(plain, run, model, checkpoint_every=7) as optimizer:
        report = optimizer.recover()
        assert report.exact is not False, report
        pipe.send(Said(report.step, sum_of(model), time.monotonic() - start))
        for _ in optimizer.steps(until):
            if (step := optimizer.watermarks["committed"]) > report.step:
                pipe.send(Said(step, sum_of(model)))
            one_step(model, optimizer)
