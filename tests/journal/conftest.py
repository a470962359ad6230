"""Trainers of a toy model over a journal, closed when their test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clock import FakeClock
from tests.support.toy import ToyTrainer, open_toy
from tests.support.toy_steps import NEVER, SIZES
from tranlogs.base.config import MIB, JournalConfig


@pytest.fixture
def closed() -> Iterator[list[ToyTrainer]]:
    made: list[ToyTrainer] = []
    yield made
    for trainer in made:
        trainer.journal.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def toy(tmp_path: Path, closed: list[ToyTrainer]) -> Callable[..., ToyTrainer]:
    def open_(
        run: Path = tmp_path / "run", *, writer: Any = "direct", durability: Any = "process", **options: Any
    ) -> ToyTrainer:
        config = JournalConfig(writer=writer, durability=durability, segment_bytes=MIB)
        trainer = open_toy(run, **{"sizes": SIZES, "config": config, "policy": NEVER, **options})
        closed.append(trainer)
        return trainer

    return open_
