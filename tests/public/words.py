"""What a user reads of TranLogs: the line at the start, the line of a resume with its report, and warnings.

Numbers are masked, and each line has to be of one of the few forms that there are.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tranlogs.training import describe_end, describe_equal

_FORECAST = (
    r"about SIZE of log a step; next checkpoint (at the end of the epoch, or )?"
    r"((when it saves more than it costs, )?after ((about|at most) )?# steps? \(SIZE of log\)|when it saves more than it costs)"
    r"(; at most about SIZE on disk without crashes, SIZE are free)?"
)
_CHECKPOINTS = (
    r"; checkpoints: (at the end of each epoch, and )?(each when it saves more than it costs|the next one after # steps?)"
)
_TRIAL = r"the first steps measure whether a log of about SIZE costs more than # % of a step" + _CHECKPOINTS
_NO_TENSORS = r"no tensors are logged: a crash costs computing the steps since the last checkpoint again" + _CHECKPOINTS
_START = rf"({_FORECAST}|{_TRIAL}|{_NO_TENSORS})"
_RESUMED = (
    r"recovered to step # \((loop #, )?(epoch #, )?(after # batch(es)?, )?checkpoint # \+ # replayed, SECONDS, "
    r"(?P<verdict>[a-zA-Z# -]+)\)"
)
_PLACE = r"(step #|timestep #|epoch #, batch #|epoch #, its end)"
_UNSET = r"; the loop body did not run, so `[^;]*` (is|are) unset"
_FORMS = (
    rf"TranLogs: (RUN: )?fresh run: step # \({_START}\)",
    rf"TranLogs: RUN: fit #: {_START}",
    r"TranLogs: RUN: gradients cost # % of a step, and # % are allowed: they are logged from the next checkpoint on",
    r"TranLogs: RUN: gradients would cost # % of a step, and # % are allowed: no tensors are logged(; a crash costs "
    r"(up to|less than) SECONDS of computing)?",
    rf"TranLogs: (RUN goes on at {_PLACE}: )?{_RESUMED}",
    r"TranLogs: (RUN: )?starts from the beginning: nothing was recorded before the crash \(step #, SECONDS\)",
    *(rf"TranLogs: {_RESUMED}: {re.escape(describe_end(end))}({_UNSET})?" for end in ("complete", "")),
    rf"TranLogs: RUN is finished at {_PLACE}, and nothing is trained \(for another training, give another folder\): {_RESUMED}",
    rf"TranLogs: RUN: {describe_equal(0).replace('step 0', 'step #')}",
    rf"TranLogs: RUN: {describe_equal(0, first=0).replace('step 0 was', '(step #|steps # to #) (was|were)')}",
    r"TranLogs: RUN: this fit was finished before, at step #, and trains nothing; more epochs and later fits are trained",
    r"TranLogs: RUN: this fit was finished before, and trains nothing; the run goes on in a later one\. [^#]*",
)
_VERDICTS = {
    "bit-exact": True,
    "state bit-exact": True,
    "not verified": None,
    "being proven": None,
    "NOT exact": False,
    "NOT exact from step #": False,
}
_MASKS = ((r"\d+(,\d{3})*(\.\d+)?", "#"), (r"# ([KMG]i)?B\b", "SIZE"), (r"# s\b", "SECONDS"))


@dataclass
class Heard:
    """What a life of a script said.

    Attributes:
        lines: that TranLogs printed, or that the script printed of a report.
        warnings: of TranLogs.
    """

    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """Lines under a report."""
        return [line.strip() for line in self.lines if line.startswith("  ")]

    def demand_forms(self, run: Path, *, of_group: bool = False) -> None:
        """Demand that each line is of a known form, and that nothing is said twice. A group's first line has no forecast."""
        forms = (*_FORMS, "TranLogs: fresh run: step #") if of_group else _FORMS
        for line in self.lines:
            masked = mask(line, run)
            assert line.startswith("  ") or any(re.fullmatch(form, masked) for form in forms), f"not of a known form: {masked}"
        said = [warning.removeprefix(f"{run}: ") for warning in self.warnings] + self.notes
        assert len(set(said)) == len(said), f"said twice: {said}"

    def demand_end(self) -> None:
        """Demand that a start of a finished run says so."""
        said = ("is finished", "was finished before", "its script came to its end there")
        assert any(words in line for line in self.lines for words in said), f"a finished run is started: {self.lines}"

    def demand_quiet(self, warns: Iterable[str]) -> None:
        """Demand that an uninterrupted run warns of nothing but of true problems, which the test names."""
        found = self.warnings + self.notes
        unknown = [text for text in found if not any(known in text for known in warns)]
        assert not unknown, f"an uninterrupted run warns: {unknown}"
        missing = [known for known in warns if not any(known in text for text in found)]
        assert not missing, f"{missing} is not warned of: {found}"

    def demand_verdict(self, exact: bool | None, run: Path) -> None:
        """Demand that the line of the resume has the last word of the report, or that a warning came in between."""
        found = [match["verdict"] for line in self.lines if (match := re.search(_RESUMED, mask(line, run)))]
        for verdict in found[-1:]:
            is_told = verdict == "being proven" or (bool(self.warnings) and exact is not True)
            assert _VERDICTS[verdict] is exact or is_told, f"{self.lines}: the last word is {exact}, after {self.warnings}"


def mask(line: str, run: Path) -> str:
    """Return a line without the folder of the run and without numbers."""
    line = line.replace(str(run), "RUN")
    for pattern, replacement in _MASKS:
        line = re.sub(pattern, replacement, line)
    return line


class _Warnings(logging.Handler):
    def __init__(self, heard: Heard) -> None:
        super().__init__(logging.WARNING)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self._heard.warnings.append(record.getMessage())
        if logging.lastResort is not None:
            logging.lastResort.handle(record)  # as without this handler


class _Lines(io.StringIO):
    def __init__(self, heard: Heard) -> None:
        super().__init__()
        self._heard, self._out = heard, sys.stdout

    def write(self, text: str) -> int:
        self._heard.lines += lines_of(text)
        return self._out.write(text)


@contextlib.contextmanager
def listening() -> Iterator[Heard]:
    """Hear what is said in this process."""
    heard = Heard()
    handler, log = _Warnings(heard), logging.getLogger("tranlogs")
    log.addHandler(handler)
    try:
        with contextlib.redirect_stdout(_Lines(heard)):
            yield heard
    finally:
        log.removeHandler(handler)


def lines_of(output: str) -> list[str]:
    """Return the lines of TranLogs in an output: those that begin with its name, and the notes under them."""
    found: list[str] = []
    is_own = False
    for line in output.splitlines():
        is_own = line.startswith("TranLogs: ") or (is_own and line.startswith("  "))
        found += [line] if is_own else []
    return found
