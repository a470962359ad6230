"""Policies on which checkpoints to keep (pure). The log before the oldest kept checkpoint is deleted with the others.

The newest checkpoint is always kept, regardless of the policy. A user-defined policy is an object with
`kept(steps) -> steps`, a plain function of that form, or one with DLRover's `clean_up(step, delete_func)`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..base.errors import UsageError


class RetentionPolicy(Protocol):
    """Policy that decides which checkpoints are kept."""

    def kept(self, steps: Sequence[int]) -> Collection[int]:
        """Return the steps whose checkpoints are to be kept.

        Args:
            steps: the steps that have a checkpoint, oldest first. They ascend, except for those that a rewind has abandoned:
                these come first, until they are deleted.
        """
        ...


@dataclass(frozen=True, slots=True)
class KeepLatest:
    """Keep the newest `count` checkpoints."""

    count: int = 2

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"KeepLatest: count must be at least 1, got {self.count}")

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
            raise UsageError(f"KeepEvery: steps must be at least 1, got {self.steps}")

    def kept(self, steps: Sequence[int]) -> Collection[int]:
        return {step for step in steps if step % self.steps == 0} | set(steps[-self.latest :] if self.latest else ())


@dataclass(frozen=True, slots=True)
class KeepAll:
    """Keep all checkpoints."""

    def kept(self, steps: Sequence[int]) -> Collection[int]:
        return steps


@dataclass(frozen=True, slots=True)
class _Function:
    """A policy given as a function from steps to the steps to keep."""

    function: Callable[[Sequence[int]], Collection[int]]

    def kept(self, steps: Sequence[int]) -> Collection[int]:
        return set(self.function(steps))


@dataclass(frozen=True, slots=True)
class _CleanUp:
    """A policy with DLRover's interface: `clean_up(step, delete_func)` gets each new step and calls `delete_func(step)`."""

    strategy: Any

    def kept(self, steps: Sequence[int]) -> Collection[int]:
        deleted: set[int] = set()
        if steps:
            self.strategy.clean_up(steps[-1], deleted.add)
        return [step for step in steps if step not in deleted]


def when_full(policy: RetentionPolicy) -> RetentionPolicy | None:
    """Return the policy that applies while the disk is full; None if the same one applies then.

    A policy may have a method `when_full` that returns it. `KeepLatest` keeps only the newest checkpoint. A policy that keeps
    certain checkpoints for other uses has no such method.
    """
    method = getattr(policy, "when_full", None)
    return method() if callable(method) else None


def as_retention(keep: Any) -> RetentionPolicy:
    """Return the policy for what users write: a number, a policy, a function, or an object with `clean_up`.

    Raises:
        UsageError: `keep` is none of these.
    """
    if isinstance(keep, bool) or keep is None:
        raise UsageError(_describe_choices(keep))
    if isinstance(keep, int):
        if keep < 1:
            raise UsageError(f"keep must be at least 1, got {keep}: recovery needs a checkpoint")
        return KeepLatest(keep)
    if hasattr(keep, "kept"):
        return keep  # type: ignore[no-any-return]
    if hasattr(keep, "clean_up"):
        return _CleanUp(keep)
    if callable(keep):
        return _Function(keep)
    raise UsageError(_describe_choices(keep))


def _describe_choices(keep: Any) -> str:
    return f"keep must be a number, KeepLatest(n), KeepEvery(steps), KeepAll() or a function, got {keep!r}"
