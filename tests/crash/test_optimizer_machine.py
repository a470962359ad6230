"""The public face of LoggedOptimizer as a state machine against plain PyTorch: whatever is done in whatever order, what was
committed comes back, and it is what the twin had at that boundary, to the bit, random numbers and curves included."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.crash import tally
from tests.crash.plain_twin import BODIES, Boundary, Kind, Script, Twin
from tests.monitor.monitors import watching_daemon
from tests.shipping.ships import marks, ship
from tests.support import campaign
from tests.support.abandon import abandoned_copy, copy_of_written
from tests.support.clock import FakeClock
from tests.support.faults import failing
from tests.support.verify import verify_run
from tests.torch.lab import differences
from tranlogs.base.errors import RecoveryError
from tranlogs.base.failpoints import POINTS
from tranlogs.catalog import Catalog
from tranlogs.journal import JournalPaths, journal
from tranlogs.journal.opening import seal_abandoned_segments
from tranlogs.log import preallocator
from tranlogs.shipping import pull
from tranlogs.stores.local import LocalStore
from tranlogs.verify import Problem
from tranlogs_torch import LoggedOptimizer

pytestmark = pytest.mark.crash

LIVES_MAX = 7
FAULTS = [point for point in POINTS if point.startswith(("log.", "catalog.", "checkpoint."))]
DATA = ["drawn", "shuffled", "shuffled", "generator", "order"]
CLOCK = FakeClock()


class OptimizerMachine(RuleBasedStateMachine):
    """`boundaries` is the model: where the run can be, the newest last; `claimed` is the newest that is committed.

    `shipped` are those of the moment when all was shipped, `archived` the newest of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tranlogs-machine-"))
        self.run, self.lives = self.folder / "0" / "run", 0
        self.boundaries: list[Boundary] = []
        self.claimed = self.archived = 0
        self.shipped: list[Boundary] = []
        self.is_ready = False
        self.story: list[str] = []

    @initialize(
        optimizer=st.sampled_from(["adamw", "sgd"]),
        has_two=st.booleans(),
        data=st.sampled_from(DATA),
        is_by_epochs=st.booleans(),
        log_kind=st.sampled_from(["gradients", "weights"]),
        durability=st.sampled_from(["process", "machine"]),
        writer=st.sampled_from(["direct", "thread"]),
        every=st.sampled_from([2, 5, 1000]),
        keep=st.integers(1, 3),
    )
    def begin(self, optimizer: str, has_two: bool, data: str, is_by_epochs: bool, log_kind: str, **options: Any) -> None:
        self.twin, self.is_by_epochs, self.log_kind = Twin(Kind(optimizer, has_two, data)), is_by_epochs, log_kind
        self.options = {"checkpoint_every": options.pop("every"), "segment_bytes": 1 << 20, **options}
        self.boundaries = [self.twin.boundary()]
        self.open()

    # Life and death of the process.

    def open(self, step: int | None = None) -> None:
        """The script from its beginning: built, tracked, recovered, its loop begun."""
        self.is_ready = False

        def wrap(plain: list[Any], model: Any) -> list[Any]:
            first = LoggedOptimizer(plain[0], self.run, model, log=self.log_kind, **self.options)  # type: ignore[arg-type]
            self.logged = first
            return [first, *(first.add_optimizer(other, "head") for other in plain[1:])]

        self.script = Script(self.twin.kind, wrap)
        self.logged.track(scheduler=self.script.scheduler, **({"loader": self.script.loader} if self.script.loader else {}))
        report = self.logged.recover(step)
        assert report.exact is not False, report
        self.loop = self.batches()
        self.next_batch()
        self.land(report.step, is_newest=step is None)
        self.is_ready = True

    def batches(self) -> Iterator[Any]:
        """The loop over the whole run."""
        loader = self.script.loader
        if loader is None:
            yield from self.logged.steps(10**9)
        elif self.is_by_epochs:  # the same batches either way
            for epoch in self.logged.epochs(10**9):
                yield from epoch
        else:
            yield from self.logged.batches(loader)

    def next_batch(self) -> None:
        """Ask the loop for the next batch: the boundary."""
        found = next(self.loop)
        self.script.batch = None if self.script.loader is None else found[0]

    def land(self, step: int, *, is_newest: bool) -> None:
        """Hold what came back against what was."""
        found = self.script.outcome()
        curve = self.logged.scalars.get("loss", ([], []))
        least = self.claimed if is_newest else 0
        indices = [i for i, one in enumerate(self.boundaries) if one.holds(step, found, torch.get_rng_state(), curve)]
        if not indices or indices[-1] < least:
            near = [
                (i, differences(one.outcome, found)[:4], torch.equal(one.rng, torch.get_rng_state()), one.curve == curve)
                for i, one in enumerate(self.boundaries)
                if one.step == step
            ]
            raise AssertionError(f"step {step} came back as {indices}, boundary {least} was committed; near: {near}")
        del self.boundaries[indices[-1] + 1 :]
        self.claimed = indices[-1]
        self.twin.set_back(self.boundaries[-1])

    def end(self, *, in_order: bool) -> None:
        """End the process: in order, or as SIGKILL would; nobody writes the run then."""
        self.settle()
        self.leave(None if in_order else lambda run: abandoned_copy(self.logged.training_run.journal, run))

    def leave(self, copy: Callable[[Path], object] | None) -> None:
        """The process is no more; where it does not end in order, `copy` makes what it leaves behind."""
        self.lives += 1
        self.is_ready = False
        run = self.folder / str(self.lives) / "run"
        self.loop.close()
        if copy is not None:
            run.parent.mkdir()
            copy(run)
        self.logged.close()
        if copy is not None:
            shutil.rmtree(self.run)
            self.run = run

    def settle(self) -> None:
        """Let all be written that is handed over, and note what is claimed."""
        journal = self.logged.training_run.journal
        journal.wait_synced()
        if not journal.is_suspended and (journal.log.thread is None or journal.log.thread.failure is None):
            self.claimed = len(self.boundaries) - 1

    # What a loop does.

    def turn(self, what: str) -> None:
        """The body of a batch, and the boundary behind it."""
        noted = self.script.body(what, is_amid=self.twin.is_amid)
        if noted is not None:
            self.logged.log_scalars(loss=noted)
        before = self.twin.step, self.twin.is_amid
        self.twin.do(what)
        self.next_batch()
        waits = self.twin.is_amid and what in ("accumulate", "nothing")  # no place to come back to
        assert before[0] <= self.twin.step == self.logged.watermarks["step"]
        if waits:
            return
        self.boundaries.append(self.twin.boundary())
        journal = self.logged.training_run.journal
        if journal.config.writer == "direct" and not journal.is_suspended:
            self.claimed = len(self.boundaries) - 1

    @rule(what=st.sampled_from(BODIES), times=st.integers(1, 4))
    def train(self, what: str, times: int) -> None:
        for _ in range(times):
            self.turn(what)

    @precondition(lambda self: self.twin.place is not None and self.lives < LIVES_MAX)
    @rule(epochs=st.integers(1, 2), more=st.integers(-1, 1), in_order=st.booleans())
    def end_near_an_epochs_end(self, epochs: int, more: int, in_order: bool) -> None:
        """At its last batch, at its boundary, or behind the first batch of the next."""
        for _ in range(epochs):
            self.turn("step")
            while not self.twin.is_at_start:
                self.turn("step")
        for _ in range(more % 3):
            self.turn("step")
        self.end(in_order=in_order)
        self.open()

    @rule()
    def grow(self) -> None:
        if not self.script.is_grown:  # no precondition: how far a rewind came may depend on threads, and those must not
            self.script.grow()
            self.twin.script.grow()
        self.turn("step")

    @rule(share=st.floats(0, 1))
    def load(self, share: float) -> None:
        """The script loads weights and optimizers that it saved at a boundary, and trains on."""
        saved = [one.saved for one in self.boundaries if one.saved["grown"] == self.script.is_grown]
        if saved:
            self.script.load(saved[round(share * (len(saved) - 1))])
            self.twin.script.load(saved[round(share * (len(saved) - 1))])
        self.turn("step")

    @rule(waits=st.booleans())
    def checkpoint(self, waits: bool) -> None:
        self.logged.checkpoint()
        self.turn("step")
        if waits:
            self.logged.training_run.journal.wait_checkpoint()

    @rule(seconds=st.sampled_from([1.0, 100.0, 1e6]))
    def time_passes(self, seconds: float) -> None:
        CLOCK.advance(seconds)

    @rule(
        point=st.sampled_from(FAULTS),
        error=st.sampled_from(["enospc", "eio"]),
        times=st.sampled_from(["@1", "@2", "@1+"]),
        what=st.sampled_from(BODIES),
    )
    def fault(self, point: str, error: str, times: str, what: str) -> None:
        with failing(f"{point}={error}{times}"):
            self.turn("step")
            self.logged.checkpoint()
            self.turn(what)
            self.settle()
            self.logged.training_run.journal.wait_checkpoint()

    # What happens to the run.

    @precondition(lambda self: self.lives < LIVES_MAX)
    @rule()
    def close_and_open(self) -> None:
        self.end(in_order=True)
        self.open()

    @precondition(lambda self: self.lives < LIVES_MAX)
    @rule()
    def die(self) -> None:
        self.end(in_order=False)
        self.open()

    @precondition(lambda self: self.lives < LIVES_MAX and self.options["writer"] == "thread")
    @rule(bodies=st.lists(st.sampled_from(BODIES), min_size=1, max_size=4))
    def die_with_records_in_the_queue(self, bodies: list[str]) -> None:
        """What was told as committed is there; what waits for the writer thread is lost."""
        self.logged.checkpoint()
        self.turn("step")  # no checkpoint is due for a while: it would wait for the queue
        self.settle()
        journal, is_stopped, goes_on = self.logged.training_run.journal, threading.Event(), threading.Event()
        if journal.is_suspended or journal.log.thread is None or self.options["checkpoint_every"] < 1000:
            return

        def stop() -> None:
            is_stopped.set()
            goes_on.wait(60)

        def copy(run: Path) -> None:
            copy_of_written(journal, run)
            goes_on.set()

        journal.log.thread.submit(0, stop)
        for what in bodies:
            self.turn(what)
        is_stopped.wait()
        assert self.logged.watermarks["committed"] == self.boundaries[self.claimed].step
        self.leave(copy)
        self.open()

    @precondition(lambda self: self.lives < LIVES_MAX)
    @rule(what=st.sampled_from(BODIES), in_order=st.booleans())
    def end_amid_a_batch(self, what: str, in_order: bool) -> None:
        """What the batch did is taken back: its boundary never came."""
        self.settle()
        claimed = self.claimed
        self.script.body(what, is_amid=self.twin.is_amid)
        self.end(in_order=in_order)
        self.claimed = claimed
        self.open()

    @precondition(lambda self: self.lives < LIVES_MAX)
    @rule(share=st.floats(0, 1), in_order=st.booleans())
    def rewind(self, share: float, in_order: bool) -> None:
        self.end(in_order=in_order)
        steps = sorted({one.step for one in self.boundaries})
        kept = list(self.boundaries), self.claimed
        try:
            self.open(steps[round(share * (len(steps) - 1))])
        except RecoveryError:  # pruned, or in a gap
            self.logged.close()
            self.boundaries, self.claimed = kept
            self.open()
            return
        if len(self.boundaries) - 1 < kept[1]:  # the first batch of the new timeline makes it count
            self.turn("step")
            if self.logged.training_run.journal.is_suspended:
                self.boundaries, self.claimed = [*kept[0], *self.boundaries[self.claimed :]], 0

    @rule(checkpoints=st.integers(1, 2), segments=st.integers(0, 2), nbytes=st.sampled_from([None, 1 << 20, 4 << 20]))
    def monitor(self, checkpoints: int, segments: int, nbytes: int | None) -> None:
        watching = watching_daemon(self.run, CLOCK, checkpoints_max=checkpoints, segments_max=segments, nbytes=nbytes)
        try:
            assert watching.evaluate() == 0
        finally:
            watching.close()

    @precondition(lambda self: self.lives < LIVES_MAX)
    @rule(in_order=st.booleans())
    def push(self, in_order: bool) -> None:
        self.end(in_order=in_order)
        paths = JournalPaths.of(self.run)
        catalog = Catalog.open(paths.folder, writable=True)
        seal_abandoned_segments(paths, catalog, sync=True)
        catalog.close()
        ship(self.run, LocalStore(self.folder / "store"))
        assert marks(self.run).archived >= self.boundaries[self.claimed].step
        self.shipped, self.archived = list(self.boundaries), self.claimed
        self.open()

    @precondition(lambda self: self.shipped and self.lives < LIVES_MAX)
    @rule()
    def lose_the_machine_and_pull(self) -> None:
        self.end(in_order=False)
        shutil.rmtree(self.run)
        self.run = self.folder / f"pulled{self.lives}" / "run"
        self.run.mkdir(parents=True)
        found = pull(LocalStore(self.folder / "store"), "run/rank0", self.run / "rank0")
        assert not found.notes
        self.boundaries, self.claimed = list(self.shipped), self.archived
        self.open()

    def teardown(self) -> None:
        try:
            if self.is_ready:
                self.turn("step")  # meets what has failed in a thread since the last step
                CLOCK.advance(1000)
                self.turn("step")  # logging resumes by itself
                self.settle()
                assert not self.logged.training_run.journal.is_suspended
                self.end(in_order=False)
                self.open()
                assert self.claimed == len(self.boundaries) - 1
                self.loop.close()
                self.logged.close()
                assert [str(found) for found in verify_run(self.run) if isinstance(found, Problem)] == []
                tally.note("a sequence of calls, crashes, faults, rewinds, pruning, pushes and pulls")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def _small_and_quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(preallocator, "SEGMENT_RECORDS_WANTED", 1)
    monkeypatch.setattr(journal, "Clock", lambda: CLOCK)
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


TestOptimizerMachine = pytest.mark.timeout(3600)(OptimizerMachine.TestCase)
OptimizerMachine.TestCase.settings = settings(max_examples=campaign.rounds(12), stateful_step_count=25)
