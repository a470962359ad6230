"""What a checkpoint takes from the training thread, over a memcpy of the state; and how much memory logging needs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import ask_child, command_line, measured_folder, quartiles, timed
from training_cases import batches, model_and_text

from tranlogs_torch import LoggedOptimizer


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Stall over memcpy; peak anonymous memory of a logged run less that of a plain one, in gradients and states."""
    found = _stall(quick=quick)
    print(f"  stall of a checkpoint {found['stall_ms']:.1f} ms, {found['over_memcpy']['median']:.2f} of a memcpy of the state")
    plain, logged = _peak("plain", quick=quick), _peak("logged", quick=quick)
    found["memory"] = {
        "plain_bytes": plain,
        "logged_bytes": logged,
        "gradient_bytes": found["gradient_bytes"],
        "state_bytes": found["state_bytes"],
        "extra_over_state": (logged - plain) / found["state_bytes"],
    }
    print(
        f"  peak memory {plain / 1e6:.0f} MB plain, {logged / 1e6:.0f} MB logged: {(logged - plain) / 1e6:+.0f} MB, where the "
        f"gradients are {found['gradient_bytes'] / 1e6:.0f} MB and the state is {found['state_bytes'] / 1e6:.0f} MB"
    )
    return found


def _stall(*, quick: bool) -> dict[str, Any]:
    model, windows = model_and_text(quick=quick)
    with measured_folder() as folder:
        optimizer = LoggedOptimizer(
            torch.optim.AdamW(model.parameters()), Path(folder) / "run", model, log="gradients", checkpoint_every=10**6
        )
        optimizer.recover()
        stream, turns = batches(windows), optimizer.steps(10**9)
        stalls: list[float] = []
        copies: list[float] = []
        target: list[Any] = []
        training_run = optimizer.training_run

        def train() -> None:
            next(turns)
            text, following = next(stream)
            model.loss(text, following).backward()  # type: ignore[operator]
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(4 if quick else 10):  # both are measured right behind a training step: with the caches as they are then
            train()
            next(turns)
            with timed(stalls):
                training_run.journal.checkpoint(training_run.state.snapshot(training_run.auxiliary.read()))
            training_run.journal.wait_checkpoint()
            train()
            tensors = [*model.parameters(), *(t for s in optimizer.state.values() for t in s.values())]
            source = [t.detach().numpy() for t in tensors]
            target = target or [np.ones_like(a) for a in source]
            with timed(copies):
                for a, b in zip(target, source, strict=True):
                    np.copyto(a, b)
        optimizer.close()
    ratios = [a / b for a, b in zip(stalls[2:], copies[2:], strict=True)]
    return {
        "stall_ms": quartiles(stalls[2:])[1] * 1e3,
        "over_memcpy": dict(zip(("q25", "median", "q75"), quartiles(ratios), strict=True)),
        "state_bytes": sum(a.nbytes for a in source),
        "gradient_bytes": sum(p.numel() * 4 for p in model.parameters()),
    }


def _peak(kind: str, *, quick: bool) -> int:
    """Peak anonymous memory of a child that trains (the log's mapped file is page cache, and not counted)."""
    return int(ask_child(__file__, "--child", kind, *["--quick"] * quick)["peak"])


def _child(kind: str, *, quick: bool) -> None:
    model, windows = model_and_text(quick=quick)
    stream, peak = batches(windows), 0
    with measured_folder() as folder:
        optimizer: Any = torch.optim.AdamW(model.parameters())
        steps = 4 if quick else 12
        turns = iter(range(steps))
        if kind == "logged":
            optimizer = LoggedOptimizer(optimizer, Path(folder) / "run", model, log="gradients", checkpoint_every=3)
            optimizer.recover()
            turns = optimizer.steps(steps)
        for _ in turns:
            text, following = next(stream)
            model.loss(text, following).backward()  # type: ignore[operator]
            peak = max(peak, _anonymous_bytes())
            optimizer.step()
            peak = max(peak, _anonymous_bytes())
            optimizer.zero_grad()
        if kind == "logged":
            optimizer.close()
    print(json.dumps({"peak": peak}))


def _anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the system does not say how much memory a process has")


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--child", choices=["plain", "logged"])
    arguments = parser.parse_args()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    if arguments.child:
        _child(arguments.child, quick=arguments.quick)
    else:
        measure(quick=arguments.quick)
