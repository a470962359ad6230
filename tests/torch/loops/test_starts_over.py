"""What starts over in each process is named, before any crash and after it, and the report says so."""

from __future__ import annotations

import copy
import itertools
import json
import random
import signal
from fractions import Fraction
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.kills.judge import demand_quiet, finish, finished, killed
from tests.kills.pytorch import Death, Expected, Job, Script
from tests.torch.nets import seed
from tests.torch.scripts import built, stepped

pytestmark = pytest.mark.crash

curve: dict[str, list[float]] = {"loss": []}
counts = [0, 0]


def history(job: Job) -> None:
    """A function that trains appends to a list of the module, which is written at the end."""
    seed()
    x = torch.randn(40, 6)
    model = nn.Linear(6, 1)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    optimizer = job.wrap(torch.optim.Adam(model.parameters(), lr=1e-2), model)

    def train_on(rows: torch.Tensor, wanted: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows), wanted)
        loss.backward()
        optimizer.step()
        curve["loss"].append(loss.item())
        counts[int(loss.item() > 1)] += 1

    job.start(optimizer, loader=loader)
    for epoch in optimizer.epochs(5, loader):
        for rows, wanted in epoch:
            train_on(rows, wanted)
            job.at("batch")
        job.print(f"epoch {int(epoch)}: {len(curve['loss'])} points, {counts}")
    Path("curve.json").write_text(json.dumps(curve))
    job.keep(model=model, optimizer=optimizer)
    optimizer.close()


def test_a_list_of_the_module_that_a_function_appends_to_is_named(tmp_path: Path) -> None:
    """The state is exact, and the word for it says that this is not all: a file that the script writes lacks what was lost."""
    folder, run = tmp_path / "killed", tmp_path / "killed" / "run"
    whole = finish(history, tmp_path / "whole", tmp_path / "whole" / "run")
    demand_quiet(whole, tmp_path / "whole" / "run", Expected(warns=("curve", "counts")))
    assert killed(history, folder, Death("batch", number=13)) == -signal.SIGKILL
    last = finished(history, folder, run)
    assert (last.exact, last.recheck) == (True, "equal")
    assert any("curve" in note and "counts" in note for note in last.notes), last.notes
    assert {name for name in last.files if last.files[name] != whole[0].files.get(name)} == {"curve.json"}
    again = finished(history, folder, run)  # its loop does not run, and the list that is written is empty
    assert again.files["curve.json"] == b'{"loss": []}'
    assert next(note for note in again.notes if "over at each start" in note).startswith("curve and counts start over")
    assert not any("unset" in line for line in again.heard.lines), "nothing that only the body sets is read behind the loop"


def best(job: Job) -> None:
    """Save the weights before the loop, and those of the best epoch in it; go on with the latter."""
    model, loader, optimizer = built(job)
    state = optimizer.remember(best=0.0)
    job.start(optimizer, loader=loader)
    torch.save(model.state_dict(), "best.pt")
    for epoch in optimizer.epochs(3, loader):
        losses = [stepped(job, model, optimizer, rows) for (rows,) in epoch]
        if epoch == 0:
            state.best = max(losses)
            torch.save(model.state_dict(), "best.pt")
    optimizer.close()
    model.load_state_dict(torch.load("best.pt"))
    job.keep(model=model)


def reading(job: Job) -> None:
    """Save behind the first loop what its last turn has set, and train on in a second one."""
    model, loader, optimizer = built(job)
    job.start(optimizer, loader=loader)
    loss, number = 0.0, -1
    for epoch in optimizer.epochs(2, loader):
        for (rows,) in epoch:
            loss = stepped(job, model, optimizer, rows)
        number = int(epoch)
    Path("between.json").write_text(json.dumps([number, loss]))
    for epoch in optimizer.epochs(2, loader):
        for (rows,) in epoch:
            stepped(job, model, optimizer, rows)
    job.keep(model=model, optimizer=optimizer)
    optimizer.close()


# What is named, before a crash and where a script resumes after it, and which files differ then.
RESUMED: dict[str, tuple[Script, str, tuple[str, ...]]] = {
    "saved before the loop": (best, "state_dict() of the model was read before a loop", ("file best.pt",)),
    "read behind a loop": (reading, "read behind a loop that sets them", ("file between.json",)),
}


@pytest.mark.parametrize("name", RESUMED)
def test_what_a_resume_does_otherwise_is_named_at_once(name: str, tmp_path: Path) -> None:
    script, text, different = RESUMED[name]
    twin = finished(script, tmp_path / "twin")
    whole = finish(script, tmp_path / "whole", tmp_path / "whole" / "run")
    assert whole[0].differences(twin) == []
    demand_quiet(whole, tmp_path / "whole" / "run", Expected(warns=(text,)))
    assert killed(script, tmp_path / "killed", Death("batch", number=14)) == -signal.SIGKILL
    last = finished(script, tmp_path / "killed", tmp_path / "killed" / "run")
    assert set(different) <= set(last.differences(twin))
    assert any(text in note for note in last.notes), last.notes


