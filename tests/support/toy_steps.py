"""A toy model whose state at each step is known."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.support.abandon import abandoned_copy
from tests.support.toy import ToyTrainer, uninterrupted
from tranlogs.base.types import dense
from tranlogs.log.layout import Payload
from tranlogs.retention import EverySteps

SIZES = (7, 300)
NEVER = EverySteps(10**9)


def killed(trainer: ToyTrainer, to: Path) -> Path:
    return abandoned_copy(trainer.journal, to)


def state_at(step: int) -> bytes:
    return uninterrupted(step, sizes=SIZES).everything()


def step_of(trainer: ToyTrainer) -> None:
    """One optimizer update, without a boundary."""
    state, journal = trainer.state, trainer.journal
    gradients, lr = state.gradients(), state.lr
    record = journal.begin_step(Payload.of((f"grad/{name}", dense(gradient)) for name, gradient in gradients.items()))
    state.apply(gradients, lr)
    journal.commit_step(record, {"lr": lr}, state.digest().to_bytes(8, "little"))


def boundary_of(trainer: ToyTrainer, covered: int = 0, **options: Any) -> None:
    for _ in range(covered):
        trainer.journal.count_step()
    trainer.journal.boundary(trainer.state.auxiliary(), trainer.state.snapshot, **options)


def checkpoint_steps(trainer: ToyTrainer) -> list[int]:
    trainer.journal.wait_checkpoint()
    return [row.step for row in trainer.journal.catalog.checkpoints()]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged as a warning or worse."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def patiently(trainer: ToyTrainer, until: int) -> None:
    """Train, and let each checkpoint be finished."""
    trainer.train(until, say=lambda _: trainer.journal.wait_checkpoint())
