"""`tranlogs demo`: a run that is killed and recovered before the user's eyes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ...frameworks import load_demo
from ..options import Json, command
from ..parameters import Option


@command
def demo(
    quick: Annotated[bool, Option("--quick", help="Train a smaller model; takes less than a minute.")] = False,
    seed: Annotated[int | None, Option(help="Seed of the weights and the moment of the kill (default: random).")] = None,
    folder: Annotated[Path, Option(help="Folder for the run and the loss curves.")] = Path("demo-run"),
    as_json: Json = False,
) -> int:
    """Kill a small GPT's training, recover it, prove no bit was lost.

    Trains on real text in a child process, kills that process with SIGKILL at a random moment, recovers, finishes, and
    compares everything with a run that was never killed.
    """
    return load_demo("torch")(folder, quick=quick, seed=seed, as_json=as_json)
