"""The record of one step, from the moment its gradients exist until the optimizer has used them.

begin      hand the gradients' payload to the log, which writes it while the optimizer steps
commit     complete the record with hyper-parameters and the fingerprint of the state after the step
log_image  instead of both: log the state after the step, if gradients do not determine it
discard    drop the record: the step did not complete, or what was begun is out of date
"""

from __future__ import annotations

from operator import is_
from typing import Any

from ..encoding.tree import Fixed
from ..journal.journal import Journal
from ..journal.record_writers import StepRecord
from ..log.layout import Payload


class StepRecorder:
    """Logs the steps of one optimizer.

    Args:
        journal: where records go.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._record: StepRecord | None = None
        self._body = FixedCache()  # the last body

    @property
    def is_open(self) -> bool:
        """True if a record was begun and can still be committed."""
        return self._record is not None and self._record.is_open

    def begin(self, payload: Payload) -> None:
        """Start the record of the next step. The payload's memory must not change until `wait` or `commit` has returned."""
        if self._record is not None:
            self.discard()
        self._record = self._journal.begin_step(payload)

    def wait(self) -> None:
        """Wait until the payload's memory may change."""
        if self._record is not None:
            self._journal.wait_step(self._record)

    def commit(self, body: dict[str, Any], digests: bytes, *, is_frozen: bool = False) -> None:
        """Complete the record, after the step was taken with its payload.

        Args:
            body: hyper-parameters and what else a replay needs.
            digests: fingerprint of the state after the step.
            is_frozen: True if no value of the body is ever written to again (`FixedCache.of_frozen`).
        """
        record, self._record = self._record, None
        fixed = self._body.of_frozen(body) if is_frozen else self._body.of(body)
        self._journal.commit_step(record, fixed, digests)

    def log_image(self, payload: Payload, body: dict[str, Any], digests: bytes) -> None:
        """Log the state after the step, instead of a record of gradients."""
        self.discard()
        self._journal.append_step(payload, body, digests)

    def discard(self) -> None:
        """Discard the record that was begun, if there is one."""
        if self._record is not None:
            self._journal.abort_step(self._record)
            self._record = None


class ReplayCheck:
    """Decides which steps are taken a second time, to check that gradients are all that an update depends on.

    That cannot be read off an optimizer, which may draw random numbers, count its own calls, or use the loss. So it is tried
    at the first steps, and each time their number has doubled.
    """

    def __init__(self) -> None:
        self._steps = 0

    def is_due(self) -> bool:
        """Count a step; return True if it should be taken twice."""
        self._steps += 1
        return self._steps & (self._steps - 1) == 0


def is_same(a: Any, b: Any) -> bool:
    """Return True if two plain values are equal, to the bit. Values that are not plain count as different."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return len(a) == len(b) and all(key in b and is_same(value, b[key]) for key, value in a.items())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(is_same, a, b))
    return isinstance(a, _PLAIN) and a == b and (a != 0 or str(a) == str(b))  # 0.0 and -0.0 are different bytes


def copy_plain(value: Any) -> Any:
    """Return a copy of a plain value that does not share lists or dicts with it."""
    if isinstance(value, dict):
        return {key: copy_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copy_plain(item) for item in value]
    return tuple(map(copy_plain, value)) if type(value) is tuple else value


def _are_identical(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return len(a) == len(b) and all(map(is_, a.values(), b.values())) and list(a) == list(b)


_PLAIN = (str, int, float, bool, bytes, type(None))


class FixedCache:
    """Hands out a value as the same `Fixed` object as long as it does not change, so that the log need not encode it again."""

    def __init__(self) -> None:
        self._fixed: Fixed | None = None
        self._frozen: dict[str, Any] | None = None

    def of_frozen(self, values: dict[str, Any]) -> Fixed:
        """Return a dict as a `Fixed`: the previous one if each value is the same object. No value may be written to any more.

        To compare the contents would take longer than to encode them.
        """
        if self._frozen is None or not (values is self._frozen or _are_identical(self._frozen, values)):
            self._frozen, self._fixed = values, Fixed(values)
        assert self._fixed is not None
        return self._fixed

    def of(self, value: Any) -> Fixed:
        """Return the value as a `Fixed`; the previous one if the value is equal to that."""
        if self._fixed is None or not is_same(self._fixed.value, value):
            self._fixed = Fixed(copy_plain(value))
        return self._fixed


class Parts:
    """Wraps values by name. A value that is the same object as the last one under its name has not changed."""

    def __init__(self) -> None:
        self._fixed: dict[str, Fixed] = {}

    def of(self, name: str, value: Any) -> Fixed:
        """Wrap a value."""
        known = self._fixed.get(name)
        if known is None or known.value is not value:
            known = self._fixed[name] = Fixed(value)
        return known

    def under(self, prefix: str, values: dict[str, Any]) -> dict[str, Fixed]:
        """Several values as parts of their own; `found_under` is the inverse."""
        return {prefix + name: self.of(prefix + name, value) for name, value in values.items()}
