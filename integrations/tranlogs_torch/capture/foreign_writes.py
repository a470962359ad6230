"""Writes to the state that no logged step made: weight clipping, re-initialised layers, loaded weights, groups added later."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from tranlogs.base.errors import LogUnavailable
from tranlogs.records import Payload, Tensor
from tranlogs.training import Journal, Place, ScanSchedule

from ..sharding.shards import array_of
from ..state.fingerprint import Digests
from ..state.state import TorchState
from ..state.state_watch import StateWatch
from .staging import Staging

_log = logging.getLogger("tranlogs")


class ForeignWrites:
    """Compares the state with what the log holds, and logs after-images of what has changed.

    Args:
        run: folder of the run.
        journal: takes the after-images.
        state: parameters and their fingerprint.
        staging: brings after-images from a GPU to the host; None if all tensors are on the CPU.

    Attributes:
        watches: sees writes to the state of each optimizer, by its name.
        wants_checkpoint: True if a write was found so late that a checkpoint is due, or if one was asked for.
        looks: decides which scans are full ones.
    """

    def __init__(self, run: Path, journal: Journal, state: TorchState, staging: Staging | None) -> None:
        self._run, self._journal, self._state, self._staging = run, journal, state, staging
        self.watches: dict[str, StateWatch] = {}
        self.wants_checkpoint = False
        self.looks = ScanSchedule()
        self._digests: Digests | None = None
        self._trace: list[int] = []

    # Logging.

    def note(self, place: Place | None = None) -> bool:
        """Log an after-image of what changed since the last scan and not by a step, parameter groups too.

        Returns:
            True if an after-image was logged.
        """
        state, step, grown = self._state, self._journal.step, self.find_changed_groups()
        names, touched = self.parameters(step, place), self.optimizers(place)
        if not names and not touched and not grown:
            return False
        body: dict[str, Any] = {"state": {}, "groups": {}}
        if grown:
            covered = set(state.parameters)
            state.named.refresh()
            names += [name for name in state.parameters if name not in covered]
            body["groups"] = {which: state.named.groups_to_log(which) for which in grown}
        written = [(name, state.parameters[name]) for name in names]
        tensors: list[Tensor] = [(f"param/{name}", array_of(p, p, state.convert)) for name, p in written]
        for which in touched:
            found, body["state"][which] = state.state_tensors(which, state.convert)
            tensors += found
        if (payload := self.after_image(tensors, every_step=False)) is not None:
            self._journal.append_image(payload, body)
        self.remember(step)
        return True

    def after_image(self, tensors: list[Tensor], *, every_step: bool) -> Payload | None:
        """Return the payload of an after-image; None where it cannot be brought from a device: logging is suspended then."""
        if self._staging is None:
            return Payload.of(tensors)
        try:
            return self._staging.after_image(tensors, every_step=every_step)
        except LogUnavailable as error:
            self._journal.suspend(error)
            return None

    # Comparing.

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
        for watch in self.watches.values():
            watch.remember()

    def has_changed(self) -> bool:
        """Return True if something wrote to the state since the last scan."""
        return bool(self.parameters(self._journal.step) or self.optimizers() or self.find_changed_groups())

    def parameters(self, step: int, place: Place | None = None) -> list[str]:
        """Return the names of parameters that were written since.

        Args:
            step: that the journal has come to.
            place: where the loop is, for looks that may be left out (`write_forecast.py`); None for a full one.
        """
        if self._digests is None:
            return []
        fingerprint, trace = self._state.named.fingerprint, self._trace
        now = fingerprint.trace()
        found: set[int] = set()
        if now != trace:
            found = {i % fingerprint.count for i, (a, b) in enumerate(zip(now, trace, strict=False)) if a != b}
        if fingerprint.kind == "sample":
            window = fingerprint.window(step)
            found |= {window[i] for i in np.flatnonzero(fingerprint.digests(step) != self._digests).tolist()}
        elif len(self._digests) == fingerprint.count:
            known = self._digests
            untraced: set[int] = set()
            if place is None or self.looks.is_full_scan_due(place, fingerprint.look_seconds, fingerprint.step_seconds):
                digests = fingerprint.digests(step)
                if digests.tobytes() != known.tobytes():
                    untraced = set(np.flatnonzero(digests != known).tolist()) - found
            elif fingerprint.kind == "full":
                untraced = {i for i in self.looks.next_part(fingerprint.sizes) if fingerprint.one(i) != int(known[i])} - found
            found |= untraced
            if untraced and place is not None and self.looks.note_write(place):
                self._note_late_write(list(self._state.parameters)[min(untraced)])
        if not found:
            return []
        names = list(self._state.parameters)
        return [names[i] for i in sorted(found)]

    def _note_late_write(self, name: str) -> None:
        """Report a write that leaves no trace, and that was found some units after it may have been made."""
        self.wants_checkpoint = True
        _log.warning(
            "%s: after many units without such a write, %s was written between two steps in a way that leaves no trace "
            "(.data, or an alias). From here on it is logged and checked at every unit; fingerprints of earlier units show "
            "such writes",
            self._run,
            name,
        )

    def optimizers(self, place: Place | None = None) -> list[str]:
        """Return the names of optimizers whose state was written since.

        Before a step, writes that `StateWatch.after_step` is going to find are left out.
        """
        is_before_step = place == "before a step"
        found: list[str] = []
        for which, watch in self.watches.items():
            if watch.changed(is_before_step=is_before_step):
                found.append(which)
        return found

    def find_changed_groups(self) -> list[str]:
        """Return the names of optimizers whose parameter groups are not those that the log has."""
        named = self._state.named
        found: list[str] = []
        for which, optimizer in named.optimizers.items():
            known, groups = named.logged_members.get(which, ()), optimizer.param_groups
            is_known = len(known) == len(groups)
            for group, members in zip(groups, known, strict=False):
                is_known = is_known and list(map(id, group["params"])) == members
            if not is_known:
                found.append(which)
        return found

    def find_other_writes(self) -> list[str]:
        """Return the names of optimizers whose state or groups something other than a step has written."""
        return self.optimizers() or self.find_changed_groups()
