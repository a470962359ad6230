"""The callback: one more entry in `callback=[...]`, and `model.learn(...)` comes back after a crash."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from stable_baselines3 import SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from tranlogs.base.errors import UsageError
from tranlogs.training import announce

from ...data.rng import get_rng, set_rng
from ...optimizer import LoggedOptimizer
from ..logging_callback import LoggingCallback
from . import sb3_internals
from .experience import Experience
from .learning import END, ROLLOUT, Learning, names

sb3_internals.check_stable_baselines3()


class TranLogsSB3Callback(LoggingCallback, BaseCallback):  # type: ignore[misc]
    """Logs every step of `model.learn`; run the same script again after a crash, and training goes on.

        model = PPO("MlpPolicy", env)
        model.learn(total_timesteps=100_000, callback=TranLogsSB3Callback("runs/ppo"))

    Boundaries lie where a rollout starts. What was collected and trained since the last one is computed again after a crash,
    from the same state of the environment and of all random numbers, and with the same replay buffer.

    Args:
        run: folder of the run; made if there is none. One run for one `learn`: the same script, the same environment.
        boundary_every: timesteps between two boundaries at least. Each takes about a millisecond.
        verbose: whether to print what a new run writes, and where training goes on.
        settings: all that `LoggedOptimizer` takes besides: checkpoint_every, durability, keep, log, monitor, store, ...

    Raises:
        UsageError: a setting is wrong, or this version of Stable-Baselines3 is not known.
    """

    def __init__(self, run: str | Path, *, boundary_every: int = 100, verbose: bool = True, **settings: Any) -> None:
        BaseCallback.__init__(self, verbose=int(verbose))
        if not isinstance(boundary_every, int) or boundary_every < 1:
            raise UsageError(f"boundary_every must be a number of timesteps, 1 or more, got {boundary_every!r}")
        LoggingCallback.__init__(self, run, settings)
        self._boundary_every = boundary_every
        self._learning: Learning | None = None
        self._boundary_at = 0  # timesteps
        self._rng: dict[str, Any] = {}
        self._timesteps: int | None = None  # of a training that a callback had stopped

    # Hooks of Stable-Baselines3

    def _on_training_start(self) -> None:
        """`learn` has set its counters to zero and reset the environment: recover."""
        if self._logged is not None:
            raise UsageError(
                f"{self._run}: this callback has already logged another learn(). Create one per learn(), each with a folder "
                "of its own"
            )
        root = self.locals["callback"]
        self._refuse(self.model, root)
        learning = Learning(self.model, root, self, self.locals["total_timesteps"])
        logged = self._wrap(self.model)
        try:
            self._recover(logged, learning)
        except BaseException:
            logged.close()
            raise

    def _refuse(self, model: BaseAlgorithm, root: BaseCallback) -> None:
        known = (*sb3_internals.ON_POLICY, *sb3_internals.OFF_POLICY)
        if not isinstance(model, known):
            raise UsageError(f"{self._run}: a {type(model).__name__} cannot be resumed; supported are {names(known)}")
        for name in ("replay_buffer", "rollout_buffer"):
            kind: Any = type(getattr(model, name, None))
            if kind not in (type(None), *sb3_internals.BUFFERS):
                raise UsageError(
                    f"{self._run}: the {name} is a {kind.__name__}, whose state is unknown; supported are "
                    f"{names(sb3_internals.BUFFERS)}"
                )
        if unknown := sb3_internals.find_other_optimizers(model):
            raise UsageError(f"{self._run}: the algorithm has a second optimizer ({unknown[0]}), which would not be logged")
        if model.use_sde:
            raise UsageError(f"{self._run}: use_sde=True: the exploration matrices cannot be stored. Leave it out")
        if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            raise UsageError(f"{self._run}: learn() is logged for one process, but several train together")
        others = [one for one in sb3_internals.callbacks_in(root) if isinstance(one, TranLogsSB3Callback) and one is not self]
        if others:
            raise UsageError(f"{self._run}: this learn() has two TranLogsSB3Callbacks; keep one")
        if not sb3_internals.is_called_at_rollouts(root, self):
            raise UsageError(
                f"{self._run}: this callback is inside another callback, which does not call it where rollouts start. Give "
                "it to learn() itself: learn(callback=[TranLogsSB3Callback(...), ...])"
            )

    def _wrap(self, model: BaseAlgorithm) -> LoggedOptimizer:
        (name, first), *others = sb3_internals.optimizers(model).items()
        logged = LoggedOptimizer(first, self._run, sb3_internals.modules(model), name=name, **self._settings)
        logged.training_run.report.face = "callback"
        try:
            for other, optimizer in others:
                logged.add_optimizer(optimizer, name=other)
        except BaseException:
            logged.close()
            raise
        if isinstance(model, sb3_internals.OFF_POLICY):
            logged.training_run.tracking.expect_writes()  # target networks follow by `.data`
        return logged

    def _recover(self, logged: LoggedOptimizer, learning: Learning) -> None:
        logged.track(learning=learning)
        for path in ("tracked.learning", "added.experience.lists"):
            logged.training_run.tracking.ignore_in_recheck(path)
        logged.training_run.tracking.grow("experience", Experience(self.model, learning.lists))
        logged.recover()
        self._logged, self._learning, self._is_open = logged, learning, True
        learning.set_back()
        for doubt in learning.find_doubts():
            logged.training_run.report.warn(doubt, False)
        self._turns = logged.steps(until=sys.maxsize, stateless=True)
        next(self._turns)
        self._rng = get_rng()
        if learning.is_stopped:
            self._timesteps, self.model.num_timesteps = self.model.num_timesteps, self.locals["total_timesteps"]
        self._is_finished = learning.is_finished
        if self.verbose:
            report = replace(logged.report, batch=0)  # rollouts are counted there, and have no batches
            announce(self._run, report, f"timestep {learning.timesteps}", is_finished=self._is_finished)

    def _on_rollout_start(self) -> None:
        """Commit a boundary: the rollout before has been trained on."""
        learning = self._learning
        if not self._is_open or learning is None:
            return
        if self._has_begun:
            if self.model.num_timesteps - self._boundary_at >= self._boundary_every:
                self._pass_boundary(ROLLOUT)
            return
        self._has_begun = True
        if learning.is_loaded and learning.place == ROLLOUT:
            learning.set_back()  # other callbacks' hooks, and the beginning of `collect_rollouts`, ran again
            set_rng(self._rng)
        self._boundary_at = self.model.num_timesteps

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        if self._is_open:
            if self._has_begun:
                self._pass_boundary(END)
            if self._timesteps is not None:
                self.model.num_timesteps = self._timesteps
            self.close()

    # Boundaries

    def _pass_boundary(self, place: str) -> None:
        assert self._learning is not None
        self._learning.place, self._boundary_at = place, self.model.num_timesteps
        if isinstance(self.model, (SAC, TD3)):
            for parameter in self.model.policy.parameters():
                parameter.grad = None  # the actor's loss has left some in the critic, which `train` clears before it uses them
        next(self._turns)

    def close(self) -> None:
        """Seal the run and release it. `learn` does so at its end; after an exception out of `learn` it is yours to do."""
        if not self._is_open:
            return
        self._is_open = False
        self._turns.close()  # type: ignore[attr-defined]
        self.optimizer.close()
