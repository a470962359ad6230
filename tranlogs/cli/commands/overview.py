"""`tranlogs status` of a folder that holds runs: a line for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import rich.console
from rich.console import RenderableType

from ...journal import JournalPaths
from ..output import screen
from ..reading.survey import Survey, survey, survey_group


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run.

    Attributes:
        run: its folder.
        ranks: how many journals it has.
        writers: how many of them a live process writes.
        state: "training", "closed" (by its process), "died" (without closing), or "new".
        committed: step that all ranks have committed.
        lands: step that a crash now goes back to; None if nothing could be recovered.
        nbytes: of log and checkpoints.
        problems: in words.
    """

    run: Path
    ranks: int
    writers: int
    state: str
    committed: int
    lands: int | None
    nbytes: int
    problems: tuple[str, ...]


def run_line(run: Path, journals: Sequence[JournalPaths]) -> RunLine:
    """Look at one run."""

    found = [survey(paths.folder) for paths in journals]
    group = survey_group(journals[0].folder)
    lands = [rank.plan.position.step if rank.plan is not None else None for rank in found]
    together = group.step if group is not None else None if None in lands else min(step for step in lands if step is not None)
    problems = [problem for rank in found for problem in rank.problems] + (group.problems if group is not None else [])
    alive = sum(rank.owner is not None and rank.owner.is_alive for rank in found)
    nbytes = sum(rank.parse_bytes()["log"] + rank.parse_bytes()["checkpoints"] for rank in found)
    committed = min(rank.watermarks.committed for rank in found)
    return RunLine(run, len(found), alive, _state(found, alive), committed, together, nbytes, tuple(problems))


def _state(found: Sequence[Survey], alive: int) -> str:
    owners = [rank.owner for rank in found]
    if alive:
        return "training"
    if all(owner is None for owner in owners):
        return "new"
    return "closed" if all(owner is None or owner.has_closed for owner in owners) else "died"


def overview_screen(lines: Sequence[RunLine]) -> RenderableType:
    """All runs as a table, and what is wrong below it."""

    rows = [
        (line.run.name, _told_state(line), line.committed, "-" if line.lands is None else line.lands, screen.size(line.nbytes))
        for line in lines
    ]
    columns = ("run", "state", "committed", "a crash lands on", "bytes")
    table = screen.table("runs", columns, rows, numbers=("committed", "a crash lands on", "bytes"))
    return rich.console.Group(table, *(screen.problem(problem) for line in lines for problem in line.problems))


def _told_state(line: RunLine) -> str:
    return line.state if line.ranks == 1 else f"{line.state} ({line.writers or line.ranks} of {line.ranks} ranks)"
