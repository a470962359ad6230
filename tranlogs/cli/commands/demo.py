"""`tranlogs demo`: watch a run die and come back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..frameworks import demo_of
from ..options import Json, command


@command
def demo(
    quick: Annotated[bool, typer.Option("--quick", help="A smaller model: under a minute.")] = False,
    seed: Annotated[int | None, typer.Option(help="Of the weights and the moment of the kill; drawn if not given.")] = None,
    folder: Annotated[Path, typer.Option(help="Where the run and the loss curves go.")] = Path("demo-run"),
    as_json: Json = False,
) -> int:
    """Kill a small GPT's training, recover it, prove no bit was lost.

    Trains on real text in a child process, kills that with SIGKILL at a random moment, recovers, finishes, and compares
    everything with a run that was never killed.
    """

    return demo_of("torch")(folder, quick=quick, seed=seed, as_json=as_json)
