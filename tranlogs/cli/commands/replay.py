"""`tranlogs replay`: the state at a step, rebuilt without the training script."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from ...base.errors import UsageError
from ...base.notes import Note, coded
from ...frameworks import load_framework, open_offline_run
from ...recovery.recover import require_covered
from ...recovery.report import progress_bar
from .. import screen
from ..options import Json, Optimizers, Run, command
from ..parameters import FINE, PROBLEM, Option
from ..reading.find_journals import find_journal, is_alone
from ..screen import print_json


@command
def replay(
    run: Run,
    out: Annotated[Path, Option("--out", "-o", help="File to write (for --format dcp: folder).")],
    step: Annotated[int | None, Option("--step", min=0, help="The step to rebuild (default: the newest step).")] = None,
    form: Annotated[
        str | None,
        Option("--format", metavar="FORMAT", help="pt, safetensors, dcp or keras (default: by the name of the file)."),
    ] = None,
    optimizer: Optimizers = None,
    force: Annotated[bool, Option("--force", help="Replace the file if it exists.")] = False,
    as_json: Json = False,
) -> int:
    """Rebuild the state at a step without the script, as a file.

    Only checkpoint and log are needed; each redone step is compared with the run, and the output is read back and compared
    before it gets its name. pt holds state_dicts of model, optimizers and tracked objects for torch.load(weights_only=True);
    safetensors holds the tensors under the names that model.load_state_dict expects; dcp is a folder that plain
    torch.distributed.checkpoint.load reads on any number of processes. A Keras run is written as .keras or .weights.h5.
    """
    if os.path.lexists(out) and (not force or form == "dcp"):
        raise UsageError(f"{out} exists already: use {'' if form == 'dcp' else '--force to replace it, or '}another name")
    paths = find_journal(run)
    if step is not None and is_alone(paths):
        require_covered(paths.folder, step)  # before a framework is imported, which takes seconds
    load_framework(paths).check_target(out, form)
    offline = open_offline_run(paths, optimizer or ())
    with progress_bar() as progress:
        report = offline.replay(step=step, progress=progress)
        about: dict[str, Any] = {**report.as_dict(), "file": None, "bytes": 0}
        if report.exact is False:  # wrong weights are never written
            first = report.first_divergent_step
            until = "" if first is None else f": step {first - 1} is the last one that is known to be exact"
            about["notes"] = [*report.notes, Note("replay-differs", f"{out} was not written{until}")]
        else:
            about["notes"] = [*report.notes, *coded("left-out", offline.export(out, form, progress))]
            about |= {"file": out, "bytes": _nbytes(out)}
    if as_json:
        print_json(about)
    else:
        _show(about)
    return PROBLEM if report.exact is False else FINE


def _nbytes(target: Path) -> int:
    return sum(path.stat().st_size for path in target.iterdir()) if target.is_dir() else target.stat().st_size


def _show(about: dict[str, Any]) -> None:
    replayed = screen.count(about["replayed"], "step")
    equal = "all redone steps equal the run's" if about["replayed"] else "read from the checkpoint; no step had to be redone"
    exact = {True: equal, False: f"NO: differs from step {about['first_divergent_step']} on", None: "could not be verified"}[
        about["exact"]
    ]
    screen.console().print(
        screen.facts(
            [
                ("file", f"{about['file']} ({screen.size(about['bytes'])})" if about["file"] else "not written"),
                ("step", f"{about['step']} (batch {about['batch']}, epoch {about['epoch'] + 1}, timeline {about['timeline']})"),
                (
                    "replayed",
                    f"{replayed} from checkpoint {about['checkpoint_step']} in {about['seconds_replay']:.2f} s "
                    f"({about['seconds']:.2f} s with reading and loading)",
                ),
                ("bit-exact", exact),
                *(("note", note) for note in about["notes"]),
            ]
        )
    )
