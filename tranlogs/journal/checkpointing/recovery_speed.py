"""Estimates of how long a recovery takes. A checkpoint policy weighs them against the cost of a checkpoint."""

from __future__ import annotations


class RecoverySpeed:
    """Estimates of how fast this run is recovered.

    Attributes:
        replay_seconds_per_step: seconds to redo one step; 0.0 if unknown.
        load_seconds: seconds to load a checkpoint; 0.0 if unknown.
    """

    def __init__(self) -> None:
        self.replay_seconds_per_step = 0.0
        self.load_seconds = 0.0
        self._is_replay_measured = False

    def observe_step(self, seconds: float) -> None:
        """Record the duration of an optimizer step. It is the estimate for redoing a step until a recovery measures that."""
        if not self._is_replay_measured:
            known = self.replay_seconds_per_step
            self.replay_seconds_per_step = seconds if known == 0.0 else 0.9 * known + 0.1 * seconds

    def observe_replay(self, seconds_per_step: float) -> None:
        """Record how long redoing a step took in a recovery."""
        self.replay_seconds_per_step, self._is_replay_measured = seconds_per_step, True
