"""After-images: the log's records of writes to the state that no step made."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from tranlogs.base.errors import LogUnavailable
from tranlogs.records import Payload, Tensor
from tranlogs.training import Place

from ..capture.staging import Staging
from ..sharding.shards import array_of
from .run_parts import RunParts

_log = logging.getLogger("tranlogs")


class WriteLog:
    """Finds writes that no step made, and logs after-images of what they changed.

    Args:
        run: folder of the run.

    Attributes:
        staging: brings after-images from a GPU to the host; None if all tensors are on the CPU.
        wants_checkpoint: True if a write was found so late that a checkpoint is due.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self.staging: Staging | None = None
        self.wants_checkpoint = False

    def attach(self, parts: RunParts, staging: Staging | None) -> None:
        """Set the parts of the run, which are made later than this object."""
        self._journal, self._state, self._hooks, self._writes = parts.journal, parts.state, parts.hooks, parts.writes
        self.staging = staging

    def note(self, place: Place | None = None) -> bool:
        """Log an after-image of what changed since the last scan and not by a step, parameter groups too.

        Returns:
            True if an after-image was logged.
        """
        journal, state = self._journal, self._state
        step, grown = journal.step, self.find_changed_groups()
        if journal.log.suspension is not None:  # a checkpoint will hold it all
            state.named.refresh()
            self._writes.remember(step)
            return False
        names, touched = self._writes.parameters(step, place), self._writes.optimizers(place)
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
            journal.append_image(payload, body)
        self._writes.remember(step)
        return True

    def has_changed(self) -> bool:
        """Return True if something wrote to the state since the last scan."""
        writes, step = self._writes, self._journal.step
        return bool(writes.parameters(step) or writes.optimizers() or self.find_changed_groups())

    def find_other_writes(self) -> list[str]:
        """Return the names of optimizers whose state or groups something other than a step has written."""
        return self._writes.optimizers() or self.find_changed_groups()

    def find_changed_groups(self) -> list[str]:
        """Return the names of optimizers whose parameter groups are not those that the log has."""
        named, found = self._state.named, []
        for which, hooks in self._hooks.items():
            if [list(map(id, group["params"])) for group in hooks.inner.param_groups] != named.logged_members.get(which):
                found.append(which)
        return found

    def note_late_write(self, name: str) -> None:
        """Report a write that leaves no trace, and that was found some units after it may have been made."""
        self.wants_checkpoint = True
        _log.warning(
            "%s: after many units without such a write, %s was written between two steps in a way that leaves no trace "
            "(.data, or an alias). From here on it is logged and checked at every unit; fingerprints of earlier units show "
            "such writes",
            self._run,
            name,
        )

    def after_image(self, tensors: list[Tensor], *, every_step: bool) -> Payload | None:
        """Return the payload of an after-image; None where it cannot be brought from a device: logging is suspended then."""
        if self.staging is None:
            return Payload.of(tensors)
        try:
            return self.staging.after_image(tensors, every_step=every_step)
        except LogUnavailable as error:
            self._journal.suspend(error)
            return None
