"""The figures of the demo for people, in 80 columns."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from rich.table import Table

from .display import Screen
from .figures import Cost, Crash, Figures, Training

_WIDTHS = (17, 18, 41)  # with two blanks between them


def print_table(screen: Screen, figures: Figures) -> None:
    """Print what happened, what it cost, what was compared, the verdict."""
    for table in (
        _trained(figures.training),
        _killed(figures.crash),
        _cost(figures.cost, figures.training),
        _compared(figures),
    ):
        screen.print()
        screen.print(table)
    screen.print()
    if figures.is_exact:
        screen.print("[bold green]EXACT[/bold green]: the killed run ended bit for bit like the one that was never killed.")
    else:
        screen.print("[bold red]NOT EXACT[/bold red]")
        for difference in figures.differences:
            screen.print(f"  {difference}", markup=False)
    screen.print(f"\n{figures.seconds:.0f} s in all. Loss curves: {figures.curves or 'not drawn, matplotlib is missing'}")
    screen.print("Look inside the run:")
    for words in commands(figures.run, figures.training.batches):
        screen.print(f"  {_command()} {words}", markup=False)


def commands(run: str, steps: int) -> tuple[str, ...]:
    """Return commands that show the last step of a run. Its only checkpoint is of its middle, so the log holds that step."""
    return (f"status {run}", f"log {run} --step {steps}", f"verify {run} --replay", f"replay {run} --to {steps} --out state.pt")


def _command() -> str:
    """Return the words that call `tranlogs` here, where it need not be on the PATH."""
    if shutil.which("tranlogs"):
        return "tranlogs"
    if Path(sys.argv[0]).name == "tranlogs":
        return os.path.relpath(sys.argv[0])
    return f"{os.path.relpath(sys.executable)} -m tranlogs"


def _table() -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for width, style in zip(_WIDTHS, ("cyan", "bold", "dim"), strict=True):
        table.add_column(width=width, style=style)
    return table


def _trained(training: Training) -> Table:
    table = _table()
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    table.add_row("model", f"{training.parameters / 1e6:.1f} M parameters", "a small GPT, next character, dropout")
    table.add_row("text", f"{training.characters:,} characters", f"the help texts of Python {python}")
    table.add_row(
        "training",
        f"{training.batches} batches",
        f"of {training.sequences} characters, {training.threads} thread{'s' * (training.threads > 1)}",
    )
    return table


def _killed(crash: Crash) -> Table:
    table = _table()
    again = crash.recompute_seconds
    table.add_row("SIGKILL", f"in batch {crash.killed_in_batch}", crash.killed_in)
    table.add_row("steps lost", f"{crash.steps_lost}", "the one it was in" if crash.steps_lost else "")
    table.add_row("steps replayed", f"{crash.steps_replayed}", f"from the checkpoint at step {crash.checkpoint_step}")
    table.add_row("time to recover", f"{crash.recover_seconds:.2f} s", "in all: reading the log, loading, redoing")
    if crash.steps_replayed:
        redoing = crash.replay_seconds
        ratios = f"{again / redoing:.0f} x redoing, {again / crash.recover_seconds:.0f} x all of it"
        table.add_row("  of it redoing", f"{redoing:.2f} s", f"{_a_step(redoing, crash)} a step")
        table.add_row("computing again", f"{again:.1f} s", f"{_a_step(again, crash)} a step: {ratios}")
    return table


def _a_step(seconds: float, crash: Crash) -> str:
    return f"{seconds / crash.steps_replayed * 1e3:.0f} ms"


def _cost(cost: Cost, training: Training) -> Table:
    table = _table()
    table.add_row("step, not logged", f"{cost.step_seconds_plain * 1e3:.0f} ms", "median")
    table.add_row(
        "step, logged",
        f"{cost.step_seconds_logged * 1e3:.0f} ms",
        f"{cost.overhead_ratio:.2f} x (rough; `make bench` pairs them)",
    )
    table.add_row(
        "log",
        f"{cost.log_bytes_per_step / 1e6:.1f} MB a step",
        f"{cost.log_bytes_per_step / training.parameters:.2f} bytes a parameter",
    )
    return table


def _compared(figures: Figures) -> Table:
    table = _table()
    for part in figures.compared:
        verdict = "[green]equal[/green]" if part.is_equal else "[red]DIFFERS[/red]"
        table.add_row(part.what, verdict, f"{part.extent}, {part.digests[1][:12]}")
    return table
