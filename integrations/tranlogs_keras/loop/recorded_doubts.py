"""The doubts in a loop's report. Each boundary holds them, so that a process which continues there reports them, too."""

from __future__ import annotations

from collections.abc import Iterable

from tranlogs.training import LiveReport


class RecordedDoubts:
    """The doubts of a run, in words.

    Args:
        report: gets those that are new.

    Attributes:
        texts: the doubts, in the order in which they came.
    """

    def __init__(self, report: LiveReport) -> None:
        self._report = report
        self.texts: list[str] = []

    def add(self, text: str) -> None:
        """Add a doubt, and report it."""
        if text not in self.texts:
            self.texts.append(text)
            self._report.warn(text, False)

    def note(self, *texts: str) -> None:
        """Add doubts that are reported already, or not yet."""
        self.texts = list(dict.fromkeys([*self.texts, *texts]))

    def withdraw(self, text: str) -> None:
        """Remove a doubt from what the next boundaries hold."""
        if text in self.texts:
            self.texts.remove(text)

    def take_over(self, *recorded: Iterable[str]) -> None:
        """Take the doubts of recorded boundaries, and report all."""
        for texts in recorded:
            self.note(*texts)
        for text in self.texts:
            self._report.warn(text, False)
