"""What the benchmarks share: the model, quartiles and intervals, a table line."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tranlogs_demo.training import GPT, GPT_10M, GPT_TINY, TextWindows, read_topics

BATCH = 16
_RESAMPLES = 2000


def model_and_text(*, quick: bool) -> tuple[nn.Module, TextWindows]:
    """The GPT of 10.7 M parameters (quick: 0.1 M) and the text that it reads, 128 characters a window."""
    config = replace(GPT_TINY if quick else GPT_10M, block=128)
    torch.manual_seed(0)
    windows = TextWindows(read_topics(), config.block)
    return GPT(config, len(windows.alphabet)), windows


def batches(windows: TextWindows) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of the text for ever, in the order of the text."""
    at = 0
    while True:
        found = [windows[(at + i) % len(windows)] for i in range(BATCH)]
        at += BATCH
        yield torch.stack([a for a, _ in found]), torch.stack([b for _, b in found])


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """25 %, median, 75 %."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def shown(values: list[float], digits: int = 3) -> str:
    """Median and quartiles as text."""
    low, middle, high = quartiles(values)
    return f"{middle:.{digits}f} [{low:.{digits}f}-{high:.{digits}f}]"


def seconds(work: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@contextmanager
def timed(into: list[float]) -> Iterator[None]:
    """Append the seconds that the block takes."""
    start = time.perf_counter()
    yield
    into.append(time.perf_counter() - start)


def bootstrap(samples: Sequence[Any], statistic: Callable[[Any], Any]) -> list[Any]:
    """A statistic of the samples, and the bounds of its 95 % interval by resampling them with replacement.

    Args:
        samples: what varies independently: where neighbours in time are alike, their blocks.
        statistic: of an array of samples; a number, or an array of them.

    Returns:
        Its value, low, high: numbers, or lists of them.
    """
    given, chance = np.asarray(samples), np.random.default_rng(0)
    drawn = [statistic(given[chance.integers(0, len(given), len(given))]) for _ in range(_RESAMPLES)]
    low, high = np.percentile(np.array(drawn), (2.5, 97.5), axis=0)
    return [np.asarray(found).tolist() for found in (statistic(given), low, high)]
