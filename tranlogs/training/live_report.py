"""The report of a recovery, updated while training continues, and the line that callbacks print of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from ..base.notes import Code, Note
from ..recovery.report import RecheckState, RecoveryReport, Restart
from .rehearsed_process import current

_log = logging.getLogger("tranlogs")

# What the data of a loop over `steps()` come from, as a boundary records it: nothing but what the run has, as the script has
# declared; a tracked loader; or it is not known.
TurnData = Literal["stateless", "tracked", "unknown"]

# Through what the user reaches the run: an optimizer of the script, what `log_prepared` returns, or the callback of a trainer.
Face = Literal["script", "accelerate", "callback"]

UNKNOWN_DATA = Note(
    "unknown-data",
    "the loop over optimizer.steps(...) may keep data between its turns (a batch fetched ahead, an environment, a counter), "
    "which would not come back",
    "Take batches from optimizer.batches(...), optimizer.epochs(...) or, in each turn, a tracked DataLoader; or keep what "
    "holds the data in state = optimizer.remember(name=...), and write optimizer.steps(until=..., stateless=True)",
)


def describe_end(loop_end: str, unset: str = "") -> str:
    """Return what it means for a start that the script came to its end before.

    Args:
        loop_end: where the script left its loop; see `Journal.note_finished`.
        unset: what a start lacks whose loop does not run; see `describe_unset`.
    """
    if loop_end == "complete":
        text = "the run is finished; only a longer loop or a further one trains on (for another training, give another folder)"
        return f"{text}; {unset}" if unset else text
    if not loop_end:
        return "its script came to its end there, so it trains on only if its loop is longer now or was left early by break"
    return f"the loop was left {loop_end}, and trains on unless it is left again"


class LiveReport:
    """The report of `recover()`, with the caveats that became known since.

    A caveat is a reason why it is not known whether the resume is exact, or why the resume is certainly not exact.

    Args:
        run: folder of the run.

    Attributes:
        caveats: notes, each with True if it means that the resume is not exact.
        recheck: state of the computation that proves the resume; see `RecoveryReport`.
        refuted: codes of doubts that the computation has shown to be unfounded.
        face: whose words advice is given in.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._current: RecoveryReport | None = None
        self._restarts: tuple[Restart, ...] = ()
        self.caveats: list[tuple[Note, bool]] = []
        self.recheck: RecheckState = ""
        self.refuted: frozenset[Code] = frozenset()
        self.face: Face = "script"
        self._notes: list[Note] = []
        self._warned: set[Note] = set()
        if (rehearsal := current()) is not None:
            rehearsal.watch(self)

    @property
    def current(self) -> RecoveryReport | None:
        """The report as it is now; None before the recovery."""
        return self._current

    @current.setter
    def current(self, report: RecoveryReport | None) -> None:
        if report is not None:
            # What a tracked object does not bring back is state of the run; other values of the script are only named.
            is_tracked = any(one.code in ("extra", "state") for one in self._restarts)
            report = replace(report, restarts=self._restarts, exact=None if report.exact and is_tracked else report.exact)
        self._current = report

    @property
    def notes(self) -> list[Note]:
        """The caveats, and what else is good to know."""
        return [*(note for note, _ in self.caveats), *self._notes]

    def suspect(self, note: Note) -> None:
        """Add a caveat that counts until `dismiss` takes it out, or `warn` confirms it."""
        self.caveats.append((note, False))

    def dismiss(self, note: Note) -> bool:
        """Take a caveat out of the list, for a report that is made anew; False if it is not there."""
        count = len(self.caveats)
        self.caveats = [caveat for caveat in self.caveats if caveat[0] != note]
        return len(self.caveats) < count

    def warn(self, note: Note, is_wrong: bool) -> None:
        """Log a caveat once, and add it to the report."""
        if note.code in self.refuted:
            return
        if note not in self._warned:
            self._warned.add(note)
            _log.warning("%s: %s", self._run, note)
        self.dismiss(note)
        self.caveats.append((note, is_wrong))
        report = self.current or RecoveryReport()
        exact = False if is_wrong else None if report.exact else report.exact
        self.current = replace(report, exact=exact, notes=tuple(dict.fromkeys([*report.notes, note])))

    def warn_of_script(self, note: Note) -> None:
        """Log a caveat about the script itself, and add it to the report.

        A fresh run has warned of it, and the report of a resumed run has it from there: no warning is logged then.
        """
        if self.current is None or note not in self.current.notes:
            self.warn(note, False)

    def note(self, note: Note, *, is_logged: bool = True) -> None:
        """Log what is good to know and does not change the verdict, and add it to the report."""
        if is_logged:
            _log.warning("%s: %s", self._run, note)
        self._notes.append(note)
        report = self.current or RecoveryReport()
        self.current = replace(report, notes=tuple(dict.fromkeys([*report.notes, note])))

    def name_restarts(self, found: Sequence[Restart], *, is_logged: bool) -> None:
        """Add values of the script that start over, with their notes. The resume is called exact in its state only.

        Args:
            found: the values.
            is_logged: False if a former process has named them: the report of `recover()` has them then.
        """
        self._restarts += tuple(found)
        for note in dict.fromkeys(one.note for one in found if one.note is not None):
            self.note(note, is_logged=is_logged)

    @property
    def starts_over(self) -> list[str]:
        """Names of values of the script that start over."""
        return list(dict.fromkeys(one.name for one in self._restarts))

    def verdict(self, exact: bool | None, others: Iterable[Note]) -> bool | None:
        """Return whether the recovery is exact, given the caveats.

        Args:
            exact: result of comparing the replayed steps.
            others: further reasons why exactness is not known.
        """
        if any(is_wrong for _, is_wrong in self.caveats):
            return False
        doubts = [note for note in (*(note for note, _ in self.caveats), *others) if note.code not in self.refuted]
        return None if exact and (doubts or self.recheck in ("pending", "different")) else exact


def announce(run: Path, report: RecoveryReport, place: str, *, is_finished: bool = False) -> None:
    """Print what a new run is going to write, or where a resumed one goes on.

    Args:
        run: folder of the run.
        report: of its recovery.
        place: where training stands, in the words of the trainer: "step 412".
        is_finished: True if nothing is left to train.
    """
    report = replace(report, end="")  # the trainer knows it better
    if report.checkpoint_step is None or report.starts_over:
        line = f": {report}"
    elif is_finished:
        line = f" is finished at {place}, and nothing is trained (for another training, give another folder): {report}"
    else:
        line = f" goes on at {place}: {report}"
    print(f"TranLogs: {run}{line}", flush=True)
