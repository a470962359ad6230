"""The record of one step, from the moment its gradients are there until the optimizer has used them.

begin      the gradients' payload goes to the log, which writes it while the optimizer steps
commit     the step is taken: hyper-parameters and the fingerprint of the state after it complete the record
image      instead of both, where gradients do not tell it all: the state after the step
drop       the step did not come to its end, or what was begun is out of date
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..encoding.tree import Fixed
from ..journal import Journal
from ..journal.writing.record_writers import StepRecord
from ..log.layout import Payload


class StepRecorder:
    """Logs the steps of one optimizer.

    Args:
        journal: where records go.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._record: StepRecord | None = None
        self._body = Kept()  # the last one, which the log need not encode again

    @property
    def is_open(self) -> bool:
        """Whether a record was begun and can still be committed."""
        return self._record is not None and self._record.is_open

    def begin(self, payload: Payload) -> None:
        """Start the record of the next step. The payload's memory stays as it is until `wait` or `commit` has returned."""
        self.drop()
        self._record = self._journal.begin_step(payload)

    def wait(self) -> None:
        """Wait until the payload's memory may change."""
        if self._record is not None:
            self._journal.wait_step(self._record)

    def commit(self, body: dict[str, Any], digests: bytes) -> None:
        """Finish the record: the step was taken from its payload."""
        record, self._record = self._record, None
        self._journal.commit_step(record, self._body.of(body), digests)

    def image(self, payload: Payload, body: dict[str, Any], digests: bytes) -> None:
        """Log the state after the step instead."""
        self.drop()
        self._journal.append_step(payload, body, digests)

    def drop(self) -> None:
        """Forget the record that was begun."""
        if self._record is not None:
            self._journal.abort_step(self._record)
            self._record = None


class ReplayCheck:
    """When a step is taken a second time, to see whether gradients are all that an update consumes.

    That cannot be read off an optimizer: it may draw random numbers, count on itself, or look at the loss. So it is tried
    at the first steps, and each time their number has doubled.
    """

    def __init__(self) -> None:
        self._steps = 0

    def is_due(self) -> bool:
        """Count a step; True if it is one to be taken twice."""
        self._steps += 1
        return self._steps & (self._steps - 1) == 0


def is_same(a: Any, b: Any) -> bool:
    """Return True if two plain values are equal for certain, to the bit; anything but plain values counts as different."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return len(a) == len(b) and all(key in b and is_same(value, b[key]) for key, value in a.items())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(is_same, a, b))
    return isinstance(a, _PLAIN) and a == b and (a != 0 or str(a) == str(b))  # 0.0 and -0.0 are different bytes


def copied(value: Any) -> Any:
    """Return a copy of a plain value that no later change of a list or dict in it reaches."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return tuple(map(copied, value)) if type(value) is tuple else value


_PLAIN = (str, int, float, bool, bytes, type(None))


class Kept:
    """A value that is handed out as the same `Fixed` object as long as it does not change."""

    def __init__(self, is_equal: Callable[[Any, Any], bool] = is_same) -> None:
        self._is_equal = is_equal
        self._fixed: Fixed | None = None

    def of(self, value: Any) -> Fixed:
        """Return the value as a `Fixed`: the one of before if it is equal to that."""
        if self._fixed is None or not self._is_equal(self._fixed.value, value):
            self._fixed = Fixed(copied(value))
        return self._fixed
