"""The parts of a run whose loop is the script's own, once it was recovered or begun in this process."""

from __future__ import annotations

from dataclasses import dataclass

from ..backends import Backend, make_backend
from ..backends.optimizer_tap import OptimizerTap
from ..run.boundaries import Boundaries
from ..run.recovery import Recovery
from ..run.run_parts import RunParts
from ..settings import LoopSettings
from ..state import environment
from ..state.architecture import describe_model
from ..state.state import LogKind, plain_attributes
from .apply_hooks import LoopCapture, ReplayableLoopState
from .loop_members import LoopVariables, Members
from .untracked_variables import UntrackedVariables


@dataclass(frozen=True, slots=True)
class BegunLoop:
    """The parts.

    Attributes:
        parts: what recovery, boundaries and loops share.
        capture: logs the steps.
        recovery: brings the run back.
        boundaries: commits the units.
        untracked: finds variables that the loop writes and the run does not know.
        taps: of the optimizers, which hand over their gradients.
    """

    parts: RunParts
    capture: LoopCapture
    recovery: Recovery
    boundaries: Boundaries
    untracked: UntrackedVariables
    taps: list[OptimizerTap]

    def tap_optimizers(self, members: Members) -> None:
        """Let the optimizers hand over the gradients of each step."""
        parts, updates = self.parts, self.capture.state.updates
        for name, optimizer in members.optimizers.items():
            self.taps.append(parts.backend.tap_optimizer(optimizer, name, self.capture, updates[name]))


def make_loop_state(members: Members, log: LogKind, settings: LoopSettings) -> tuple[ReplayableLoopState, Backend]:
    """Return the state of a run, with what describes its models and its environment.

    Args:
        members: models and optimizers.
        log: what steps are logged by, "gradients" or "weights".
        settings: of the run.
    """
    members.build()
    backend = make_backend()
    variables = LoopVariables(members, backend, is_whole=log == "weights")
    state = ReplayableLoopState(variables, backend, log, settings.shared.fingerprint)
    state.updates = {name: backend.updates_of(optimizer) for name, optimizer in members.optimizers.items()}
    state.optimizer_attributes = plain_attributes(variables.optimizers)
    state.environment = environment.describe(members, backend, variables.optimizers)
    state.about = {**describe_model(members, variables, members.models), "splits": True}
    return state, backend
