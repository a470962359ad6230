"""Writes to the state that no logged step made: weight clipping, re-initialised layers, loaded weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tranlogs.training import Place, ScanSchedule

from ..state.fingerprint import Digests, Fingerprint
from ..state.state import TorchState
from .optimizer_hooks import OptimizerHooks


class ForeignWriteDetector:
    """Compares the state with what the log holds.

    Args:
        state: parameters and their fingerprint.
        members: the optimizers; their state is watched, too.
        on_late: called with the name of a parameter whose write may have been there for some units before it was found.
    """

    def __init__(self, state: TorchState, members: Mapping[str, OptimizerHooks], on_late: Callable[[str], None]) -> None:
        self._state, self._members, self._on_late = state, members, on_late
        self.looks = ScanSchedule()
        self._digests: Digests | None = None
        self._trace: list[int] = []

    def digests(self, step: int) -> Digests:
        """Return the fingerprint of the parameters after a step, which is what the log holds from now on."""
        fingerprint = self._state.named.fingerprint
        self._digests = fingerprint.digests(step)
        self._trace = fingerprint.trace()
        return self._digests

    @property
    def known(self) -> bytes:
        """The digests of all parameters as the log holds them; empty where only some are looked at."""
        return b"" if self._digests is None or not self._state.named.fingerprint.is_whole else self._digests.tobytes()

    def remember(self, step: int) -> None:
        """Take the state as it is now for what the log holds."""
        self.digests(step)
        for member in self._members.values():
            member.watch.remember()

    def parameters(self, step: int, place: Place | None = None) -> list[str]:
        """Return the names of parameters that were written since.

        Args:
            step: that the journal has come to.
            place: where the loop is, for looks that may be left out (`write_scans.py`); None for a full one.
        """
        if self._digests is None:
            return []
        fingerprint, trace = self._state.named.fingerprint, self._trace
        now, found = fingerprint.trace(), set[int]()
        if now != trace:
            found = {i % fingerprint.count for i, (a, b) in enumerate(zip(now, trace, strict=False)) if a != b}
        if fingerprint.kind == "sample":
            window = fingerprint.window(step)
            found |= {window[i] for i in np.flatnonzero(fingerprint.digests(step) != self._digests).tolist()}
        elif len(self._digests) == fingerprint.count:
            untraced = self._untraced(fingerprint, self._digests, step, place) - found
            found |= untraced
            if untraced and place is not None and self.looks.note_write(place):
                self._on_late(list(self._state.parameters)[min(untraced)])
        if not found:
            return []
        names = list(self._state.parameters)
        return [names[i] for i in sorted(found)]

    def _untraced(self, fingerprint: Fingerprint, known: Digests, step: int, place: Place | None) -> set[int]:
        """Parameters whose bytes are others, as far as this look goes."""
        if place is None or self.looks.is_full_scan_due(place, fingerprint.look_seconds, fingerprint.step_seconds):
            now = fingerprint.digests(step)
            return set() if now.tobytes() == known.tobytes() else set(np.flatnonzero(now != known).tolist())
        if fingerprint.kind != "full":
            return set()
        return {i for i in self.looks.next_part(fingerprint.sizes) if fingerprint.one(i) != int(known[i])}

    def optimizers(self, place: Place | None = None) -> list[str]:
        """Return the names of optimizers whose state was written since.

        Before a step, writes that `StateWatch.after_step` is going to find are left out.
        """
        is_before_step, found = place == "before a step", []
        for which, member in self._members.items():
            if member.watch.changed(is_before_step=is_before_step):
                found.append(which)
        return found
