"""What starts over in each process is named, before any crash and after it, and the report says so."""

from __future__ import annotations

import copy
import json
import pickle
import random
import signal
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from tests.kills.judge import demand_quiet, finish, finished, killed, prove_deaths
from tests.kills.pytorch import Death, Expected, Job, Script
from tests.torch.nets import seed

pytestmark = pytest.mark.crash

curve: dict[str, list[float]] = {"loss": []}
counts = [0, 0]


def demand_named(script: Script, folder: Path, expected: Expected, deaths: Sequence[Death]) -> None:
    """Demand that an uninterrupted run warns of what is not kept, and that a resume names it."""
    twin = finish(script, folder / "twin")
    whole = finish(script, folder / "whole", folder / "whole" / "run")
    assert whole[0].differences(twin[0]) == []
    demand_quiet(whole, folder / "whole" / "run", expected)
    last = prove_deaths(script, folder / "killed", twin, deaths, expected)
    assert last[0].differences(twin[0]), "nothing was lost, so that this script shows nothing"


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
    whole = finish(history, tmp_path / "whole", tmp_path / "whole" / "run")
    demand_quiet(whole, tmp_path / "whole" / "run", Expected(warns=("curve", "counts")))
    assert killed(history, tmp_path / "killed", Death("batch", number=13)) == -signal.SIGKILL
    last = finished(history, tmp_path / "killed", tmp_path / "killed" / "run")
    assert last.exact is True
    assert any("curve" in note and "counts" in note for note in last.notes), last.notes
    assert last.recheck == "equal"
    assert {name for name in last.files if last.files[name] != whole[0].files.get(name)} == {"curve.json"}


class Average(nn.Module):
    """An average of weights, whose decay grows with the number of updates; that number is not in its state_dict."""

    def __init__(self, model: nn.Module, every: int) -> None:
        super().__init__()
        self.shadow, self.updates, self.every = copy.deepcopy(model).requires_grad_(False), 0, every

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.updates += 1
        if self.updates % self.every == 0:
            for mean, value in zip(self.shadow.parameters(), model.parameters(), strict=True):
                mean.lerp_(value, 1 - min(0.999, (1 + self.updates) / (10 + self.updates)))


