"""Which checkpoints to keep. The log behind the oldest kept one goes with the others.

The newest checkpoint is always kept, whatever a policy says. A user's own policy is an object with
`kept(steps) -> steps`, a plain function of that form, or one with DLRover's `clean_up(step, delete_func)`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..base.errors import UsageError


class RetentionPolicy(Protocol):
    """Decides which checkpoints stay."""

    def kept(self, steps: Sequence[int]) -> Collection[int]:
        """Of the steps that have a checkpoint, oldest first, those to keep.

        They ascend, but for those that a rewind left behind: these come first, until they go.
        """
        ...


@dataclass(frozen=True, slots=True)
class KeepLatest:
    """Keep the newest `count` checkpoints."""

    count: int = 2

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"KeepLatest({self.count}): at least 1")

    def kept(self, steps: Sequence[int]) -> Collection[int]:
        return steps[-self.count :]

    def when_full(self) -> KeepLatest:
        return KeepLatest(1)


@dataclass(frozen=True, slots=True)
class KeepEvery:
    """Keep checkpoints at multiples of `steps`, and the newest `latest` ones."""

    steps: int
    latest: int = 2

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UsageError(f"KeepEvery({self.steps}): at least 1")

    def kept(self, steps: Sequence[int]) -> Collection[int]:
        return {step for step in steps if step % self.steps == 0} | set(steps[-self.latest :] if self.latest else ())


@dataclass(frozen=True, slots=True)
class KeepAll:
    """Keep everything."""

    def kept(self, steps: Sequence[int]) -> Collection[int]:
        return steps


@dataclass(frozen=True, slots=True)
class _Function:
    function: Callable[[Sequence[int]], Collection[int]]

    def kept(self, steps: Sequence[int]) -> Collection[int]:
        return set(self.function(steps))


@dataclass(frozen=True, slots=True)
class _CleanUp:
    """DLRover's interface: `clean_up(step, delete_func)` is told each new step and calls `delete_func(step)`."""

    strategy: Any

    def kept(self, steps: Sequence[int]) -> Collection[int]:
        deleted: set[int] = set()
        if steps:
            self.strategy.clean_up(steps[-1], deleted.add)
        return [step for step in steps if step not in deleted]


def when_full(policy: RetentionPolicy) -> RetentionPolicy | None:
    """What is kept while the disk is full: of a number of checkpoints the newest. None where a policy means others to stay.

    A policy that wraps another one tells by a `when_full` of its own.
    """
    told = getattr(policy, "when_full", None)
    return told() if callable(told) else None


def as_retention(keep: Any) -> RetentionPolicy:
    """A policy from what users write: a number, a policy, a function, or a `clean_up` object."""
    if isinstance(keep, bool) or keep is None:
        raise UsageError(f"keep={keep!r}: give a number, KeepLatest(n), KeepEvery(steps), KeepAll() or a function")
    if isinstance(keep, int):
        if keep < 1:
            raise UsageError(f"keep={keep}: at least one checkpoint must stay")
        return KeepLatest(keep)
    if hasattr(keep, "kept"):
        return keep  # type: ignore[no-any-return]
    if hasattr(keep, "clean_up"):
        return _CleanUp(keep)
    if callable(keep):
        return _Function(keep)
    raise UsageError(f"keep={keep!r}: give a number, KeepLatest(n), KeepEvery(steps), KeepAll() or a function")
