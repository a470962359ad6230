"""Writes to the state that no logged step made: weight clipping, re-initialised layers, loaded weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .fingerprint import Digests, version_of
from .member import Member
from .shards import local
from .state import TorchState


class ForeignWrites:
    """Compares the state with what the log holds.

    Args:
        state: parameters and their fingerprint.
        members: the optimizers; their state is watched, too.
    """

    def __init__(self, state: TorchState, members: Mapping[str, Member]) -> None:
        self._state, self._members = state, members
        self._digests: Digests | None = None
        self._versions: list[tuple[int, int]] = []

    def digests(self, step: int) -> Digests:
        """Fingerprint of the parameters after a step, which is what the log holds from now on."""
        self._digests = self._state.fingerprint.digests(step)
        self._remember_rest()
        return self._digests

    @property
    def known(self) -> bytes:
        """The digests of all parameters as the log holds them; empty where only some are looked at."""
        return b"" if self._digests is None or self._state.fingerprint.kind != "full" else self._digests.tobytes()

    def remember(self, step: int) -> None:
        """The log holds the state as it is now."""
        self.digests(step)
        for member in self._members.values():
            member.watch.remember()

    def parameters(self, step: int) -> list[str]:
        """Names of parameters that were written since."""
        if self._digests is None:
            return []
        fingerprint, names = self._state.fingerprint, list(self._state.parameters)
        found: set[int] = set(np.flatnonzero(fingerprint.digests(step) != self._digests).tolist())
        if fingerprint.kind != "full":  # only a window was compared; versions tell of the others
            window, now = fingerprint.window(step), self._look_at_versions()
            found = {window[i] for i in found} | {i for i, version in enumerate(now) if version != self._versions[i]}
        return [names[i] for i in sorted(found)]

    def optimizers(self) -> list[str]:
        """Names of optimizers whose state was written since."""
        return [which for which, member in self._members.items() if member.watch.changed()]

    def _remember_rest(self) -> None:
        self._versions = self._look_at_versions() if self._state.fingerprint.kind != "full" else []

    def _look_at_versions(self) -> list[tuple[int, int]]:
        return [(local(p).data_ptr(), version_of(p)) for p in self._state.fingerprint.tensors]
