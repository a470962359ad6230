"""Loss and accuracy right after recovery, for a crash at each point of a checkpoint interval: TranLogs, checkpoints alone.

    python experiments/recovered_quality.py [--quick] [--out FILE]

For each point a process trains and dies by SIGKILL in the batch behind it: in its forward pass, behind its backward pass, or
behind the optimizer's step, in turn. That process logs its steps, and beside that saves everything by torch.save, fsync and
rename once an interval. Then each way brings back what it has, no batch is computed again, and both models are judged on
data that was held back. The uninterrupted run is plain torch without any saving. The script fails if what TranLogs
brings back differs from it in one bit.
"""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import torch
from harness import ask_child, measured_folder, take
from pictures import draw_recovered_quality
from torch import Tensor, nn
from workloads import NAMES, Workload, loss_of, optimizer_of, workload

from tranlogs_demo.training import plain_batches
from tranlogs_torch import LoggedOptimizer

PLACES = ("in the forward pass", "behind the backward pass", "behind the optimizer's step")
_SEED = 0


def measure(*, quick: bool) -> dict[str, Any]:
    """Kill all models at all points."""
    interval, intervals, names = (4, (1,), NAMES[:1]) if quick else (40, (1, 3), NAMES)
    steps = [number * interval + into for number in intervals for into in ((1, 3) if quick else range(interval))]
    models = {}
    with measured_folder() as folder:
        for name in names:
            work = workload(name, small=True)
            curve, states = _train_plain(work, steps)
            points = []
            for i, step in enumerate(steps):
                with tempfile.TemporaryDirectory(dir=folder) as place:
                    points.append(_crash(work, interval, curve, states[step], step, i % len(PLACES), Path(place)))
            models[name] = {"curve": curve, "points": points}
    return {"interval": interval, "intervals": intervals, "models": models}


def _train_plain(work: Workload, steps: list[int]) -> tuple[list[dict[str, float]], dict[int, dict[str, Tensor]]]:
    """Train without interruption; return the quality from the first of some steps on, and the states at these."""
    curve: list[dict[str, float]] = []
    states: dict[int, dict[str, Tensor]] = {}
    model = work.model(_SEED)
    optimizer = optimizer_of(model)
    for step, (x, y) in enumerate(plain_batches(work.loader(), max(steps) + 1)):
        if step >= steps[0]:
            curve.append({"step": step, **work.quality(model)})
        if step in steps:
            states[step] = {name: value.clone() for name, value in model.state_dict().items()}
        loss_of(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return curve, states


def _crash(
    work: Workload, interval: int, curve: list[dict[str, float]], state: dict[str, Tensor], step: int, place: int, folder: Path
) -> dict[str, Any]:
    """Kill a process in the batch behind `step`, and bring back what there is of it in both ways."""
    if ask_child(_train, work, folder, interval, step, place, is_fork=True) is not None:
        raise SystemExit(f"{work.name}: the process that trains until step {step} did not die by SIGKILL")
    uninterrupted = next(seen for seen in curve if seen["step"] == step)
    model = work.model(_SEED + 1)
    with LoggedOptimizer(optimizer_of(model), folder / "run", model, log="gradients") as optimizer:
        report = optimizer.track(loader=work.loader()).recover()
    differing = [name for name, value in model.state_dict().items() if not torch.equal(value, state[name])]
    ours = {"step": report.step, **work.quality(model)}
    if differing or ours != uninterrupted or report.exact is not True:
        raise SystemExit(f"{work.name}: not the uninterrupted run at step {step}: {differing}, {ours}, {report}")
    checkpoint = torch.load(folder / "state.pt", weights_only=True)
    model.load_state_dict(checkpoint["model"])
    theirs = {"step": checkpoint["step"], **work.quality(model)}
    print(f"  {work.name}, killed {PLACES[place]} of step {step + 1}: {ours}, checkpoint {theirs}", flush=True)
    return {
        "step": step,
        "tranlogs": {"replayed": report.replayed, **ours},
        "checkpoint": theirs,
        "uninterrupted": uninterrupted,
    }


# The process that is killed.


def _train(work: Workload, folder: Path, interval: int, at: int, place: int) -> bool:
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
    return True


def _die(now: bool) -> None:
    if now:
        os.kill(os.getpid(), signal.SIGKILL)


def _save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write a checkpoint as one writes it oneself."""
    with open(path.with_suffix(".tmp"), "wb") as file:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path.with_suffix(".tmp"), path)


if __name__ == "__main__":
    torch.set_num_threads(1)  # with more, products may round otherwise from process to process, and a fork has no pool
    take(__doc__, "recovered_quality", measure, draw_recovered_quality)
