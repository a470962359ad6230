"""`tranlogs pull`: fetch a run from a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from ...recovery.report import progress_bar
from ...shipping import find_run
from ...shipping import pull as fetch_journal
from ...stores import STALL_SECONDS, TimeoutStore, open_store
from .. import screen
from ..options import Json, command
from ..parameters import FINE, PROBLEM, Argument, Option
from ..screen import print_json


@command
def pull(
    url: Annotated[str, Argument(metavar="URL", help="Address of the run: the URL given to `push`, then /RUN.")],
    run: Annotated[Path, Argument(metavar="RUN", help="Folder to write; it is created.")],
    everything: Annotated[bool, Option("--all", help="Fetch all that the store holds, not only what recovery needs.")] = False,
    as_json: Json = False,
) -> int:
    """Fetch a run from a store.

    Fetches the newest checkpoint and the log after it. Then run the training script: it recovers from the folder as after any
    crash. Every byte is compared with its checksum. An interrupted pull resumes where it stopped.
    """
    base, places = find_run(url)
    with TimeoutStore(open_store(base), STALL_SECONDS) as store, progress_bar() as progress:
        found = [
            fetch_journal(store, place, run / place.rpartition("/")[2], everything=everything, progress=progress)
            for place in places
        ]
    if as_json:
        print_json({"url": url, "journals": found})
    else:
        _show(found)
    return PROBLEM if any(one.steps_lost for one in found) else FINE


def _show(found: list[Any]) -> None:
    for one in found:
        screen.console().print(
            screen.facts(
                [
                    ("journal", one.folder),
                    ("step", f"{one.step}, from the checkpoint of step {one.checkpoint_step}"),
                    ("read", screen.size(one.nbytes)),
                    *([("lost", f"{one.steps_lost} steps can no longer be read from the store")] if one.steps_lost else []),
                    *(("note", note) for note in one.notes),
                ]
            )
        )
