"""The Keras examples of the documentation, as they run in a process of a lab."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tests.support.examples import Killer, run_example
from tranlogs.training import Remembered
from tranlogs_keras import LoggedOptimizer, TranLogsCallback


def live(file: str, folder: str, lines: int | None, calls: int) -> dict[str, Any]:
    """Run an example; it may die some function calls after a line that it prints. Return what it came to."""
    killer, plain_print = Killer(lines, calls), builtins.print

    def told(*what: Any, **options: Any) -> None:
        plain_print(*what, **options)
        if not str(what[0] if what else "").startswith(
            ("TranLogs: ", "fresh run", "recovered to", "starts from the beginning")
        ):
            killer.count_step()

    builtins.print = told
    Path(folder).mkdir(exist_ok=True)
    names = run_example(Path(file), Path(folder))
    optimizer = names["optimizer"] if "optimizer" in names else names["model"].optimizer
    variables = [*names["model"].variables, *optimizer.variables]
    logged = [
        thing
        for thing in [*names.values(), *names.get("callbacks", [])]
        if isinstance(thing, LoggedOptimizer | TranLogsCallback)
    ]
    state = {name: vars(thing) for name, thing in names.items() if isinstance(thing, Remembered)}
    return {
        "state": {f"{i} {v.path}": np.asarray(keras.ops.convert_to_numpy(v)).tobytes() for i, v in enumerate(variables)},
        "others": repr(state),
        "exact": logged[0].report.exact,
        "notes": list(logged[0].report.notes),
        "lines": killer.steps,
    }
