"""`tranlogs export`: the state at a step in the format of another program."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ...base.errors import UsageError
from ..options import Json, Optimizers, Run, command
from .replay import rebuild


@command
def export(
    run: Run,
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", show_default=False, help="File or folder to write; it must not exist.")
    ],
    form: Annotated[str, typer.Option("--to", metavar="FORMAT", show_default=False, help="dcp (a folder), safetensors or pt.")],
    step: Annotated[int | None, typer.Option("--step", min=0, help="Step of the state (default: the newest step).")] = None,
    optimizer: Optimizers = None,
    as_json: Json = False,
) -> int:
    """Write a PyTorch run's state for other programs.

    The same as `replay` with a named format: only checkpoint and log are needed, each redone step is compared with the run,
    and the output is read back and compared before it gets its name. dcp is a folder that plain
    torch.distributed.checkpoint.load reads on any number of processes, under the names of get_state_dict.
    """
    if os.path.lexists(target):
        raise UsageError(f"{target} exists already: delete it, or use another name")
    return rebuild(run, target, form, step, optimizer or (), as_json=as_json)
