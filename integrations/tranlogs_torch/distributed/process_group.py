"""The processes that train together: the wait for all of them at the start, and the exchange of small messages."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tranlogs.base.config import MISSING_SECONDS_MAX, MISSING_SECONDS_WARNED, PATIENCE_SECONDS_MAX
from tranlogs.base.errors import UsageError
from tranlogs.records import tree

from .group_messages import NoteBoard

MADE, HERE = "made", "here"  # names of notes: a LoggedOptimizer was made; the process has come
_POLL_SECONDS_MAX = 1.0


def wait_for_all(
    board: NoteBoard, world: int, *, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Return when all processes have come.

    Raises:
        UsageError: some did not come; the message names them.
    """
    if not board.is_there:
        return
    board.write(HERE, "")
    began, poll, is_due = now(), 0.001, MISSING_SECONDS_WARNED
    while not board.is_full(HERE):
        waited = now() - began
        missing = set(range(world)) - board.read(HERE).keys() if waited >= is_due else set()
        if missing:
            text = _describe_missing(missing, board.read(MADE), waited)
            if waited >= max(MISSING_SECONDS_MAX, board.seconds_max):
                raise UsageError(text)
            _log.warning("%s", text)
            is_due = min(2 * is_due, max(MISSING_SECONDS_MAX, board.seconds_max))
        sleep(poll)
        poll = min(2 * poll, _POLL_SECONDS_MAX)


def _describe_missing(missing: Collection[int], made: Collection[int], seconds: float) -> str:
    without = [rank for rank in sorted(missing) if rank not in made]
    behind = [rank for rank in sorted(missing) if rank in made]
    found = [f"{_named(without)} created no LoggedOptimizer"] if without else []
    found += [f"{_named(behind)} created one but not reached recover() or a first step"] if behind else []
    return (
        f"waiting for other processes for {seconds:.0f} s: {'; '.join(found)}. All processes of torch.distributed agree on "
        "the step to resume from, so each of them must create a LoggedOptimizer and call recover(), even if only one saves. "
        "Leave a process that does not train with the others (it evaluates, or belongs to another group) out of "
        "init_process_group()"
    )


def _named(ranks: list[int]) -> str:
    return f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} have"


_log = logging.getLogger("tranlogs")

_CURE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


