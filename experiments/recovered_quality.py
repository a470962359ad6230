"""Loss and accuracy right after recovery, for a crash at each point of a checkpoint interval: TranLogs, checkpoints alone.

    python experiments/recovered_quality.py [--quick] [--out FILE]

For each point a process trains and dies by SIGKILL in the batch behind it: in its forward pass, behind its backward pass, or
behind the optimizer's step, in turn. That process logs its steps, and beside that saves everything by torch.save, fsync and
rename once an interval. Then each way brings back what it has, no batch is computed again, and both models are judged on
data that was held back. The uninterrupted run is plain torch without any saving. The script fails if what TranLogs
brings back differs from it in one bit.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from harness import command_line, measured_folder, take
from pictures import draw_recovered_quality
from torch import Tensor, nn
from workloads import NAMES, Workload, loss_of, optimizer_of, workload

from tranlogs_demo.training import plain_batches
from tranlogs_torch import LoggedOptimizer

PLACES = ("in the forward pass", "behind the backward pass", "behind the optimizer's step")
_SEED = 0
_FORK = multiprocessing.get_context("fork")  # what is imported need not be imported again; with one thread there is no pool


@dataclass(frozen=True, slots=True)
class Size:
    """Which crashes: steps of a checkpoint interval, intervals (from 1), steps into each, models, steps between looks."""

    interval: int
    intervals: tuple[int, ...]
    into: tuple[int, ...]
    names: Sequence[str]
    look: int

    @property
    def points(self) -> list[int]:
        """Steps that are done when a process is killed."""
        return [interval * self.interval + into for interval in self.intervals for into in self.into]


FULL = Size(interval=40, intervals=(1, 3), into=tuple(range(40)), names=NAMES, look=1)
QUICK = Size(interval=4, intervals=(1,), into=(1, 3), names=NAMES[:1], look=2)


def measure(*, quick: bool = False) -> dict[str, Any]:
    """All models, crash by crash."""
    size, models = QUICK if quick else FULL, {}
    with measured_folder() as folder:
        for name in size.names:
            work = workload(name, small=True)
            reference = Reference(work, size)
            points = []
            for i, step in enumerate(size.points):
                with tempfile.TemporaryDirectory(dir=folder) as place:
                    points.append(_crash(work, size, reference, step, i % len(PLACES), Path(place)))
            parameters = sum(value.numel() for value in reference.states[size.points[0]].values())
            models[name] = {"data": work.data, "parameters": parameters, "curve": reference.curve, "points": points}
    return {"interval": size.interval, "intervals": size.intervals, "places": PLACES, "models": models}


class Reference:
    """The uninterrupted run.

    Attributes:
        curve: its quality at some steps.
        states: of the model, at the points where others are killed.
    """

    def __init__(self, work: Workload, size: Size) -> None:
        self.curve: list[dict[str, float]] = []
        self.states: dict[int, dict[str, Tensor]] = {}
        model = work.model(_SEED)
        optimizer = optimizer_of(model)
        for step, (x, y) in enumerate(plain_batches(work.loader(), max(size.points) + 1)):
            if step in size.points or (step % size.look == 0 and step >= size.interval * size.intervals[0]):
                self.curve.append({"step": step, **work.quality(model)})
            if step in size.points:
                self.states[step] = {name: value.clone() for name, value in model.state_dict().items()}
            loss_of(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    def quality(self, step: int) -> dict[str, float]:
        """At a step that was looked at."""
        return next(seen for seen in self.curve if seen["step"] == step)


def _crash(work: Workload, size: Size, reference: Reference, step: int, place: int, folder: Path) -> dict[str, Any]:
    """Kill a process in the batch behind `step`, and bring back what there is of it in both ways."""
    process = _FORK.Process(target=train, args=(work, folder, size.interval, step, place))
    process.start()
    process.join()
    if process.exitcode != -signal.SIGKILL:
        raise SystemExit(
            f"{work.name}: the process that trains until step {step} ended with {process.exitcode}, not by SIGKILL"
        )
    ours, report = _from_log(work, reference, step, folder)
    model = work.model(_SEED + 1)
    checkpoint = torch.load(folder / "state.pt", weights_only=True)
    model.load_state_dict(checkpoint["model"])
    theirs = work.quality(model)
    lost = step - checkpoint["step"]
    print(
        f"  {work.name:5s} killed {lost:2d} steps behind the checkpoint, {PLACES[place]:27s} loss {ours['loss']:.4f} "
        f"(checkpoint {theirs['loss']:.4f}), accuracy {ours['accuracy']:.1%} ({theirs['accuracy']:.1%})",
        flush=True,
    )
    return {
        "step": step,
        "place": place,
        "tranlogs": {"step": report.step, "replayed": report.replayed, **ours},
        "checkpoint": {"step": checkpoint["step"], **theirs},
        "uninterrupted": reference.quality(step),
    }


def _from_log(work: Workload, reference: Reference, step: int, folder: Path) -> tuple[dict[str, float], Any]:
    """TranLogs' recovery, which must be the uninterrupted run at that step."""
    model = work.model(_SEED + 1)
    with LoggedOptimizer(optimizer_of(model), folder / "run", model, log="gradients") as optimizer:
        report = optimizer.track(loader=work.loader()).recover()
    differing = [name for name, value in model.state_dict().items() if not torch.equal(value, reference.states[step][name])]
    quality = work.quality(model)
    same = {"step": report.step, **quality} == reference.quality(step)
    if differing or not same or report.exact is not True:
        raise SystemExit(f"{work.name}: not the uninterrupted run at step {step}: {differing}, {quality}, {report}")
    return quality, report


# The process that is killed.


def train(work: Workload, folder: Path, interval: int, at: int, place: int) -> None:
    """Train until `at` steps are done, and die in the next batch."""
    model = work.model(_SEED)
    loader = work.loader()
    optimizer = LoggedOptimizer(
        optimizer_of(model), folder / "run", model, log="gradients", checkpoint_every=interval, fingerprint="full"
    )
    optimizer.track(loader=loader).recover()
    for step, (x, y) in enumerate(optimizer.batches(loader, until=at + 1)):
        _die(step == at and place == 0)
        loss_of(model(x), y).backward()
        _die(step == at and place == 1)
        optimizer.step()
        _die(step == at and place == 2)
        optimizer.zero_grad()
        if (step + 1) % interval == 0:
            _save(folder / "state.pt", model, optimizer, step + 1)


def _die(now: bool) -> None:
    if now:
        os.kill(os.getpid(), signal.SIGKILL)


def _save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """A checkpoint as one writes it oneself."""
    with open(path.with_suffix(".tmp"), "wb") as file:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path.with_suffix(".tmp"), path)


def main() -> None:
    parser = command_line(__doc__, "one model, two crashes: checks the script, not the claim", out="recovered_quality")
    torch.set_num_threads(1)  # with more, products may round otherwise from process to process
    take(parser, measure, draw_recovered_quality)


if __name__ == "__main__":
    main()
