"""The log as a state machine against a plain list: what was committed is what recovery gives, whatever happens in between."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support import campaign
from tests.support.abandon import abandoned_copy
from tests.support.clock import FakeClock
from tests.support.faults import failing
from tests.support.toy import ToyTrainer, open_toy
from tests.support.toy_steps import step_of
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.base.errors import RecoveryError
from tranlogs.base.failpoints import POINTS
from tranlogs.base.types import dense
from tranlogs.log import preallocator
from tranlogs.log.layout import Payload
from tranlogs.retention import EverySteps, KeepLatest

SIZES = (3, 40)
FAULTS = [point for point in POINTS if point.startswith(("log.", "catalog.", "checkpoint."))]


class LogMachine(RuleBasedStateMachine):
    """`boundaries` is the model: what the state was at each boundary of the current history, the newest last."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tranlogs-machine-"))
        self.clock = FakeClock()
        self.runs = 0
        self.boundaries: list[tuple[int, bytes]] = []
        self.claimed = 0  # index of the newest boundary that the journal said is committed
        self.is_ready = False  # recovered, and nothing went wrong
        self.trainer: ToyTrainer

    @initialize(
        writer=st.sampled_from(["direct", "thread"]),
        durability=st.sampled_from(["process", "machine"]),
        every=st.sampled_from([2, 5, 10**9]),
        keep=st.integers(1, 2),
    )
    def begin(self, writer: Any, durability: Any, every: int, keep: int) -> None:
        config = JournalConfig(writer=writer, durability=durability, segment_bytes=MIB)
        self.options: dict[str, Any] = {"config": config, "policy": EverySteps(every), "retention": KeepLatest(keep)}
        self.open(self.folder / "run0")
        assert self.trainer.recover().checkpoint_step is None
        self.boundaries, self.is_ready = [(0, self.trainer.state.everything())], True

    def open(self, run: Path) -> None:
        self.is_ready = False
        self.trainer = open_toy(run, sizes=SIZES, clock=self.clock, **self.options)

    def recover(self, step: int | None = None) -> None:
        """Come back, and hold what came back against the model."""
        report = self.trainer.recover(step)
        found = (report.step, self.trainer.state.everything())
        assert found in self.boundaries, f"step {report.step} came back with a state that no boundary had"
        index = len(self.boundaries) - 1 - self.boundaries[::-1].index(found)
        if step is None:
            assert index >= self.claimed, f"boundary {self.claimed} was committed, recovery landed on {index}"
        assert report.exact
        del self.boundaries[index + 1 :]
        self.claimed, self.is_ready = index, True

    def settle(self) -> None:
        """Let everything that is handed over be written, and note what is claimed."""
        journal = self.trainer.journal
        journal.wait_synced()
        if not journal.is_suspended and (journal.log.thread is None or journal.log.thread.failure is None):
            self.claimed = len(self.boundaries) - 1

    # What a training loop does.

    @rule(fill=st.integers(0, 3))
    def step(self, fill: int) -> None:
        gradients = self.trainer.state.gradients()
        if fill == 0:
            gradients["w1"][:] = 0  # another codec
        step_of(self.trainer, gradients)

    @rule(value=st.floats(-1, 1))
    def image(self, value: float) -> None:
        self.trainer.state.parameters["w0"][:] = value
        self.trainer.journal.append_image(Payload.of([("param/w0", dense(self.trainer.state.parameters["w0"]))]), {})

    @rule(seed=st.integers(0, 2))
    def auxiliary(self, seed: int) -> None:
        self.trainer.state.lr *= 0.9 + seed / 10
        if seed == 0:
            self.trainer.state.order = np.random.default_rng(len(self.boundaries)).permutation(2000)

    @rule(checkpoint=st.sampled_from([None, None, True, False]))
    def boundary(self, checkpoint: bool | None) -> None:
        state, journal = self.trainer.state, self.trainer.journal
        journal.boundary(state.auxiliary(), state.snapshot, checkpoint=checkpoint)
        self.boundaries.append((journal.step, state.everything()))
        if journal.config.writer == "direct" and not journal.is_suspended:
            self.claimed = len(self.boundaries) - 1

    @rule(count=st.integers(1, 8))
    def train(self, count: int) -> None:
        for _ in range(count):
            self.step(1)
            self.boundary(None)

    # What happens to it.

    @rule()
    def roll(self) -> None:
        self.settle()
        if self.trainer.journal.log.wal is not None:
            self.trainer.journal.log.wal.seal_now()

    @rule(seconds=st.sampled_from([1.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def wait_for_the_checkpoint(self) -> None:
        self.trainer.journal.wait_checkpoint()

    @rule(
        point=st.sampled_from(FAULTS),
        error=st.sampled_from(["enospc", "eio"]),
        times=st.sampled_from(["@1", "@2", "@1+"]),
        count=st.integers(1, 3),
    )
    def fault(self, point: str, error: str, times: str, count: int) -> None:
        with failing(f"{point}={error}{times}"):
            self.train(count)
            self.boundary(True)
            self.settle()
            self.trainer.journal.wait_checkpoint()

    @precondition(lambda self: self.runs < 8)
    @rule()
    def close_and_reopen(self) -> None:
        self.settle()
        self.trainer.journal.close()
        self.runs += 1
        self.open(self.trainer.journal.paths.folder.parent)
        self.recover()

    @precondition(lambda self: self.runs < 8)
    @rule()
    def die_and_reopen(self) -> None:
        """Without a close, as after a kill; what was logged behind the last boundary is dropped."""
        self._die()
        self.recover()

    def _die(self) -> None:
        self.settle()
        self.runs += 1
        before = self.trainer.journal
        copy = abandoned_copy(before, self.folder / f"run{self.runs}")
        before.close()
        shutil.rmtree(before.paths.folder.parent)
        self.open(copy)

    @precondition(lambda self: self.runs < 8)
    @rule(share=st.floats(0, 1))
    def go_back(self, share: float) -> None:
        """Recover to an earlier step and take another way from there."""
        self._die()
        steps = sorted({step for step, _ in self.boundaries})
        step = steps[round(share * (len(steps) - 1))]
        boundaries = list(self.boundaries)
        try:
            self.recover(step)
        except RecoveryError:  # pruned, or in a gap
            self.boundaries = boundaries
            self.recover()
            return
        self.trainer.state.lr *= 1.01
        self.boundary(None)

    @invariant()
    def the_watermarks_are_in_order(self) -> None:
        if self.is_ready:
            journal = self.trainer.journal
            assert journal.committed <= journal.step
            assert journal.config.durability == "process" or journal.synced <= journal.committed

    def teardown(self) -> None:
        try:
            if self.is_ready:
                self.boundary(None)  # a sync that failed behind the last boundary is noticed here, and suspends logging
                self.clock.advance(1000)
                self.boundary(None)  # logging resumes by itself
                self.settle()
                assert not self.trainer.journal.is_suspended
                assert self.claimed == len(self.boundaries) - 1
                self.close_and_reopen()
                assert self.claimed == len(self.boundaries) - 1
                self.trainer.journal.close()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def _small_and_quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(preallocator, "SEGMENT_RECORDS_WANTED", 1)
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


TestLogMachine = pytest.mark.timeout(300)(LogMachine.TestCase)
LogMachine.TestCase.settings = settings(max_examples=campaign.rounds(40), stateful_step_count=30)
