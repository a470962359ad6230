"""`tranlogs advise`: what a run pays for its log and its checkpoints, and what it would pay with others."""

from __future__ import annotations

from ...base.errors import UsageError
from ...retention.advice import COLUMNS, list_choices
from .. import screen
from ..options import Json, Run, command
from ..parameters import FINE
from ..reading.find_journals import find_journals
from ..reading.survey import survey
from ..screen import print_json


@command
def advise(run: Run, as_json: Json = False) -> int:
    """Show what log and checkpoints cost this run, and what others would.

    The figures come from what the run has measured. Waste is the share of the time that the log, checkpoints and failures take,
    at one failure in an hour, in 6 hours, in a day and in a week. Of several processes, the figures are those of the first.
    """
    journals = find_journals(run)
    found = survey(journals[0].folder)
    advice = found.advise()
    if advice is None:
        raise UsageError(
            f"{run}: nothing is measured yet, or the catalog that had it was lost. Train until the first checkpoint after the "
            "start, or to the end"
        )
    if as_json:
        print_json({"run": run, "journal": found.folder, "measured": found.measured, "advice": advice})
        return FINE
    console = screen.console()
    console.print(screen.facts([("journal", found.folder), *advice.describe().items()]), "")
    if shown := list_choices(advice):
        title = "what the run pays now, and would pay with other settings"
        console.print(screen.table(title, COLUMNS, shown, numbers=COLUMNS[2:]))
    console.print(*advice.unknown, sep="\n")
    return FINE
