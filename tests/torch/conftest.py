"""Tests for a GPU are collected where there is one; elsewhere it is said that they were not. No test leaves workers behind."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import dataloader

collect_ignore = [] if torch.cuda.is_available() else ["test_cuda.py"]

_iterators: weakref.WeakSet[Any] = weakref.WeakSet()


class _NotedIterator(dataloader._MultiProcessingDataLoaderIter):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        _iterators.add(self)


@pytest.fixture(autouse=True)
def _no_workers_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The garbage collector would end them, too, at any time later, and wait five seconds for each (see data.py)."""
    monkeypatch.setattr(dataloader, "_MultiProcessingDataLoaderIter", _NotedIterator)
    yield
    for iterator in list(_iterators):
        iterator._shutdown_workers()


@pytest.fixture(autouse=True)
def _rechecks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute the newest unit again after a crash, as for users."""
    monkeypatch.setenv("TRANLOGS_RECHECK", "1")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if collect_ignore:
        terminalreporter.write_line("tests/torch/test_cuda.py was not run: it needs a CUDA GPU")
