"""The demo from beginning to end.

A child process trains without TranLogs, as the reference. A second one trains with it and dies by SIGKILL at a random
moment. A third one, which starts from other weights and other random numbers, recovers and finishes. Then all that
could differ is compared bit for bit.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from tranlogs.base.config import GIB
from tranlogs.base.errors import UsageError

from .child_process import Account, ChildFailed, Kill, follow
from .display import Screen, Stage
from .figures import Acts, Figures, judge
from .job import PHASES, Job
from .loss_picture import Marks, draw
from .model import GPT_10M, GPT_SMALL, GPTConfig
from .table import print_table

MARKER = ".tranlogs-demo"  # in a folder that a demo made, and may replace


@dataclass(frozen=True, slots=True)
class Size:
    """Amount of training: `until` batches, or fewer if the machine does not reach them in `seconds_max`."""

    config: GPTConfig
    batch: int
    until: int
    threads: int
    seconds_max: float
    disk_bytes: int


# One thread: with two, matrix products may round otherwise from process to process, and a run would differ from itself.
FULL = Size(GPT_10M, batch=16, until=100, threads=1, seconds_max=80, disk_bytes=5 * GIB)
QUICK = Size(GPT_SMALL, batch=16, until=100, threads=1, seconds_max=12, disk_bytes=GIB)


def run_demo(folder: Path, *, quick: bool, seed: int | None, as_json: bool) -> int:
    """Run the demo in `folder`.

    Args:
        folder: made, or replaced where it is an earlier demo's.
        quick: a smaller model; under a minute.
        seed: of weights, random numbers and the moment of the kill; None draws one.
        as_json: print the figures as JSON and nothing else.

    Returns:
        The exit code: 0 if nothing differs, else 1.

    Raises:
        UsageError: the folder holds something else, or the disk has no room.
        ChildFailed: a training process failed on its own.
    """
    start = time.monotonic()
    size = QUICK if quick else FULL
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    _prepare(folder, size)
    screen = Screen(is_silent=as_json)
    screen.print(f"[bold]TranLogs demo[/bold], seed {seed}: train, kill, recover, compare\n")
    with screen:
        acts = _play(folder, size, seed, screen)
    figures = judge(seed, acts)
    figures = replace(figures, quick=quick, curves=_draw(figures, acts), seconds=time.monotonic() - start)
    if as_json:
        print(json.dumps(figures.as_dict(), indent=2))
    else:
        print_table(screen, figures)
    if figures.is_exact:
        _tidy(acts)
    return 0 if figures.is_exact else 1


def _prepare(folder: Path, size: Size) -> None:
    """Make an empty folder with a marker, and check that the disk has room for the run."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / MARKER).exists())):
        raise UsageError(f"{folder} holds something that no demo made; it stays as it is. Give another folder")
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        (folder / MARKER).touch()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise UsageError(f"{folder}: the demo cannot work there ({error}). Give another folder") from None
    if free < size.disk_bytes:
        raise UsageError(
            f"{folder}: the demo writes up to {size.disk_bytes / GIB:.0f} GiB, and {free / GIB:.1f} GiB are free "
            "there. Give another folder, or use --quick"
        )


def _play(folder: Path, size: Size, seed: int, screen: Screen) -> Acts:
    """Run the three child processes one after another. Together they would take each other's cores."""
    dice = random.Random(seed)
    threads = min(size.threads, len(os.sched_getaffinity(0)))
    plain = Job("reference", str(folder), size.config, size.batch, size.until, size.until, size.seconds_max, seed, threads)
    stage = screen.stage("1 plain torch", size.until)
    reference = follow(plain, partial(_show, stage))
    batches = len(reference.digests)
    stage.end(f"loss {reference.loss:.3f}", f"{batches} batches", done=batches, total=batches)

    logged = replace(
        plain, name="killed", until=batches, seconds_max=None, run=str(folder / "run"), checkpoint_every=batches // 2 + 1
    )  # one: after it the finished run has a log to look at
    kill = Kill(1 + int(batches * dice.uniform(0.75, 0.95)), dice.random())
    stage = screen.stage("2 with TranLogs", batches)
    killed = follow(logged, partial(_show, stage), kill)
    if killed.died_in is None:
        raise ChildFailed(logged, 0)
    stage.end("[bold red]SIGKILL[/bold red]", f"SIGKILL in batch {len(killed.digests)}, {PHASES[killed.died_in]}")

    again = replace(logged, name="recovered", seed=seed + 1)
    stage = screen.stage("3 recovered", batches)
    recovered = follow(again, partial(_show, stage))
    stage.end(f"loss {recovered.loss:.3f}", f"at batch {recovered.recovered['batch']}, then finished", done=batches)
    return Acts((plain, logged, again), reference, killed, recovered)


def _show(stage: Stage, account: Account) -> None:
    if account.digests:
        stage.at(account.batch, f"loss {account.loss:.3f}" if account.loss else "")


def _draw(figures: Figures, acts: Acts) -> str | None:
    """Draw the loss curves; return the path of the picture, or None if matplotlib is missing."""
    plain, _, again = acts.jobs
    reference, logged = (torch.load(job.state, weights_only=True)["loss"] for job in (plain, again))
    path = Path(plain.folder, "loss.png")
    crash = figures.crash
    landed = crash.checkpoint_step + crash.steps_replayed
    marks = Marks(crash.checkpoint_step, landed, crash.killed_in_batch, crash.killed_in)
    title = f"A GPT of {figures.training.parameters / 1e6:.1f} M parameters, killed with SIGKILL and recovered by TranLogs"
    try:
        draw(path, title, reference, logged, marks)
    except ImportError:
        return None
    return str(path)


def _tidy(acts: Acts) -> None:
    """Delete the files that were compared. The run stays, so that it can be inspected."""
    for job in acts.jobs:
        job.state.unlink(missing_ok=True)  # the killed child saved no state
        job.phase.unlink()
