"""Every point of the write path fails, once or for good: training goes on, says so once, and logging resumes by itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import campaign
from tests.support.abandon import abandoned_copy
from tests.support.clock import FakeClock
from tests.support.faults import failing, times_hit
from tests.support.toy import ToyTrainer
from tests.support.toy_steps import state_at, warnings
from tranlogs.base.failpoints import POINTS
from tranlogs.retention import EverySteps, KeepLatest

pytestmark = pytest.mark.usefixtures("small_segments")

WRITE_PATH = [point for point in POINTS if point.startswith(("log.", "catalog.", "checkpoint."))]
# What stops one checkpoint or one deletion, and not the log.
LOG_GOES_ON = {point for point in WRITE_PATH if point.startswith("checkpoint.")} | {"log.retire"}
# What happens ahead, in the background: it is tried again before anybody is told. So is the transaction of the catalog that
# makes a prepared segment known, which is the one that fails, or not, as the threads happen to run.
AHEAD = {"log.prepare", "log.recycle", "log.unlink"} | {point for point in WRITE_PATH if point.startswith("catalog.")}
# What cannot be tried out when logging goes on: it comes a moment later, and is waited for longer each time. Where no new file
# can be made, a fresh checkpoint lets the old ones be used again.
COMES_BACK = {"log.seal", "log.recycle", "log.unlink", "log.prepare"}


@pytest.fixture
def toy(memory_path: Path, clock: FakeClock, toy: Callable[..., ToyTrainer]) -> Callable[..., ToyTrainer]:
    options = {"durability": "machine", "policy": EverySteps(6), "retention": KeepLatest(1), "clock": clock}
    return lambda run=memory_path / "run", **more: toy(run, **options, **more)


def train(trainer: ToyTrainer, until: int) -> None:
    """A segment a step and all threads idle between steps, so that every point is passed at a known place."""

    def settle(step: int) -> None:
        if step == 14:  # fewer log files are in use than at the checkpoint before: some of the spare ones are deleted
            trainer.journal.checkpoint(trainer.state.snapshot(), wait=True)
        trainer.journal.wait_synced()
        trainer.journal.wait_checkpoint()
        if trainer.journal.log.wal is not None:
            trainer.journal.log.wal.roll()

    trainer.train(until, say=settle)


@pytest.mark.sampled(13)
@pytest.mark.parametrize(("point", "rule", "writer"), campaign.pairwise(WRITE_PATH, ["eio@1", "enospc"], ["direct", "thread"]))
def test_training_goes_on_and_logging_resumes(
    toy: Callable[..., ToyTrainer],
    clock: FakeClock,
    memory_path: Path,
    caplog: pytest.LogCaptureFixture,
    point: str,
    rule: str,
    writer: str,
) -> None:
    trainer = toy(writer=writer)
    trainer.recover()
    train(trainer, 7)
    journal = trainer.journal
    caplog.clear()
    with failing(f"{point}={rule}"):
        train(trainer, 16)
        for until in (18, 20):
            clock.advance(100)
            train(trainer, until)
        assert times_hit(point), f"{point} was not reached"
        at_risk = abandoned_copy(journal, memory_path / "at_risk")
        claimed = journal.committed
    assert trainer.state.everything() == state_at(20)
    suspensions = [message for message in warnings(caplog) if "logging is suspended" in message]
    if point in LOG_GOES_ON:
        assert suspensions == []
        told = [message for message in warnings(caplog) if "could not be written" in message or "could not delete" in message]
        assert any(point in message for message in told)
    else:
        assert len(suspensions) == 1 or point in (AHEAD if rule == "eio@1" else COMES_BACK)
        assert suspensions or claimed == 20  # nobody was told because nothing was lost
        assert all("a crash now would go back to step" in message for message in suspensions)
        assert all(point in message for message in suspensions)
        assert journal.is_suspended is (rule == "enospc") or point in COMES_BACK
    for until in (21, 22, 23):
        clock.advance(10_000)  # a failure behind the last step is noticed only at the next one, and waited for again
        train(trainer, until)
    assert (journal.is_suspended, journal.committed, trainer.state.everything() == state_at(23)) == (False, 23, True)
    suspensions = [message for message in warnings(caplog) if "logging is suspended" in message]
    incidents = journal.catalog.incidents()
    assert len(incidents) == len(suspensions)
    assert all(point in row.why and row.to_step is not None for row in incidents)
    for run, floor in ((at_risk, claimed), (abandoned_copy(journal, memory_path / "after"), 23)):
        again = toy(run)
        report = again.recover()
        assert report.step >= floor
        assert again.state.everything() == state_at(report.step)
        train(again, 25)
        assert again.state.everything() == state_at(25)


def test_retries_become_rarer_and_go_on_for_ever(toy: Callable[..., ToyTrainer], clock: FakeClock) -> None:
    trainer, tries = toy(), []
    trainer.recover()
    with failing("log.begin=enospc"):
        for _ in range(400):
            before = times_hit("log.begin")
            train(trainer, trainer.journal.step + 1)
            tries += [clock.now()] if times_hit("log.begin") > before else []
            clock.advance(1)
    pauses = [after - before for before, after in itertools.pairwise(tries)]
    assert pauses == sorted(pauses)
    assert pauses[:5] == [2, 4, 8, 16, 32]
    assert set(pauses[5:]) == {60}


def test_trouble_that_comes_back_at_once_is_waited_for_longer(toy: Callable[..., ToyTrainer], clock: FakeClock) -> None:
    trainer, pauses = toy(), []
    trainer.recover()
    train(trainer, 2)
    for _ in range(8):
        with failing("log.roll=eio@1"):
            train(trainer, trainer.journal.step + 2)
            assert trainer.journal.is_suspended
        since = clock.now()
        while trainer.journal.is_suspended:
            clock.advance(1)
            train(trainer, trainer.journal.step + 1)
        pauses.append(clock.now() - since)
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]
    clock.advance(100)
    with failing("log.roll=eio@1"):
        train(trainer, trainer.journal.step + 2)
    clock.advance(2)
    train(trainer, trainer.journal.step + 1)
    assert not trainer.journal.is_suspended
