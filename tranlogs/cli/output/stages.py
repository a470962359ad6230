"""Progress of several stages, on a terminal only."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Stages:
    """Shows one bar for each stage, on stderr if that is a terminal."""

    def __init__(self) -> None:
        self._tasks: dict[str, TaskID] = {}
        self._bars: Progress | None = None
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
            self._bars = Progress(*columns, console=Console(stderr=True), refresh_per_second=4)

    def __enter__(self) -> Stages:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self, stage: str, done: int, total: int) -> None:
        """Show how far a stage is; the stages before it are over."""
        if self._bars is None:
            return
        if stage not in self._tasks:
            for task in self._tasks.values():
                self._bars.stop_task(task)
            self._tasks[stage] = self._bars.add_task(stage, total=total)
        self._bars.update(self._tasks[stage], completed=min(done, total))
