"""What the trainings of all trainers share: who dies, real text, and what is compared."""

from __future__ import annotations

import argparse
import builtins
import collections
import importlib
import json
import os
import random
import runpy
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from tests.support import examples
from tranlogs.training.restarts import script_frames

# The counters of the harness are not the script's: they are not named as values that start over.
script_frames.OURS.update(("tests.trainers.common", "tests.support"))


def note(attempt: int, function: str, arguments: dict[str, Any], out: str) -> None:
    """Call a function in this process, which tests/support/torchrun.py has forked, and write down what it gives, by rank."""
    module, _, name = function.rpartition(".")
    found = getattr(importlib.import_module(module), name)(attempt=attempt, **arguments)
    Path(f"{out}.{rank()}").write_text(json.dumps(found))
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


class Killer:
    """Ends this process at a moment that was given.

    Args:
        kills: for each start [rank, place, count]: the rank dies when it comes to the place for the count-th time (from 0) of
            the whole run, or of this process where the place begins with "here".
        attempt: number of this start.
    """

    def __init__(self, kills: list[Any] | None, attempt: int) -> None:
        mine = kills[attempt] if kills and attempt < len(kills) else None
        self._at = tuple(mine[1:]) if mine and mine[0] == rank() else None
        self._seen: collections.Counter[str] = collections.Counter()

    def at(self, place: str, count: int) -> None:
        """The training comes to this place."""
        here = f"here {place}"
        if self._at in ((place, count), (here, self._seen[here])):
            os.kill(os.getpid(), signal.SIGKILL)
        self._seen[here] += 1


def text() -> torch.Tensor:
    """Bytes of Python's own documentation."""
    sources = (argparse, collections.OrderedDict, random, int, str, list, dict, bytes, type, float)
    return torch.tensor(list("\n".join(source.__doc__ or "" for source in sources).encode("ascii", "replace")))


def tensors(model: Any, optimizer: Any) -> str:
    """Digest of parameters, buffers and optimizer state."""
    found = xxhash.xxh3_64()
    state = [v for p in model.parameters() for v in optimizer.state[p].values() if isinstance(v, torch.Tensor)]
    for tensor in [*model.parameters(), *model.buffers(), *state]:
        found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def randomness() -> list[str]:
    """Digests of torch's, numpy's and Python's random states."""
    states = (torch.get_rng_state().numpy().tobytes(), str(np.random.get_state()).encode(), str(random.getstate()).encode())
    return [xxhash.xxh3_64_hexdigest(state) for state in states]


def plain(value: Any) -> Any:
    """A state_dict in words."""
    return repr(value)


def example(attempt: int, kills: list[tuple[str, int]], path: str, folder: str) -> dict[str, Any]:
    """Run a script in a folder; return what it has printed, and a digest of its model.

    Args:
        attempt: number of this start.
        kills: for each start but the last, words, and the number of function calls that are made behind the first line that has
            these words before the process dies.
        path: of the script.
        folder: where it runs.
    """
    os.environ["TRANLOGS_RECHECK"] = "1"
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    words, calls = kills[attempt] if attempt < len(kills) else ("", 0)
    killer = examples.Killer(1 if words else None, calls)
    lines: list[str] = []
    plain_print = builtins.print

    def told(*what: Any, **options: Any) -> None:
        plain_print(*what, **options)
        lines.append(" ".join(map(str, what)))
        if words and words in lines[-1]:
            killer.count_step()

    builtins.print = told
    names = runpy.run_path(path, run_name="__main__")
    model = names["trainer"].model if "trainer" in names else names["model"]
    found = xxhash.xxh3_64()
    for tensor in [*model.parameters(), *model.buffers()]:
        found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return {"lines": lines, "model": found.hexdigest()}
