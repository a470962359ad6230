"""What a unit costs: system calls of the training thread, and flushes and transactions of a group."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType
from typing import Any

import pytest

from tests.support.toy import ToyTrainer
from tests.support.toy_steps import boundary_of, step_of
from tranlogs.catalog import Catalog

Calls = Counter[tuple[int, str]]  # by thread and name
_PURE = ("fspath", "strerror")  # functions of `os` that call nothing


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """Count what threads call of `os`, and the write transactions of catalogs."""
    calls: Calls = Counter()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls[threading.get_ident(), name] += 1
            return function(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name, function in vars(os).copy().items():
            if isinstance(function, BuiltinFunctionType) and name not in _PURE:
                patch.setattr(os, name, counted(name, function))
        patch.setattr(Catalog, "transaction", counted("transaction", Catalog.transaction))
        yield calls


def units(trainer: ToyTrainer, count: int) -> None:
    for _ in range(count):
        step_of(trainer)
        trainer.state.go_on(trainer.journal.step)
        boundary_of(trainer)


def test_a_unit_takes_two_writes_of_the_training_thread_and_no_other_call(
    toy: Callable[..., ToyTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = toy(durability="machine")
    trainer.recover()
    units(trainer, 12)
    with counting(monkeypatch) as calls:
        units(trainer, 8)
    assert {name: n for (thread, name), n in calls.items() if thread == threading.get_ident()} == {"pwritev": 8, "pwrite": 8}


def test_a_group_takes_one_flush_and_one_transaction(toy: Callable[..., ToyTrainer], monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = toy(durability="machine")
    trainer.recover()
    units(trainer, 12)
    assert trainer.journal.wait_synced()
    with counting(monkeypatch) as calls:
        for _ in range(8):
            units(trainer, 1)
            assert trainer.journal.wait_synced()
    totals = Counter(name for (_, name), n in calls.items() for _ in range(n))
    assert (totals["fdatasync"], totals["transaction"]) == (8, 8)