def averaged(job: Job, *, every: int) -> None:
    """Train, and average the weights."""
    seed()
    x = torch.randn(48, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 4))
    average = Average(model, every)
    loader = DataLoader(TensorDataset(x), batch_size=8, shuffle=True)
    optimizer = job.wrap(torch.optim.AdamW(model.parameters(), lr=2e-3), model)
    job.start(optimizer, loader=loader, average=average)
    for epoch in optimizer.epochs(5, loader):
        for (rows,) in epoch:
            noise = torch.randn_like(rows)
            loss = nn.functional.mse_loss(model(rows + noise), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update(model)
            job.at("batch")
        torch.save(average.state_dict(), f"average{int(epoch)}.pt")
    job.keep(model=model, optimizer=optimizer, average=average)
    optimizer.close()


@pytest.mark.parametrize(("every", "exact"), [(1, False), (10, None)])
def test_a_counter_that_is_not_in_the_state_dict_of_a_tracked_object_is_named(
    every: int, exact: bool | None, tmp_path: Path
) -> None:
    """The unit that is computed again comes out otherwise where each update counts; else it is equal, and proves nothing."""
    expected = Expected(exact=exact, because="updates", is_equal=False, warns=("updates",))
    demand_named(partial(averaged, every=every), tmp_path, expected, [Death("batch", number=14)])


def test_a_finished_run_that_writes_its_results_again_names_what_they_lack(tmp_path: Path) -> None:
    """Its loop does not run, and the list that is written is empty. Nothing that only the body sets is read behind the loop."""
    first = finished(history, tmp_path, tmp_path / "run")
    again = finished(history, tmp_path, tmp_path / "run")
    assert len(json.loads(first.files["curve.json"])["loss"]) == 25
    assert again.files["curve.json"] == b'{"loss": []}'
    assert next(note for note in again.notes if "over at each start" in note).startswith("curve and counts start over")
    assert not any("unset" in line for line in again.heard.lines), again.heard.lines


def built(job: Job) -> tuple[nn.Module, DataLoader[Any], Any]:
    seed()
    model = nn.Linear(6, 1)
    loader = DataLoader(TensorDataset(torch.randn(40, 6)), batch_size=8, shuffle=True)
    return model, loader, job.wrap(torch.optim.SGD(model.parameters(), lr=0.01), model)


def stepped(job: Job, model: nn.Module, optimizer: Any, rows: torch.Tensor) -> float:
    optimizer.zero_grad()
    loss = model(rows).square().mean()
    loss.backward()
    optimizer.step()
    job.at("batch")
    return loss.item()


class Meter:
    """A mean of an epoch."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.sum, self.count = 0.0, 0

    def update(self, value: float) -> None:
        self.sum, self.count = self.sum + value, self.count + 1

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def summed(job: Job) -> None:
    """Sum up the losses of an epoch, in a function that evaluates, too."""
    model, loader, optimizer = built(job)
    job.start(optimizer, loader=loader)
    best = 1e9
    for epoch in optimizer.epochs(4, loader):
        model.train()
        total, meter = 0.0, Meter()
        for (rows,) in epoch:
            loss = stepped(job, model, optimizer, rows)
            total += loss
            meter.update(loss)
        model.eval()
        best = min(best, loss)
        job.print(f"epoch {int(epoch)}: {total}, {meter.sum / meter.count}")
    job.keep(model=model, optimizer=optimizer)
    optimizer.close()


def summed_in_the_run(job: Job) -> None:
    """The same as the notes tell."""
    model, loader, optimizer = built(job)
    meter = Meter()
    state = optimizer.remember(total=0.0, best=1e9)
    job.start(optimizer, loader=loader, meter=meter)
    for epoch in optimizer.epochs(4, loader):
        model.train()
        state.total = 0.0
        meter.reset()
        for (rows,) in epoch:
            loss = stepped(job, model, optimizer, rows)
            state.total += loss
            meter.update(loss)
        model.eval()
        state.best = min(state.best, loss)
        job.print(f"epoch {int(epoch)}: {state.total}, {meter.sum / meter.count}")
    job.keep(model=model, optimizer=optimizer)
    optimizer.close()


def test_sums_of_an_epoch_are_named_with_a_line_that_keeps_them(tmp_path: Path) -> None:
    """By a fresh run and after a kill in the middle of an epoch; the line is right as it stands."""
    twin = finished(summed, tmp_path / "twin")
    whole = finished(summed, tmp_path / "whole", tmp_path / "whole" / "run")
    line = "optimizer.remember(total=0.0) before recover(), and state.total in the loop, with state.total = 0.0 where the epoch"
    assert any(line in text for text in whole.heard.warnings)
    for script in (summed, summed_in_the_run):
        folder = tmp_path / script.__name__
        assert killed(script, folder, Death("batch", number=8)) == -signal.SIGKILL
        last = finished(script, folder, folder / "run")
        assert last.exact is True
        named = [
            note.partition(": ")[0] for note in last.notes if "over at each start" in note or "the epoch of a crash" in note
        ]
        if script is summed:
            assert last.printed != twin.printed
            crash = "misses, in the epoch of a crash, the batches before it"
            assert sorted(note.partition(". ")[0] for note in named) == [
                "best starts over at each start",
                f"meter (Meter) {crash}",
                f"total {crash}",
            ]
        else:
            assert last.differences(twin) == []
            assert named == []


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


def test_what_is_hard_to_see_is_named(tmp_path: Path) -> None:
    """Slots, defaults of arguments, the middle of a long dict, generators, and one of two equal counters; no measured times."""
    said = " ".join(finished(many_kinds, tmp_path, tmp_path / "run").heard.warnings)
    for name in ("seen", "words", "python", "numpy", "generator", "slotted (Slotted)", "lacks calls"):
        assert name in said, said
    for name in ("timings", "unused", "steps,", "epoch"):
        assert name not in said, said
    assert "python=python, numpy=numpy, generator=generator" in said


def between(job: Job, *, guards: bool, remembers: bool) -> None:
    """Evaluate between two loops."""
    model, loader, optimizer = built(job)
    state = optimizer.remember(score=None) if remembers else SimpleNamespace(score=None)
    job.start(optimizer, loader=loader)
    for number in range(2):
        for epoch in optimizer.epochs(2, loader):
            for (rows,) in epoch:
                stepped(job, model, optimizer, rows)
        if not number and (state.score is None or not guards):
            state.score = model.weight.flatten().tolist()
            job.print("evaluated")
    job.print(state.score)
    job.keep(model=model, optimizer=optimizer)
    optimizer.close()


@pytest.mark.parametrize(("guards", "remembers"), [(False, False), (False, True), (True, True)])
def test_code_between_loops_is_guarded_by_the_line_that_the_note_gives(guards: bool, remembers: bool, tmp_path: Path) -> None:
    script = partial(between, guards=guards, remembers=remembers)
    twin = finished(script, tmp_path / "twin")
    assert killed(script, tmp_path / "killed", Death("batch", number=14)) == -signal.SIGKILL
    last = finished(script, tmp_path / "killed", tmp_path / "killed" / "run")
    assert last.printed.count("evaluated") == (1 if guards else 2)
    assert (last.printed == twin.printed) is guards
    assert any(note.startswith("state.score: another value") for note in last.notes) is not guards
    line = "optimizer.remember(score=None) before recover(), and `if state.score is None:` before the code that sets it"
    assert any(line in note for note in last.notes) is not guards


class Averaged:
    """An average of weights in an object of the script's own."""

    def __init__(self, model: nn.Module) -> None:
        self.net = copy.deepcopy(model)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for mean, value in zip(self.net.parameters(), model.parameters(), strict=True):
            mean.lerp_(value, 0.1)


def other_modules(job: Job, *, tracks: bool) -> None:
    """Average the weights in three ways beside the model, and have one that does not change."""
    model, loader, optimizer = built(job)
    ema, swa = Averaged(model), torch.optim.swa_utils.AveragedModel(model)
    target, teacher, alias = copy.deepcopy(model), copy.deepcopy(model), [model]
    job.start(optimizer, loader=loader, **({"net": ema.net, "swa": swa, "target": target} if tracks else {}))
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


@pytest.mark.parametrize("tracks", [False, True])
def test_modules_beside_the_model_are_named_with_the_line_that_keeps_them(tracks: bool, tmp_path: Path) -> None:
    script = partial(other_modules, tracks=tracks)
    twin = finished(script, tmp_path / "twin")
    whole = finished(script, tmp_path / "whole", tmp_path / "whole" / "run")
    line = "optimizer.track(swa=swa, target=target, net=ema.net) before recover()"
    assert any(line in text for text in whole.heard.warnings) is not tracks, whole.heard.warnings
    assert "teacher" not in " ".join(whole.heard.warnings)
    assert killed(script, tmp_path / "killed", Death("batch", number=13)) == -signal.SIGKILL
    last = finished(script, tmp_path / "killed", tmp_path / "killed" / "run")
    assert last.exact is True
    assert [line in note for note in last.notes if "over at each start" in note] == [True] * (not tracks)
    assert (last.differences(twin) == []) is tracks


class Row:
    """A count of one kind of batch."""

    def __init__(self) -> None:
        self.n = 0


_calls = 0
marks = bytearray(2)


def crowded(job: Job, *, keeps: bool) -> None:
    """Count behind a data set that is a list, and more of the kind."""
    global _calls, marks
    samples = [([float(n)] * 6, float(n)) for n in range(2000)]
    words = {f"word {n}": n for n in range(8000)}
    model, loader, optimizer = built(job)
    rows, history, eta = [Row() for _ in range(20)], list[float](), 0.5
    state = optimizer.remember(calls=0, marks=bytearray(2)) if keeps else SimpleNamespace(calls=0, marks=marks)
    job.start(optimizer, loader=loader)

    def count(loss: float) -> None:
        nonlocal eta
        global _calls
        rows[18].n += 1
        history.append(loss)
        eta *= 0.9
        state.marks[1] += 1
        if keeps:
            state.calls += 1
        else:
            _calls += 1

    for epoch in optimizer.epochs(3, loader):
        for (batch,) in epoch:
            count(stepped(job, model, optimizer, batch))
    assert len(samples) < len(words)
    job.print(state.calls if keeps else _calls, state.marks)
    job.keep(model=model, optimizer=optimizer)
    optimizer.close()


def test_what_counts_behind_a_large_list_is_named(tmp_path: Path) -> None:
    """Also an object far behind in a list and a name like that of a time; the line for a private name is right as it stands."""
    said = " ".join(finished(partial(crowded, keeps=False), tmp_path, tmp_path / "run").heard.warnings)
    for text in (
        "rows[18] (Row) starts over",
        "history=[]",
        "eta=0.5",
        "calls=0",
        "state.calls in the loop in place of _calls",
    ):
        assert text in said, said
    assert "marks" in said
    for name in ("samples", "words"):
        assert name not in said, said
    kept = partial(crowded, keeps=True)
    twin = finished(kept, tmp_path / "twin")
    assert killed(kept, tmp_path / "killed", Death("batch", number=9)) == -signal.SIGKILL
    assert finished(kept, tmp_path / "killed", tmp_path / "killed" / "run").printed == twin.printed


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


def test_what_other_values_hide_is_named(tmp_path: Path) -> None:
    said = " ".join(finished(hidden, tmp_path, tmp_path / "run").heard.warnings)
    for words in (
        "harness (Harness) starts over at each start: state_dict() of Harness lacks last_epoch",
        "runtime (Runtime) starts over at each start: training changes count",
        "counter (Counter) starts over at each start: state_dict() of Counter lacks a buffer that is not persistent",
        "let Counter register its buffers as persistent ones",
        "share",
        "queue",
        "self.losses misses, in the epoch of a crash, the batches before it",
    ):
        assert words in said, (words, said)


def phases(job: Job) -> None:
    """Set the rate, the best value and the weights where each phase begins, and save the weights where the first one ends."""
    model, loader, optimizer = built(job)
    state = optimizer.remember(best=0.0, phase=-1, rows=[])
    job.start(optimizer, loader=loader)
    for phase in range(3):
        state.best, state.phase = 0.0, phase
        optimizer.param_groups[0]["lr"] = 0.01
        with torch.no_grad():
            model.weight.fill_(0.1 * (phase + 1))
        for epoch in optimizer.epochs(2, loader):
            for (rows,) in epoch:
                state.best = max(state.best, stepped(job, model, optimizer, rows))
            optimizer.param_groups[0]["lr"] *= 0.5
        state.rows = [*state.rows, (phase, state.best)]
        if not phase:
            torch.save(model.state_dict(), "first.pt")
        for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), AveragedModel(model)):
            made.state_dict()  # a copy does without what watches the model between loops
    job.print(state.best, state.phase, state.rows, optimizer.param_groups[0]["lr"])
    job.keep(model=model, optimizer=optimizer)
    optimizer.close()


