"""The demo from beginning to end.

A process trains without TranLogs, as the reference. A second one trains with it and dies by SIGKILL at a random moment.
A third one, which starts from other weights and other random numbers, recovers and finishes. Then all that could differ is
compared bit for bit.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import xxhash
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tranlogs.base.config import GIB
from tranlogs.base.errors import TranLogsError, UsageError

from .training import GPT_10M, GPT_SMALL, THREADS, Job

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FULL = Job("reference", "", GPT_10M, batch=16, until=100, schedule=100, seed=0, seconds_max=80)
QUICK = replace(FULL, config=GPT_SMALL, seconds_max=12)
_DISK_BYTES = {False: 5 * GIB, True: GIB}
_MARKER = ".tranlogs-demo"  # in a folder that a demo made, and may replace
_WARM_UP = 3  # batches that are not timed: memory is touched for the first time
_PARTS = {  # key in the file of the final state -> name, and what there is of it
    "weights": ("weights", "{} tensors"),
    "optimizer": ("optimizer", "{} tensors and settings"),
    "scheduler": ("scheduler", "{} values"),
    "random": ("random numbers", "torch, numpy, Python"),
    "loss": ("loss curve", "{} points"),
}
_DIFFERENCES_SHOWN = 5  # of each part
_INK, _RED, _PALE, _WIDE = "#1f2937", "#dc2626", "#fee2e2", "#93c5fd"


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
        ProcessFailed: a training process failed on its own.
    """
    start = time.monotonic()
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    _prepare(folder, _DISK_BYTES[quick])
    console = Console(quiet=as_json, highlight=False)
    console.print(f"[bold]TranLogs demo[/bold], seed {seed}: train, kill, recover, compare\n")
    first = replace(QUICK if quick else FULL, folder=str(folder), seed=seed)
    lives = _play(first, console)
    figures = judge(*lives)
    figures |= {"seed": seed, "quick": quick, "curves": _draw(figures, *lives), "seconds": time.monotonic() - start}
    if as_json:
        print(json.dumps(figures, indent=2))
    else:
        _print(console, figures)
    if figures["is_exact"]:  # the run stays, so that it can be looked at
        for life in lives:
            life.job.state.unlink(missing_ok=True)  # the killed process saved none
    return 0 if figures["is_exact"] else 1