class Group:
    """All processes of torch.distributed. Their messages are trees of plain values: nothing is unpickled.

    Until training begins the processes wait for each other in a process group of their own, because the time limit of the
    script's group is made for steps: a process may have minutes of its log to redo, or a journal to fetch from a store. Dead
    processes are noticed there as in any group, by their connections.

    Attributes:
        rank: of this process, from 0.
        world: number of processes.
        board: notes of the processes for each other.
    """

    def __init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.backend = str(dist.get_backend())
        self.board = NoteBoard(self.rank, self.world)
        self.board.write(MADE, "")
        self._patient: Any = None
        self._usual: Any = None
        self._has_met = self._has_begun = False

    @property
    def _group(self) -> Any:
        """The process group for messages. All processes make the groups here, at the first message."""
        if not self._has_met:
            self._has_met = True
            wait_for_all(self.board, self.world)
            self._patient = dist.new_group(backend="gloo", timeout=timedelta(seconds=PATIENCE_SECONDS_MAX))
            has_cpu = "gloo" in str(dist.get_backend_config(dist.group.WORLD)) if dist.group.WORLD is not None else False
            self._usual = None if has_cpu else dist.new_group(backend="gloo")  # NCCL moves what lies on GPUs only
        return self._usual if self._has_begun else self._patient

    def begin(self) -> None:
        """Apply the script's time limit from now on, because training begins. All must call it."""
        self._has_begun = True

    @contextmanager
    def waiting_long(self) -> Iterator[None]:
        """Apply the long time limit once more, while all processes redo their logs. All must call it."""
        has_begun, self._has_begun = self._has_begun, False
        try:
            yield
        finally:
            self._has_begun = has_begun

    def gather(self, value: Any) -> Sequence[Any]:
        """Return the value of each process, by rank. All must call it."""
        blob = tree.encode(value)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor([len(blob)]), group=self._group)
        longest = max(int(size) for size in sizes)
        mine = torch.zeros(longest, dtype=torch.uint8)
        mine[: len(blob)] = torch.frombuffer(bytearray(blob), dtype=torch.uint8)
        blobs = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.world)]
        dist.all_gather(blobs, mine, group=self._group)
        return [tree.decode(blob[: int(size)].numpy().tobytes()) for blob, size in zip(blobs, sizes, strict=True)]

    def pass_back(self, blob: bytes) -> bytes:
        """Send bytes to the previous rank; return the bytes of the next rank. All must call it."""
        before, behind = (self.rank - 1) % self.world, (self.rank + 1) % self.world
        size, theirs = torch.tensor([len(blob)]), torch.zeros(1, dtype=torch.int64)
        content = torch.frombuffer(bytearray(blob), dtype=torch.uint8)
        sent = [dist.isend(one, before, group=self._group) for one in (size, content)]
        dist.recv(theirs, behind, group=self._group)
        found = torch.empty(int(theirs), dtype=torch.uint8)
        dist.recv(found, behind, group=self._group)
        for one in sent:
            if one is not None:
                one.wait()
        return found.numpy().tobytes()

    def broadcast(self, blob: bytes, source: int) -> bytes:
        """Return the bytes of rank `source`. All must call it."""
        size = torch.tensor([len(blob)])
        dist.broadcast(size, source, group=self._group)
        content = torch.frombuffer(bytearray(blob), dtype=torch.uint8) if self.rank == source else None
        if content is None:
            content = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(content, source, group=self._group)
        return content.numpy().tobytes()

    def send(self, blob: bytes, to: int) -> None:
        """Send bytes to rank `to`, which must receive them."""
        dist.send(torch.tensor([len(blob)]), to, group=self._group)
        dist.send(torch.frombuffer(bytearray(blob), dtype=torch.uint8), to, group=self._group)

    def receive(self, source: int) -> bytes:
        """Return the bytes that rank `source` sends."""
        size = torch.zeros(1, dtype=torch.int64)
        dist.recv(size, source, group=self._group)
        found = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(found, source, group=self._group)
        return found.numpy().tobytes()


def size() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_there() -> bool:
    """Return True if this process trains together with others."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def local_world() -> int:
    """Return the number of the group's processes on this machine; that of all processes if the launcher does not set it."""
    count = os.environ.get("LOCAL_WORLD_SIZE", "")
    return (int(count) if count.isdigit() else dist.get_world_size()) if is_there() else 1


def demand_group(run: Path, *, was_alone: bool = False) -> None:
    """Refuse to open, begin or recover a run alone if this process was started as one of several.

    Args:
        run: the run's folder.
        was_alone: True if there was no process group when the LoggedOptimizer was made.

    Raises:
        UsageError: WORLD_SIZE is above 1 without a process group, or the process group was made too late.
    """
    world = os.environ.get("WORLD_SIZE", "1")
    if is_there() and was_alone:
        why = "torch.distributed was initialized after LoggedOptimizer(...) was created"
    elif not is_there() and world.isdigit() and int(world) > 1:
        why = f"WORLD_SIZE is {world}, but torch.distributed is not initialized"
    else:
        return
    raise UsageError(
        f"{run}: {why}, so this process cannot agree with the others on a step. Call torch.distributed.init_process_group() "
        "before creating LoggedOptimizer(...)"
    )


def warn_of_restarts(rank: int) -> None:
    """Warn, before the first crash, that a restart by torchrun hangs in this version of torch unless a variable is set."""
    may_restart = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") not in ("", "0")
    shares_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if rank == 0 and may_restart and shares_store and not os.environ.get(_CURE):
        _log.warning(
            "torchrun --max-restarts: after a crash the restarted processes read the addresses of the dead ones and hang "
            "before any code of a script runs. Start torchrun with %s=1 in the environment",
            _CURE,
        )