@pytest.mark.parametrize("number", [14, 23, 28])
def test_what_is_set_where_a_phase_begins_is_that_of_the_record(number: int, tmp_path: Path) -> None:
    """Also before the first loop, which is finished: that ran before the crash, too."""
    twin = finished(phases, tmp_path / "twin")
    assert killed(phases, tmp_path / "killed", Death("batch", number=number)) == -signal.SIGKILL
    last = finished(phases, tmp_path / "killed", tmp_path / "killed" / "run")
    assert last.differences(twin) == (["file first.pt"] if number > 10 else [])
    assert last.exact is True, last.notes
    notes = [note for note in last.notes if "to prove that this script" not in note]
    (note,) = notes
    assert note.startswith("state_dict() of the model was read before a loop")


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


def test_weights_that_are_saved_before_the_loop_are_named(tmp_path: Path) -> None:
    """At once, since the file has other weights after a crash."""
    expected = Expected(warns=("state_dict() of the model was read before a loop",))
    twin = finished(best, tmp_path / "twin")
    whole = finish(best, tmp_path / "whole", tmp_path / "whole" / "run")
    assert whole[0].differences(twin) == []
    demand_quiet(whole, tmp_path / "whole" / "run", expected)
    assert killed(best, tmp_path / "killed", Death("batch", number=14)) == -signal.SIGKILL
    last = finished(best, tmp_path / "killed", tmp_path / "killed" / "run")
    assert "file best.pt" in last.differences(twin)
    assert any(note.startswith("state_dict() of the model was read before a loop") for note in last.notes)


