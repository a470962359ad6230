"""`tranlogs status` for a folder that contains runs: one line for each run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import rich.console
from rich.console import RenderableType

from ...base.errors import NotARun, TranLogsError, error_text
from ...journal import JournalPaths
from ..output import screen
from ..reading.find_journals import find_journals, is_journal
from ..reading.group_survey import survey_group
from ..reading.survey import Survey, survey

_NAME_MAX = 32  # characters of a run's name; JSON has all


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Summary of one run, for a list of runs.

    Attributes:
        run: the run's folder.
        ranks: number of journals; 0 if the run has not begun, or cannot be read.
        writers: number of journals that a live process writes.
        state: "training", "closed" (by its process), "died" (without closing), "new", or "unreadable".
        committed: the step that all ranks have committed; None if this is not known.
        recovery_step: the step to which a crash now would go back; None if nothing could be recovered.
        nbytes: size of log and checkpoints.
        problems: what is wrong, one sentence each.
    """

    run: Path
    ranks: int
    writers: int
    state: str
    committed: int | None
    recovery_step: int | None
    nbytes: int
    problems: tuple[str, ...]


def summarize_runs(folder: Path) -> list[RunSummary]:
    """Survey the runs in a folder, by name. A run that cannot be read is among them, with the reason as its problem."""
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() and not is_journal(folder) else ():
        try:
            if not is_journal(path) and path.is_dir():
                found.append(summarize_run(path, find_journals(path)))
        except NotARun:
            continue
        except (TranLogsError, OSError) as error:
            found.append(RunSummary(path, 0, 0, "unreadable", None, None, 0, (_describe_failure(path, error),)))
    return found


def _describe_failure(run: Path, error: Exception) -> str:
    text = error_text(error)
    return text if str(run) in text else f"{run}: {text}"


def summarize_run(run: Path, journals: Sequence[JournalPaths]) -> RunSummary:
    """Survey one run."""
    found = [survey(paths.folder) for paths in journals]
    group = survey_group(journals[0].folder)
    steps = [rank.plan.position.step for rank in found if rank.plan is not None]
    recovery_step = group.step if group is not None else min(steps) if len(steps) == len(found) else None
    problems = [problem for rank in found for problem in rank.problems] + (group.problems if group is not None else [])
    alive = sum(rank.owner is not None and rank.owner.is_alive for rank in found)
    nbytes = sum(rank.log_bytes + rank.checkpoint_bytes for rank in found)
    committed = min(rank.watermarks.committed for rank in found)
    return RunSummary(run, len(found), alive, _summarize_state(found, alive), committed, recovery_step, nbytes, tuple(problems))


def _summarize_state(found: Sequence[Survey], alive: int) -> str:
    owners = [rank.owner for rank in found]
    if alive:
        return "training"
    if all(owner is None for owner in owners):
        return "new"
    return "closed" if all(owner is None or owner.has_closed for owner in owners) else "died"


def render_overview(runs: Sequence[RunSummary]) -> RenderableType:
    """Return all runs as a table, with the problems below it."""
    rows = [
        (
            _shorten(line.run.name),
            _describe_state(line),
            "-" if line.committed is None else line.committed,
            "-" if line.recovery_step is None else line.recovery_step,
            screen.size(line.nbytes),
        )
        for line in runs
    ]
    columns = ("run", "state", "committed", "recovers to", "bytes")
    table = screen.table("runs", columns, rows, numbers=("committed", "recovers to", "bytes"))
    return rich.console.Group(table, *(screen.problem(problem) for line in runs for problem in line.problems))


def _shorten(name: str) -> str:
    """Return a name that does not widen all rows; names of runs differ at both ends."""
    half = _NAME_MAX // 2
    return name if len(name) <= _NAME_MAX else f"{name[: half - 1]}…{name[-half:]}"


def _describe_state(line: RunSummary) -> str:
    """Return a run's state, with the number of ranks that are in it."""
    return line.state if line.ranks <= 1 else f"{line.state} ({line.writers or line.ranks} of {line.ranks} ranks)"