def _prepare(folder: Path, disk_bytes: int) -> None:
    """Make an empty folder with a marker, and check that the disk has room for the run."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / _MARKER).exists())):
        raise UsageError(f"{folder} holds something that no demo made; it stays as it is. Give another folder")
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        (folder / _MARKER).touch()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise UsageError(f"{folder}: the demo cannot work there ({error}). Give another folder") from None
    if free < disk_bytes:
        raise UsageError(
            f"{folder}: the demo writes up to {disk_bytes / GIB:.0f} GiB, and {free / GIB:.1f} GiB are free there. "
            "Give another folder, or use --quick"
        )


# The processes


class ProcessFailed(TranLogsError):
    """A training process of the demo ended with an error of its own."""

    def __init__(self, job: Job, code: int) -> None:
        output = job.log.read_text(errors="replace").strip().splitlines()
        super().__init__(
            f"the training process {job.name!r} ended with exit code {code}: {output[-1] if output else 'it printed nothing'}. "
            f"The whole output is in {job.log}"
        )


@dataclass(slots=True)
class Life:
    """Events of one training process.

    Attributes:
        job: what it trains.
        built, recovered, finished: the events of these names; empty where it did not come to them.
        digests: of the batches that it began, and `began_at`, when.
        loss: of its newest finished batch.
        phase: where in a step it is, or died.
        was_killed: True if it died by SIGKILL.
    """

    job: Job
    built: dict[str, Any] = field(default_factory=dict)
    recovered: dict[str, Any] = field(default_factory=dict)
    finished: dict[str, Any] = field(default_factory=dict)
    digests: list[str] = field(default_factory=list)
    began_at: list[float] = field(default_factory=list)
    loss: float = 0.0
    phase: str = "before its first batch"
    was_killed: bool = False

    def hear(self, event: dict[str, Any]) -> None:
        """Take in one event."""
        kind = event.pop("event")
        self.loss = event.get("loss") or self.loss
        if kind == "batch":
            self.digests.append(event["digest"])
            self.began_at.append(event["at"])
        elif kind == "phase":
            self.phase = event["phase"]
        else:
            setattr(self, kind, event)

    @property
    def landed(self) -> int:
        """Number of batches that recovery brought back."""
        return int(self.recovered.get("batch", 0))

    @property
    def rechecked(self) -> int:
        """Number of batches that it computed again, as a proof: 0 or 1."""
        return 1 if self.recovered["recheck"] else 0

    @property
    def step_seconds(self) -> list[float]:
        """Time from batch to batch, without the first few."""
        return [b - a for a, b in itertools.pairwise(self.began_at[_WARM_UP:])]


def follow(job: Job, watch: Callable[[Life], None] = lambda life: None, *, kill_in: int = 0, share: float = 0.0) -> Life:
    """Run a training process to its end, or kill it in a batch, counted from 1, after this share of a median step.

    Raises:
        ProcessFailed: it ended otherwise.
    """
    life = Life(job)
    command = [sys.executable, "-m", f"{__package__}.training", job.to_json()]
    with open(job.log, "wb") as log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                life.hear(json.loads(line))
                watch(life)
                if kill_in and len(life.digests) == kill_in and process.returncode is None:
                    time.sleep(share * statistics.median(life.step_seconds or [0.0]))
                    process.kill()
                    process.wait()  # its earlier events stay in the pipe
        except BaseException:
            process.kill()
            raise
    life.was_killed = bool(kill_in) and process.returncode == -signal.SIGKILL
    if not life.was_killed and (process.returncode != 0 or not life.finished):
        raise ProcessFailed(job, process.returncode)
    return life


def _play(first: Job, console: Console) -> tuple[Life, Life, Life]:
    """Run the three processes one after another. Together they would take each other's cores."""
    dice = random.Random(first.seed)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    # Drawing takes a core from the training process for a moment, so it is done seldom.
    bars = Progress(*columns, TextColumn("{task.fields[note]}"), console=console, refresh_per_second=4)
    bars.disable = not console.is_terminal or console.quiet

    def stage(title: str, job: Job, **kill: Any) -> Life:
        bar = bars.add_task(title, total=job.until, note="")

        def watch(life: Life) -> None:
            bars.update(bar, completed=life.landed + len(life.digests), note=f"loss {life.loss:.3f}" if life.loss else "")

        if bars.disable:
            console.print(f"{title} ...")
        life = follow(job, watch, **kill)
        done = life.landed + len(life.digests)
        note = f"SIGKILL in batch {done}, {life.phase}" if life.was_killed else f"loss {life.loss:.3f}"
        bars.update(bar, completed=done, total=job.until if life.was_killed else done, note=note)
        bars.stop_task(bar)
        if bars.disable:
            console.print(f"{title}: {note}")
        return life

    with bars:
        reference = stage("1 plain torch", first)
        batches = len(reference.digests)
        # One checkpoint, in the middle: after it the finished run has a log to look at.
        logged = replace(first, name="killed", until=batches, seconds_max=None, checkpoint_every=batches // 2 + 1)
        logged = replace(logged, run=str(Path(first.folder, "run")))
        kill_in = 1 + int(batches * dice.uniform(0.75, 0.95))
        killed = stage("2 with TranLogs", logged, kill_in=kill_in, share=dice.random())
        if not killed.was_killed:
            raise ProcessFailed(logged, 0)
        return reference, killed, stage("3 recovered", replace(logged, name="recovered", seed=first.seed + 1))


# The comparison


@dataclass(frozen=True, slots=True)
class Compared:
    """One part of what two runs ended with: its name, its extent in words, a digest of it, and where it differs."""

    what: str
    extent: str
    digest: str
    differences: list[str]


def compare(what: str, extent: str, one: Any, other: Any) -> Compared:
    """Compare two trees of plain values and tensors bit for bit: -0.0 and 0.0 differ. In `extent`, {} is their number."""
    mine, theirs = (dict(_leaves(tree)) for tree in (one, other))
    found = [f"{what}: {path} is in one run only" for path in [*mine, *theirs] if (path in mine) != (path in theirs)]
    found += [f"{what}: {path} differs" for path in mine if path in theirs and mine[path] != theirs[path]]
    if len(found) > _DIFFERENCES_SHOWN:
        found[_DIFFERENCES_SHOWN:] = [f"{what}: {len(found) - _DIFFERENCES_SHOWN} more"]
    return Compared(what, extent.format(len(mine)), xxhash.xxh3_64_hexdigest(repr(theirs).encode()), found)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield path and content of each leaf, a tensor as dtype, shape and a digest of its bytes."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}[{key!r}]" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _leaves(item, f"{path}[{i}]")
    elif isinstance(value, torch.Tensor):
        data = value.contiguous().reshape(-1).view(torch.uint8).numpy().data
        yield path, (str(value.dtype), str(tuple(value.shape)), xxhash.xxh3_128_hexdigest(data))
    else:
        yield path, (type(value).__name__, repr(value))


def judge(reference: Life, killed: Life, recovered: Life) -> dict[str, Any]:
    """Compare, count and measure; return the figures of the demo as plain values."""
    report = recovered.recovered
    began = len(killed.digests)
    mine, theirs = (torch.load(life.job.state, weights_only=True) for life in (reference, recovered))
    parts = [compare(what, extent, mine[key], theirs[key]) for key, (what, extent) in _PARTS.items()]
    order = killed.digests[: recovered.landed] + recovered.digests
    parts.append(compare("order of batches", "{} batches", reference.digests, order))
    differences = [difference for part in parts for difference in part.differences] + _broken_promises(killed, recovered)
    plain, logged = map(statistics.median, (reference.step_seconds, killed.step_seconds + recovered.step_seconds))
    return {
        "parameters": reference.built["parameters"],
        "characters": reference.built["characters"],
        "sequences": f"{reference.job.batch} x {reference.job.config.block}",
        "threads": THREADS,
        "batches": len(reference.digests),
        "killed_in_batch": began,
        "killed_in": killed.phase,
        "steps_lost": began - recovered.landed - recovered.rechecked,
        "steps_replayed": report["replayed"],
        "checkpoint_step": report["checkpoint_step"],
        "recover_seconds": report["seconds"],
        "replay_seconds": report["seconds_replay"],
        "recompute_seconds": report["replayed"] * logged,
        "step_seconds_plain": plain,
        "step_seconds_logged": logged,
        "overhead_ratio": logged / plain,  # rough: measured one after the other
        "log_bytes_per_step": round(recovered.finished["log_bytes"] / max(len(recovered.digests), 1)),
        "compared": {part.what: not part.differences for part in parts},
        "extents": {part.what: f"{part.extent}, {part.digest[:12]}" for part in parts},
        "differences": differences,
        "is_exact": not differences,
        "run": str(killed.job.run),
    }


def _broken_promises(killed: Life, recovered: Life) -> list[str]:
    """Return the promises that recovery did not keep, although the outcome may be the same."""
    began, landed, rechecked = len(killed.digests), recovered.landed, recovered.rechecked
    final, found = recovered.finished["report"], []
    if not began - 1 <= landed + rechecked <= began:  # a crash may take the effects of the batch that it came into
        found.append(f"recovery came to batch {landed + rechecked}, and {began} had begun")
    if final["exact"] is not True:
        found.append(f"recovery did not find itself exact: {'; '.join(final['notes'])}")
    if rechecked and final["recheck"] != "equal":
        found.append("the last batch before the crash was not computed again, or came out otherwise")
    if killed.digests[landed:] != recovered.digests[: began - landed]:
        found.append("the batch in flight came back with other content")
    return found


# What people see


def commands(run: str, steps: int) -> tuple[str, ...]:
    """Return commands that show the last step of a run. Its only checkpoint is of its middle, so the log holds that step."""
    words = "status {0}", "log {0} --step {1}", "verify {0} --replay", "replay {0} --step {1} --out state.pt"
    return tuple(word.format(run, steps) for word in words)


def _print(console: Console, f: dict[str, Any]) -> None:
    """Print what happened, what it cost, what was compared and the verdict, in 80 columns."""
    redone, again = f["steps_replayed"], f["recompute_seconds"]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    a_parameter = f["log_bytes_per_step"] / f["parameters"]
    recover = [("time to recover", f"{f['recover_seconds']:.2f} s", "in all: reading the log, loading, redoing")]
    if redone:
        redoing = f["replay_seconds"]
        ratios = f"{again / redoing:.0f} x redoing, {again / f['recover_seconds']:.0f} x all of it"
        recover.append(("  of it redoing", f"{redoing:.2f} s", f"{redoing / redone * 1e3:.0f} ms a step"))
        recover.append(("computing again", f"{again:.1f} s", f"{again / redone * 1e3:.0f} ms a step: {ratios}"))
    tables = (
        [
            ("model", f"{f['parameters'] / 1e6:.1f} M parameters", "a small GPT, next character, dropout"),
            ("text", f"{f['characters']:,} characters", f"the help texts of Python {python}"),
            ("training", f"{f['batches']} batches", f"of {f['sequences']} characters, {f['threads']} thread"),
        ],
        [
            ("SIGKILL", f"in batch {f['killed_in_batch']}", f["killed_in"]),
            ("steps lost", f"{f['steps_lost']}", "the one it was in" if f["steps_lost"] else ""),
            ("steps replayed", f"{redone}", f"from the checkpoint at step {f['checkpoint_step']}"),
            *recover,
        ],
        [
            ("step, not logged", f"{f['step_seconds_plain'] * 1e3:.0f} ms", "median"),
            (
                "step, logged",
                f"{f['step_seconds_logged'] * 1e3:.0f} ms",
                f"{f['overhead_ratio']:.2f} x (rough; `make bench` pairs them)",
            ),
            ("log", f"{f['log_bytes_per_step'] / 1e6:.1f} MB a step", f"{a_parameter:.2f} bytes a parameter"),
        ],
        [
            (what, "[green]equal[/green]" if is_equal else "[red]DIFFERS[/red]", f["extents"][what])
            for what, is_equal in f["compared"].items()
        ],
    )
    for rows in tables:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
        for width, style in ((17, "cyan"), (18, "bold"), (41, "dim")):
            table.add_column(width=width, style=style)
        for row in rows:
            table.add_row(*row)
        console.print()
        console.print(table)
    if f["is_exact"]:
        console.print("\n[bold green]EXACT[/bold green]: the killed run ended bit for bit like the one that was never killed.")
    else:
        console.print("\n[bold red]NOT EXACT[/bold red]")
        for difference in f["differences"]:
            console.print(f"  {difference}", markup=False, soft_wrap=True)
    curves = f["curves"] or "not drawn, matplotlib is missing"
    console.print(f"\n{f['seconds']:.0f} s in all. Loss curves: {curves}\nLook inside the run:", soft_wrap=True)
    for words in commands(f["run"], f["batches"]):
        console.print(f"  {_command()} {words}", markup=False, soft_wrap=True)


def _command() -> str:
    """Return the words that call `tranlogs` here, where it need not be on the PATH."""
    if shutil.which("tranlogs"):
        return "tranlogs"
    if Path(sys.argv[0]).name == "tranlogs":
        return os.path.relpath(sys.argv[0])
    return f"{os.path.relpath(sys.executable)} -m tranlogs"


def _draw(f: dict[str, Any], reference: Life, killed: Life, recovered: Life) -> str | None:
    """Draw the loss curves of both runs and their difference; return the PNG's path, or None if matplotlib is missing."""
    try:
        from matplotlib.figure import Figure  # without pyplot: no screen, no global state
    except ImportError:
        return None
    plain, logged = (torch.load(life.job.state, weights_only=True)["loss"] for life in (reference, recovered))
    checkpoint, landed = f["checkpoint_step"], f["checkpoint_step"] + f["steps_replayed"]
    figure = Figure(figsize=(9, 5.2), dpi=160, layout="constrained")
    curves, difference = figure.subplots(2, sharex=True, height_ratios=(5, 1))
    title = f"A GPT of {f['parameters'] / 1e6:.1f} M parameters, killed with SIGKILL and recovered by TranLogs"
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, color=_INK)
    for axes in (curves, difference):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_INK, labelsize=9)
        axes.margins(x=0.01)
        axes.axvspan(checkpoint, landed, color=_PALE, lw=0)
        axes.axvline(f["killed_in_batch"], color=_RED, lw=1.2, ls=(0, (4, 3)))
    curves.plot([*plain], [*plain.values()], color=_WIDE, lw=6, solid_capstyle="round", label="never killed, plain torch")
    curves.plot([*logged], [*logged.values()], color=_INK, lw=1.4, label="killed and recovered, TranLogs")
    curves.set_ylabel("loss (nats a character)", color=_INK)
    curves.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 0.1), fontsize=9)
    _annotate(curves, f["killed_in_batch"], killed.phase, checkpoint, landed - checkpoint)
    values = {step: logged[step] - plain[step] for step in plain if step in logged}
    largest = max(map(abs, values.values()), default=0.0)
    difference.plot([*values], [*values.values()], color=_INK, lw=1.4)
    difference.set_ylim(-2 * largest or -1, 2 * largest or 1)
    difference.set_yticks([0])
    difference.set_ylabel("difference", color=_INK)
    difference.set_xlabel(f"batch (largest difference between the two losses: {largest:g})", color=_INK)
    path = Path(reference.job.folder, "loss.png")
    figure.savefig(path)
    return str(path)


def _annotate(axes: Axes, killed_in: int, phase: str, checkpoint: int, redone: int) -> None:
    across = axes.get_xaxis_transform()  # x in batches, y in shares of the height
    side = "right" if killed_in > sum(axes.get_xlim()) / 2 else "left"  # the text goes where there is room
    text = f"  SIGKILL in batch {killed_in},  \n  {phase}  "
    axes.text(killed_in, 0.98, text, transform=across, color=_RED, ha=side, va="top", fontsize=9)
    if redone:
        axes.text(checkpoint, 0.02, f" {redone} steps\n replayed", transform=across, color=_RED, va="bottom", fontsize=9)