def reading(job: Job, *, has_first: bool) -> None:
    """Save behind the first loop what its last turn has set, and train on in a second one."""
    model, loader, optimizer = built(job)
    job.start(optimizer, loader=loader)
    loss = 0.0
    if has_first:
        number = -1
    for epoch in optimizer.epochs(2, loader):
        for (rows,) in epoch:
            loss = stepped(job, model, optimizer, rows)
        number = int(epoch)
    try:
        Path("between.json").write_text(json.dumps([number, loss]))
    except UnboundLocalError:
        Path("between.json").write_text("number is unset")
    for epoch in optimizer.epochs(2, loader):
        for (rows,) in epoch:
            stepped(job, model, optimizer, rows)
    job.keep(model=model, optimizer=optimizer)
    optimizer.close()


@pytest.mark.parametrize("has_first", [True, False])
def test_what_is_read_behind_a_finished_loop_is_named(has_first: bool, tmp_path: Path) -> None:
    """Also before any crash, and where it has no value at all after one."""
    script = partial(reading, has_first=has_first)
    twin = finished(script, tmp_path / "twin")
    whole = finish(script, tmp_path / "whole", tmp_path / "whole" / "run")
    assert whole[0].differences(twin) == []
    demand_quiet(whole, tmp_path / "whole" / "run", Expected(warns=("read behind a loop that sets them",)))
    assert killed(script, tmp_path / "killed", Death("batch", number=14)) == -signal.SIGKILL
    last = finished(script, tmp_path / "killed", tmp_path / "killed" / "run")
    assert last.differences(twin) == ["file between.json"]
    (note,) = [note for note in last.notes if "read behind" in note]
    assert "number and loss" in note or "loss and number" in note, note
    assert "state = optimizer.remember(" in note
