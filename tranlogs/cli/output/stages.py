"""Progress of several stages, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

ShowStage = Callable[[str, int, int], None]


@contextmanager
def stage_bars() -> Iterator[ShowStage]:
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