class Stopping:
    """Early stopping, as many scripts have it."""

    def __init__(self) -> None:
        self.best, self.counter = 1e9, 0

    def __call__(self, loss: float) -> None:
        self.best, self.counter = (loss, 0) if loss < self.best else (self.best, self.counter + 1)


class Counting(torch.utils.data.Dataset[Any]):
    """Gives what depends on how much it has given."""

    def __init__(self) -> None:
        self.rows, self.served = torch.randn(40, 6, generator=torch.Generator().manual_seed(5)), 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        self.served += 1
        return (self.rows[index] * (1 + self.served / 100),)


def reached(job: Job) -> None:
    """A dataset behind a subset, an object in a list, an object that stops, an iterator and the number of a batch."""
    model, _, optimizer = built(job)
    data = Counting()
    loader = DataLoader(torch.utils.data.Subset(data, range(36)), 4, shuffle=True)
    stoppers, stopper, counter = [Stopping()], Stopping(), itertools.count()
    job.start(optimizer, loader=loader)
    for epoch in optimizer.epochs(3, loader):
        for i, (rows,) in enumerate(epoch):
            if i == 8:
                break
            loss = stepped(job, model, optimizer, rows)
            for each in (*stoppers, stopper):
                each(loss)
            next(counter)
    optimizer.close()


def test_what_a_loop_reaches_through_others_is_named_with_lines_that_keep_it(tmp_path: Path) -> None:
    """The data depend on the count here, so that the unit that is computed again differs."""
    assert killed(reached, tmp_path, Death("batch", number=12)) == -signal.SIGKILL
    last = finished(reached, tmp_path, tmp_path / "run")
    assert last.exact is False
    for text in (
        "counter starts over",
        "stoppers[0] (Stopping) starts over",
        "data (Counting) starts over at each start: training changes served",
        "optimizer.remember(counter=0)",
        "stoppers_0=stoppers[0]",
        "stopper=stopper",
        "data=data",
    ):
        assert any(text in note for note in last.notes), (text, last.notes)


def outside(job: Job) -> None:
    """A `while` of the script's own, without any loop or loader of the run."""
    model, loader, optimizer = built(job)
    state = optimizer.remember(number=0)
    (rows,) = next(iter(loader))
    job.start(optimizer)
    since = 0
    while state.number < 16:
        stepped(job, model, optimizer, rows)
        state.number += 1
        since += 1
    job.keep(model=model, since=since)
    optimizer.close()


def test_a_variable_of_a_loop_of_the_script_s_own_is_named(tmp_path: Path) -> None:
    assert killed(outside, tmp_path, Death("batch", number=9)) == -signal.SIGKILL
    last = finished(outside, tmp_path, tmp_path / "run")
    assert any("since starts over" in note and "optimizer.remember(" in note for note in last.notes), last.notes


# Objects, modules and generators, in runs that nobody kills.


class Slotted:
    """Has no dictionary."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Part:
    """Has a state with one of two counters that are always equal."""

    def __init__(self) -> None:
        self.steps = self.calls = 0

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


def many_kinds(job: Job) -> None:
    """Change what is hard to see."""

    def record(loss: float, seen: list[float] = []) -> None:  # noqa: B006  # the fault that is to be found
        seen.append(loss)

    model, loader, optimizer = built(job)
    slotted, part, words, timings = Slotted(), Part(), dict.fromkeys(range(2000), 0), list[float]()
    draws = random.Random(1), np.random.default_rng(1), torch.Generator().manual_seed(1)
    python, numpy, generator = draws[0], draws[1], draws[2]
    unused = random.Random(2)
    job.start(optimizer, loader=loader, part=part)
    for epoch in optimizer.epochs(4, loader):
        job.number = int(epoch)  # type: ignore[attr-defined]
        for (rows,) in epoch:
            record(stepped(job, model, optimizer, rows))
            slotted.count += 1
            part.steps, part.calls = part.steps + 1, part.calls + 1
            words[900] += 1
            timings.append(0.1 * python.random() + numpy.random() + torch.rand(1, generator=generator).item())
    assert unused.random()
    job.keep(model=model, optimizer=optimizer)
    optimizer.close()


class Averaged:
    """An average of weights in an object of the script's own."""

    def __init__(self, model: nn.Module) -> None:
        self.net = copy.deepcopy(model)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for mean, value in zip(self.net.parameters(), model.parameters(), strict=True):
            mean.lerp_(value, 0.1)


