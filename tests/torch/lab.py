"""Train, die, come back, compare: what the tests of the PyTorch integration share.

A script is a function of an `Attempt`: it builds everything anew, calls `attempt.start`, and trains. The same script runs
unlogged and uninterrupted for what is right, and logged in forked children that die at a tick of its body.
"""

from __future__ import annotations

import copy
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import xxhash

from tranlogs.training import Remembered
from tranlogs.training.restarts import script_frames
from tranlogs_torch import LoggedOptimizer, RecoveryReport

script_frames.OURS.add(__name__)  # what a script has of the harness is not its own

Script = Callable[["Attempt"], None]
Outcome = dict[str, Any]  # path -> something with ==


class Attempt:
    """One run of a script.

    Args:
        run: folder of the run; None trains without TranLogs.
        die_at: tick at which the process dies by SIGKILL; None for never.
        options: for `LoggedOptimizer`.
    """

    def __init__(self, run: Path | None = None, die_at: int | None = None, **options: Any) -> None:
        self.run, self.die_at = run, die_at
        self.options: dict[str, Any] = {"durability": "process", "segment_bytes": 1 << 20, "checkpoint_every": 7} | options
        self.ticks, self._clock = 0, iter(range(1, 1 << 62))
        self.kept: dict[str, Any] = {}
        self.seen: dict[int, int] = {}
        self.reports: list[RecoveryReport] = []
        self.recover_at: int | None = None

    def wrap(self, optimizer: torch.optim.Optimizer, model: Any = None, **options: Any) -> Any:
        """The optimizer, logged; or plain, with the loops of a logged one."""
        if self.run is not None:
            return LoggedOptimizer(optimizer, self.run, model, **(self.options | options))
        return with_plain_loops(optimizer)

    def add_optimizer(self, logged: Any, optimizer: torch.optim.Optimizer, name: str, **options: Any) -> Any:
        """Another optimizer of the same run."""
        return optimizer if self.run is None else logged.add_optimizer(optimizer, name, **options)

    def start(self, optimizer: Any, /, **tracked: Any) -> None:
        """Track and recover."""
        if self.run is not None:
            optimizer.track(**tracked)
            self.reports.append(optimizer.recover(self.recover_at))
            self.final_report = lambda: optimizer.report

    def keep(self, **things: Any) -> None:
        """Compare these at the end."""
        self.kept.update(things)

    def saw(self, number: int, batch: Any) -> None:
        """Compare the batch of this number; it is remembered over the death of the process."""
        digest = xxhash.xxh3_64_intdigest(repr(flatten(batch)).encode())
        self.seen[number] = digest
        if self.run is not None:
            with open(f"{self.run}.seen", "a") as file:
                file.write(f"{number} {digest}\n")
        self.say(number)

    def say(self, number: int) -> None:
        """The body of this batch begins: a killer may wait for it."""

    def saw_next(self, batch: Any) -> None:
        """`saw`, with the number that follows the last one."""
        before = self.reports[0].batch if self.reports else 0
        self.saw(max(self.seen, default=before - 1) + 1, batch)

    def tick(self) -> None:
        """A place of the body where the process can die."""
        self.ticks = next(self._clock)  # a loop that ticks is to carry nothing of its own that is named
        if self.ticks == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def outcome(self) -> Outcome:
        """All that is compared."""
        found = flatten({name: contents(thing) for name, thing in self.kept.items()})
        return found | flatten({"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()})


def with_plain_loops(optimizer: torch.optim.Optimizer) -> Any:
    """A plain optimizer with the loops and methods of a logged one, written in the plainest way."""
    plain: Any = optimizer
    plain.batches, plain.epochs, plain.steps = _batches, _epochs, _steps
    plain.clip_grad_norm_ = partial(_clip, optimizer)
    plain.log_scalars = lambda **_: None
    plain.remember = SimpleNamespace
    plain.remember_times = SimpleNamespace
    plain.close = lambda: None
    return plain


def _batches(loader: Any, until: int | None = None, *, enumerate: bool = False) -> Iterator[Any]:
    taken = 0
    while until is None or taken < until:
        for batch in loader:
            taken += 1
            yield (taken - 1, batch) if enumerate else batch
            if taken == until:
                return


def _steps(until: int, *, stateless: bool = False) -> range:
    return range(until)


class _PlainEpoch(int):
    loader: Any = None
    batch = 0

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def enumerate(self, start: int = 0) -> Iterator[tuple[int, Any]]:
        return enumerate(self.loader, start)


def _epochs(count: int, loader: Any) -> Iterator[_PlainEpoch]:
    for number in range(count):
        epoch = _PlainEpoch(number)
        epoch.loader = loader
        yield epoch


def _clip(optimizer: torch.optim.Optimizer, max_norm: float, **options: Any) -> torch.Tensor:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm, **options)


# Comparing


def contents(thing: Any) -> Any:
    """What is compared of a module, an optimizer, or anything with a state_dict."""
    if isinstance(thing, LoggedOptimizer):
        return contents(thing.inner)
    if isinstance(thing, torch.optim.Optimizer):
        parameters = [p for group in thing.param_groups for p in group["params"]]
        groups = [{k: v for k, v in g.items() if k not in ("params", "param_names")} for g in thing.param_groups]
        return {"params": parameters, "state": [thing.state.get(p) for p in parameters], "groups": groups}
    if isinstance(thing, (Remembered, SimpleNamespace)):
        return {name: contents(value) for name, value in vars(thing).items()}
    if isinstance(thing, torch.nn.Module):
        return dict(thing.named_parameters()) | dict(thing.named_buffers())
    if isinstance(thing, np.random.Generator):
        return thing.bit_generator.state
    if isinstance(thing, dict):
        return {name: contents(value) for name, value in thing.items()}
    if hasattr(thing, "state_dict"):
        return thing.state_dict()
    return contents(thing.get_state()) if hasattr(thing, "set_state") else thing


def flatten(value: Any, path: str = "") -> Outcome:
    """Leaves by path: python types, dtypes, strides and bits."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        if value.layout is torch.sparse_coo:
            about = (value.shape, value.is_coalesced())
            return {path: about} | flatten([value._indices(), value._values()], path + ".sparse")
        bits = value.resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return {path: ("tensor", str(value.dtype), tuple(value.shape), value.stride(), bits)}
    if isinstance(value, np.ndarray):
        return {path: ("ndarray", str(value.dtype), value.shape, value.tobytes())}
    if isinstance(value, dict):
        found: Outcome = {path: (type(value).__name__, [str(key) for key in value])}
        for key, item in value.items():
            found |= flatten(item, f"{path}[{key!r}]")
        return found
    if isinstance(value, (list, tuple)):
        found = {path: (type(value).__name__, len(value))}
        for i, item in enumerate(value):
            found |= flatten(item, f"{path}[{i}]")
        return found
    return {path: (type(value).__name__, repr(value))}


def differences(a: Outcome, b: Outcome) -> list[str]:
    """Paths where two outcomes differ."""
    return [path for path in sorted(a.keys() | b.keys()) if a.get(path) != b.get(path)]


# Dying


def in_child(work: Callable[[], Any]) -> int:
    """Run `work` in a forked child; its exit status (negative: the signal that killed it)."""
    assert torch.get_num_threads() == 1, "OpenMP's threads do not survive a fork: the child would wait for them for ever"
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def uninterrupted(script: Script) -> Attempt:
    """Run a script without TranLogs."""
    attempt = Attempt()
    script(attempt)
    return attempt


def prove_exact(
    script: Script, run: Path, die_at: Sequence[int] = (), *, is_exact: bool | None = True, **options: Any
) -> Attempt:
    """Die at each of these ticks (of each attempt), finish, and compare with the uninterrupted run."""
    right = uninterrupted(script)
    for tick in die_at:
        status = in_child(lambda tick=tick: script(Attempt(run, tick, **options)))
        assert status == -signal.SIGKILL, f"the child was to die at tick {tick}; its exit status is {status}"
    last = Attempt(run, **options)
    script(last)
    found = differences(last.outcome(), right.outcome())
    assert not found, found
    for line in Path(f"{run}.seen").read_text().splitlines() if right.seen else ():
        number, digest = map(int, line.split())
        assert right.seen[number] == digest, f"batch {number} differs"
    if last.reports:
        report = last.final_report()
        assert report.exact is is_exact, report
    return last


def copied(outcome: Any) -> Any:
    """A copy that later training does not change."""
    return copy.deepcopy(outcome)
