"""What logging every step costs a training step, beside saving everything at every step by other means.

All contenders train the same model from the same start on the same batches in one process. They take turns in blocks of
a few steps; the first step of a block is not counted, and what a contender still has to write is waited for between
blocks, so that none pays for another.
"""

from __future__ import annotations

import argparse
import copy
import os
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from measuring import batches, model_and_text, quartiles, seconds, shown
from torch import nn

from tranlogs_torch import LoggedOptimizer

_STEPS = 5  # in a block; the first is not counted


class Plain:
    """Training without any saving; also the base of the others."""

    def __init__(self, model: nn.Module, folder: Path) -> None:
        self.model, self.folder = copy.deepcopy(model), folder
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)

    def step(self, text: torch.Tensor, following: torch.Tensor) -> None:
        self.model.loss(text, following).backward()  # type: ignore[operator]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.save()

    def save(self) -> None:
        """After each step."""

    def drain(self) -> None:
        """Wait for what is still being written."""

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


class Logged(Plain):
    """TranLogs, with the settings under test."""

    def __init__(self, model: nn.Module, folder: Path, **settings: Any) -> None:
        super().__init__(model, folder)
        wrapped = LoggedOptimizer(self.optimizer, folder / "run", self.model, checkpoint_every=24, keep=1, **settings)
        wrapped.recover()
        self.optimizer, self._turns = wrapped, wrapped.steps(10**9)
        self.session = wrapped.session
        next(self._turns)

    _turns: Iterator[int]

    def save(self) -> None:
        next(self._turns)

    def drain(self) -> None:
        self.session.journal.wait_synced()
        self.session.journal.wait_checkpoint()


class TorchSave(Plain):
    """torch.save of everything to a temporary name, fsync, rename."""

    def save(self) -> None:
        temporary = self.folder / "state.tmp"
        with open(temporary, "wb") as file:
            torch.save(self.state(), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.folder / "state.pt")


class DcpAsync(Plain):
    """torch.distributed.checkpoint.async_save of everything; it waits for the one before."""

    _pending: Future[Any] | None = None

    def save(self) -> None:
        self.drain()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._pending = dcp.async_save(self.state(), checkpoint_id=str(self.folder / "dcp"), no_dist=True)  # type: ignore

    def drain(self) -> None:
        if self._pending is not None:
            self._pending.result()


def contenders(model: nn.Module, folder: Path) -> dict[str, Plain]:
    """All of them, each with a folder of its own."""
    made: dict[str, Plain] = {}
    for name, build in {
        "no logging": Plain,
        "no logging, again (noise)": Plain,
        "tranlogs gradients, process": lambda m, f: Logged(m, f, durability="process"),
        "tranlogs gradients, machine": lambda m, f: Logged(m, f, durability="machine"),
        "tranlogs gradients, machine, handed over": lambda m, f: Logged(m, f, durability="machine", handover="thread"),
        "tranlogs weights, machine": lambda m, f: Logged(m, f, durability="machine", log="weights"),
        "torch.save + fsync + rename": TorchSave,
        "dcp.async_save": DcpAsync,
    }.items():
        place = folder / name.replace(" ", "-").replace(",", "")
        place.mkdir()
        made[name] = build(model, place)
    return made


def measure(*, quick: bool = False, rounds: int | None = None) -> dict[str, Any]:
    """Median step time of each contender over that of plain training, block by block."""
    model, windows = model_and_text(quick=quick)
    rounds = rounds or (2 if quick else 6)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TRANLOGS_BENCH_DIR")) as folder:
        runs = contenders(model, Path(folder))
        times: dict[str, list[list[float]]] = {name: [] for name in runs}
        streams = {name: batches(windows) for name in runs}
        for _ in range(rounds):
            for name, run in runs.items():
                block = [seconds(partial(run.step, *next(streams[name]))) for _ in range(_STEPS)]
                times[name].append(block[1:])
                run.drain()
        report = {name: _ratios(times[name], times["no logging"]) for name in runs}
        written = {name: run.session.journal.log_bytes for name, run in runs.items() if isinstance(run, Logged)}
        for run in runs.values():
            if isinstance(run, Logged):
                run.optimizer.close()  # type: ignore[attr-defined]
    steps = rounds * _STEPS
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters / 1e6:.1f} M parameters; ratio of step time to no logging, median [quartiles] over blocks")
    for name, found in report.items():
        extra = f"   {written[name] / steps / 1e6:.1f} MB a step" if name in written else ""
        print(f"  {name:42s} {found['shown']}{extra}   step {found['seconds'] * 1e3:.0f} ms")
    return {"parameters": parameters, "ratios": report, "bytes_per_step": {n: b / steps for n, b in written.items()}}


def _ratios(mine: list[list[float]], plain: list[list[float]]) -> dict[str, Any]:
    ratios = [quartiles(a)[1] / quartiles(b)[1] for a, b in zip(mine, plain, strict=True)]
    low, middle, high = quartiles(ratios)
    everything = [s for block in mine for s in block]
    return {"median": middle, "q25": low, "q75": high, "shown": shown(ratios), "seconds": quartiles(everything)[1]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    measure(quick=parser.parse_args().quick)
