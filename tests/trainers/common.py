"""What the trainings of all trainers share: real text, what is told besides the outcome, and the examples as scripts."""

from __future__ import annotations

import argparse
import collections
import json
import random
from typing import Any

import torch

from tests.kills.pytorch import Job
from tests.support.examples import run_example
from tranlogs.base.errors import TranLogsError
from tranlogs.training.restarts import script_frames

script_frames.OURS.update(("tests.trainers.common",))  # its values are not the script's: none is named as one that starts over


def text() -> torch.Tensor:
    """Bytes of Python's own documentation."""
    sources = (argparse, collections.OrderedDict, random, int, str, list, dict, bytes, type, float)
    return torch.tensor(list("\n".join(source.__doc__ or "" for source in sources).encode("ascii", "replace")))


def tell(job: Job, **facts: Any) -> None:
    """Leave what is not compared with the twin."""
    (job.folder / "told").write_text(json.dumps(facts))


def said_of(call: Any) -> str:
    """Return the error of a call, "" if it has none."""
    try:
        call()
    except TranLogsError as error:
        return str(error)
    return ""


def example(job: Job, *, path: str, signs: tuple[str, ...]) -> None:
    """Run an example, which may die behind each line that has one of these words."""
    names = run_example(job, path, *signs)
    job.keep(model=names["trainer"].model if "trainer" in names else names["model"])
