"""The life of one training process, forked from the experiment: what it does, and how it dies."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from peer.processes import descendants
from peer.registry import PEERS


@dataclass(frozen=True, slots=True)
class Life:
    """What one process does.

    Attributes:
        peer: that saves.
        folder: of its saves.
        width: of the network.
        every: steps between saves.
        until: steps that are done when it ends by itself; it looks at the state then.
        crash: steps that are done when it dies; None if it does not.
        way: of dying: "head" between two steps, "all" together with all its helpers, "random" while this step or the next
            goes on.
        settles: it waits for what is still being saved before it dies.
        fill: fill the disk that the folder is on when so many steps are done.
        looks: look at the state before each step, and not only at the first and the last.
    """

    peer: str
    folder: Path
    width: int
    every: int
    until: int
    crash: int | None = None
    way: str = "head"
    settles: bool = False
    fill: int | None = None
    looks: bool = False


def live(life: Life, fifo: Path) -> None:
    """The whole of it, in the new process; what happens is told as JSON, a line each."""
    told = os.open(fifo, os.O_WRONLY)
    log = os.open(life.folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)

    def tell(**event: Any) -> None:
        os.write(told, (json.dumps(event) + "\n").encode())

    tell(born=os.getpid())
    torch.set_num_threads(1)
    try:
        _train(life, tell)
    except BaseException as error:
        said = re.sub(r"/[^\s'\":]*/", "…/", f"{type(error).__name__}: {error}")  # whose folders these are matters to nobody
        tell(error=said[:600])
        raise
    finally:
        sys.stdout.flush()


def _train(life: Life, tell: Any) -> None:
    adapter = PEERS[life.peer].adapter(life.width, life.folder, life.every)
    begun = time.perf_counter()
    first = step = adapter.open()
    for batch in adapter.batches(life.until + 1):
        seconds = time.perf_counter() - begun
        seen = {"digest": adapter.job.digest(batch)} if life.looks or step in (first, life.until) else {}
        tell(head=step, seconds=seconds, **seen)
        if step == life.until:
            break
        if step == life.fill:
            _fill(life.folder)
        if step == life.crash and life.way in ("head", "all"):
            _die(life, adapter, tell)
        adapter.job.backward(*batch)
        adapter.job.update()
        step += 1
        if step % life.every == 0:
            adapter.save(step)
    adapter.close()


def _die(life: Life, adapter: Any, tell: Any) -> None:
    if life.settles:
        adapter.wait()
    tell(helpers=descendants(os.getpid()))
    if life.way == "all":
        signal.pause()  # the experiment kills this process and its helpers at once
    os.kill(os.getpid(), signal.SIGKILL)


def _fill(folder: Path) -> None:
    """To the last byte."""
    with open(folder / "filler", "wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(b"\1" * size)
            except OSError:
                size //= 2
