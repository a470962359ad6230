"""How long a recovery would take, as far as this process knows: what a checkpoint policy weighs against a checkpoint's cost."""

from __future__ import annotations


class RecoverySpeed:
    """Estimates of how fast this run is recovered.

    Attributes:
        replay_seconds_per_step: of redoing one step; 0.0 if unknown.
        load_seconds: of loading a checkpoint; 0.0 if unknown.
    """

    def __init__(self) -> None:
        self.replay_seconds_per_step = 0.0
        self.load_seconds = 0.0
        self._is_replay_measured = False

    def observe_step(self, seconds: float) -> None:
        """Note what a bare optimizer step took: redoing one takes as long, until a recovery has measured it."""
        if not self._is_replay_measured:
            known = self.replay_seconds_per_step
            self.replay_seconds_per_step = seconds if known == 0.0 else 0.9 * known + 0.1 * seconds

    def observe_replay(self, seconds_per_step: float) -> None:
        """Note what redoing a step took in a recovery."""
        self.replay_seconds_per_step, self._is_replay_measured = seconds_per_step, True
