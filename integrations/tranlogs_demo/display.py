"""The display of the demo: bars on a terminal, lines elsewhere, nothing where a program asked for the figures only."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Screen:
    """Stages one below the other; use it as a context."""

    def __init__(self, *, is_silent: bool) -> None:
        self._console = Console(quiet=is_silent, highlight=False)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        has_bars = self._console.is_terminal and not is_silent
        console = self._console if has_bars else Console(quiet=True)
        # Drawing takes a core from the child for a moment, so it is done seldom.
        self._bars = Progress(*columns, console=console, refresh_per_second=4, disable=not has_bars)

    def __enter__(self) -> Screen:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bars.stop()

    def print(self, what: RenderableType = "", *, markup: bool = True) -> None:
        """Print a line or a table."""
        self._console.print(what, markup=markup, soft_wrap=isinstance(what, str))

    def stage(self, title: str, total: int) -> Stage:
        """Begin a new line."""
        if self._bars.disable:
            self.print(f"{title} ...")
        return Stage(self, self._bars, self._bars.add_task(title, total=total, note=""), title)


class Stage:
    """One line: a bar that moves, or a sentence at the end."""

    def __init__(self, screen: Screen, bars: Progress, task: TaskID, title: str) -> None:
        self._screen, self._bars, self._task, self._title = screen, bars, task, title

    def at(self, done: int, note: str) -> None:
        """Show the number of batches that are done."""
        self._bars.update(self._task, completed=done, note=note)

    def end(self, note: str, sentence: str, *, done: int | None = None, total: int | None = None) -> None:
        """End the stage with a note beside the bar, or with a sentence where there is no bar."""
        self._bars.update(self._task, completed=done, total=total, note=note)
        self._bars.stop_task(self._task)
        if self._bars.disable:
            self._screen.print(f"{self._title}: {sentence}")
