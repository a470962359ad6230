"""Runs of a toy model to be watched, and a browser."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journal.conftest import closed, toy
from tests.monitor.monitors import seen_at, trained_in_segments
from tests.support.browser import Browser, chromium
from tests.support.toy import ToyTrainer
from tranlogs_monitor.watching.watch import Evaluation

__all__ = ["closed", "toy"]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ToyTrainer]:
    """30 steps, a segment every 5, checkpoints at 0, 10 and 20; step 31 is in the open segment."""
    trainer = trained_in_segments(tmp_path / "run")
    yield trainer
    trainer.journal.close()


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyTrainer]:
    """The same for tests that change nothing."""
    trainer = trained_in_segments(tmp_path_factory.mktemp("still") / "run")
    yield trainer
    trainer.journal.close()


@pytest.fixture(scope="module")
def seen(still: ToyTrainer) -> Evaluation:
    """What a monitor sees of it."""
    return seen_at(still)


@pytest.fixture(scope="session")
def _browser() -> Iterator[Browser]:
    program = chromium()
    if program is None:
        if os.environ.get("TRANLOGS_REQUIRE_ALL") == "1":
            pytest.fail("TRANLOGS_REQUIRE_ALL=1, and this test needs Chromium")
        pytest.skip("needs Chromium")
    with Browser(program) as found:
        yield found


@pytest.fixture
def browser(_browser: Browser) -> Browser:
    """A browser with an empty page of a profile of its own."""
    _browser.begin_anew()
    return _browser
