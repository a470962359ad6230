"""The moment when a rank has run out of data and begins to shadow the others (`DistributedDataParallel.join`).

torch asks a module for its join hook as the context is made, and calls that in each iteration of the others. What the module
gives is watched here, since `ddp.join()` takes no further participants.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from torch.distributed.algorithms.join import JoinHook


class Leaving(Protocol):
    """Listener that is called when this rank has run out of data.

    Attributes:
        came_back: True if this rank had left already when the run was recovered, and others had not.
    """

    came_back: bool

    def leave_join(self) -> None:
        """Note that this rank has no data left, and others have."""
        ...


class WatchedJoin:
    """Replacement of a module's `join_hook`. Copies of the module do not carry the listener along."""

    def __init__(self, ddp: Any, listener: Leaving) -> None:
        self._ddp, self._listener = ddp, weakref.ref(listener)

    def __call__(self, **options: Any) -> JoinHook:
        hook: JoinHook = type(self._ddp).join_hook(self._ddp, **options)
        listener = self._listener() if self._listener is not None else None
        return hook if listener is None else _Watched(hook, listener)

    def __getstate__(self) -> dict[str, Any]:
        return {"_ddp": self._ddp, "_listener": None}


class _Watched(JoinHook):
    def __init__(self, hook: JoinHook, listener: Leaving) -> None:
        self._hook, self._listener, self._has_left = hook, listener, False

    def main_hook(self) -> None:
        if not self._has_left:
            self._has_left = True
            self._listener.leave_join()
        self._hook.main_hook()

    def post_hook(self, is_last_joiner: bool) -> None:
        """Share the weights of the last rank, except in a run recovered after its last step, where all seem to be the last."""
        self._hook.post_hook(is_last_joiner and not self._listener.came_back)