def other_modules(job: Job) -> None:
    """Average the weights in three ways beside the model, and have one that does not change."""
    model, loader, optimizer = built(job)
    ema, swa = Averaged(model), torch.optim.swa_utils.AveragedModel(model)
    target, teacher, alias = copy.deepcopy(model), copy.deepcopy(model), [model]
    job.start(optimizer, loader=loader)
    for epoch in optimizer.epochs(4, loader):
        for (rows,) in epoch:
            stepped(job, model, optimizer, rows)
            ema.update(model)
            swa.update_parameters(model)
            with torch.no_grad():
                assert teacher(rows).shape == alias[0](rows).shape
                target.weight.lerp_(model.weight, 0.2)
    job.keep(model=model, optimizer=optimizer, ema=ema.net, swa=swa, target=target)
    optimizer.close()


class Row:
    """A count of one kind of batch."""

    def __init__(self) -> None:
        self.n = 0


_calls = 0
marks = bytearray(2)


def crowded(job: Job) -> None:
    """Count behind a data set that is a list, and more of the kind."""
    samples = [([float(n)] * 6, float(n)) for n in range(2000)]
    words = {f"word {n}": n for n in range(8000)}
    model, loader, optimizer = built(job)
    rows, history, eta = [Row() for _ in range(20)], list[float](), 0.5
    job.start(optimizer, loader=loader)

    def count(loss: float) -> None:
        nonlocal eta
        global _calls
        rows[18].n += 1
        history.append(loss)
        eta *= 0.9
        marks[1] += 1
        _calls += 1

    for epoch in optimizer.epochs(3, loader):
        for (batch,) in epoch:
            count(stepped(job, model, optimizer, batch))
    assert len(samples) < len(words)
    optimizer.close()


class Harness:
    """Keeps a scheduler, and counts by itself: its state lacks its own count, and has one of the same name."""

    def __init__(self, scheduler: Any) -> None:
        self.last_epoch, self.scheduler = 0, scheduler

    def state_dict(self) -> dict[str, Any]:
        return {"scheduler": self.scheduler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(state["scheduler"])


class Runtime:
    """Called like a time."""

    def __init__(self) -> None:
        self.count = 0


class Counter(nn.Module):
    """Counts in a buffer that its state lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2), persistent=False)


class Driver:
    """Makes an attribute where an epoch begins."""

    def train(self, job: Job, epoch: Any, step: Any) -> None:
        self.losses = list[float]()
        for (rows,) in epoch:
            self.losses.append(step(rows))
        job.print(sum(self.losses))


def hidden(job: Job) -> None:
    """Change what other values seem to keep, or to be."""
    model, loader, optimizer = built(job)
    harness, runtime, counter, driver = Harness(torch.optim.lr_scheduler.StepLR(optimizer, 7)), Runtime(), Counter(), Driver()
    queue, share = Queue[int](), Fraction(0)
    job.start(optimizer, loader=loader, harness=harness, counter=counter)

    def step(rows: torch.Tensor) -> float:
        nonlocal share
        loss = stepped(job, model, optimizer, rows)
        harness.scheduler.step()
        harness.last_epoch, runtime.count = harness.last_epoch + 1, runtime.count + 1
        counter.seen += 1
        queue.put(len(rows))
        share += Fraction(1, 3)
        return loss

    for epoch in optimizer.epochs(4, loader):
        driver.train(job, epoch, step)
    optimizer.close()


SAID: dict[str, tuple[Script, tuple[str, ...], tuple[str, ...]]] = {  # what is named, and what is not
    # slots, defaults of arguments, the middle of a long dict, generators, one of two equal counters; no measured times
    "hard to see": (
        many_kinds,
        ("seen", "words", "slotted (Slotted)", "lacks calls", "python=python, numpy=numpy, generator=generator"),
        ("timings", "unused", "steps,", "epoch"),
    ),
    # also an object far behind in a list, and a name like that of a time
    "behind a large list": (
        crowded,
        (
            "rows[18] (Row) starts over",
            "history=[]",
            "eta=0.5",
            "calls=0",
            "state.calls in the loop in place of _calls",
            "marks",
        ),
        ("samples", "words"),
    ),
    "modules beside the model": (
        other_modules,
        ("optimizer.track(swa=swa, target=target, net=ema.net) before recover()",),
        ("teacher",),
    ),
    "hidden by other values": (
        hidden,
        (
            "harness (Harness) starts over at each start: state_dict() of Harness lacks last_epoch",
            "runtime (Runtime) starts over at each start: training changes count",
            "counter (Counter) starts over at each start: state_dict() of Counter lacks a buffer that is not persistent",
            "let Counter register its buffers as persistent ones",
            "share",
            "queue",
            "self.losses misses, in the epoch of a crash, the batches before it",
        ),
        (),
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_hard_to_find_is_named_before_any_crash(name: str, tmp_path: Path) -> None:
    script, named, unnamed = SAID[name]
    said = " ".join(finished(script, tmp_path, tmp_path / "run").heard.warnings)
    assert [words for words in named if words not in said] == [], said
    assert [words for words in unnamed if words in said] == [], said
