"""`tranlogs rehearse`: is my script resumable?"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ...base.quantities import parse_bytes, parse_seconds
from ...rehearsal.rehearse import rehearse as run_rehearsal
from ...rehearsal.verdict import RehearsalSettings, Verdict
from .. import screen
from ..options import Json, command
from ..parameters import Argument, Option
from ..screen import print_json


@command
def rehearse(
    script: Annotated[list[str], Argument(metavar="-- COMMAND", help="The command line of the script, after `--`.")],
    units: Annotated[int, Option(metavar="N", help="Units to train: batches, for most loops.")] = 16,
    kills: Annotated[int, Option(metavar="N", help="Kills by SIGKILL while it trains.")] = 3,
    time: Annotated[str, Option(help="Time after which the rehearsal ends without a verdict.")] = "10min",
    disk: Annotated[str, Option(help="Bytes that the rehearsal may take on disk.")] = "10GiB",
    seed: Annotated[int | None, Option(help="Seed of the moments of the kills (default: random).")] = None,
    scratch: Annotated[
        Path | None, Option(metavar="FOLDER", help="Where its folder is made (default: that for temporary files).")
    ] = None,
    keep: Annotated[bool, Option("--keep", help="Keep its folder: runs, outputs and files of all lives.")] = False,
    as_json: Json = False,
) -> int:
    """Kill a training script, and check whether it resumes exactly.

    Runs the script for its first units in a scratch folder; once more, killed by SIGKILL at random moments and started again;
    and compares weights, optimizer state, random states, data position, printed lines and files. The script's own folder is
    only read. Exit codes: 0 it resumes exactly, 1 it does not, 2 wrong usage, or it could not be judged.
    """
    settings = RehearsalSettings(
        command=script,
        folder=Path.cwd(),
        units=units,
        kills=kills,
        seconds=parse_seconds(time, "--time"),
        disk_bytes=parse_bytes(disk, "--disk"),
        seed=secrets.randbelow(1_000_000) if seed is None else seed,
        scratch=scratch,
        keeps=keep,
    )
    with _stage_bars() as show_stage:
        verdict = run_rehearsal(settings, show_stage)
    if as_json:
        print_json(verdict.as_dict())
    else:
        _show(verdict)
    return verdict.outcome.value


def _show(verdict: Verdict) -> None:
    """Print a verdict for people."""
    console = screen.console()
    console.print(verdict.headline, style="bold", markup=False)
    kills = ", ".join(f"at step {kill.step}" if kill.during == "training" else "while it started" for kill in verdict.kills)
    rows: list[tuple[str, object]] = [("script", " ".join(verdict.command))]
    if verdict.units:
        ranks = f", {verdict.ranks} processes" if verdict.ranks > 1 else ""
        rows.append(("trained", f"{screen.count(verdict.units, 'unit')}, to step {verdict.step}{ranks}"))
    if verdict.kills and verdict.is_wrapped:
        rows.append(("killed", kills))
    rows += [("equal", text) for text in verdict.compared]
    rows += [("differs", str(difference)) for difference in verdict.differences]
    rows += [("note", note) for note in verdict.notes]
    rows += [("add", line) for line in verdict.advice]
    rows.append(("took", f"{verdict.seconds:.0f} s, {screen.size(verdict.disk_bytes)}, --seed {verdict.seed}"))
    rows += [("kept in", verdict.folder)] if verdict.folder else []
    console.print(screen.facts(rows))


@contextmanager
def _stage_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a callback (stage, done, total) that draws one bar for each stage, on stderr if that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
    is_hidden = not sys.stderr.isatty()
    console = Console(stderr=True, quiet=is_hidden)
    with Progress(*columns, console=console, refresh_per_second=4, disable=is_hidden) as bars:
        tasks: dict[str, TaskID] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                for task in tasks.values():  # the stages before this one are over
                    bars.stop_task(task)
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=min(done, total))

        yield show
