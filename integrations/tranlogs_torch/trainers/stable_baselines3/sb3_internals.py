"""Every name of Stable-Baselines3's inside that TranLogs needs, and nothing else: what a new version can break is here.

`learn()` counts from zero, resets the environment and calls `on_training_start`. Then it collects rollouts and trains, in turn.
`on_rollout_start` is called when the rollout buffer of PPO and A2C is empty, and when all of the training before is done.
"""

from __future__ import annotations

import inspect
from typing import Any

import stable_baselines3
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import (
    DictReplayBuffer,
    DictRolloutBuffer,
    NStepReplayBuffer,
    ReplayBuffer,
    RolloutBuffer,
)
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor, nn
from torch.optim import Optimizer

from tranlogs.base.errors import UsageError

ON_POLICY = (PPO, A2C)
OFF_POLICY = (DQN, SAC, TD3, DDPG)
BUFFERS = (ReplayBuffer, DictReplayBuffer, NStepReplayBuffer, RolloutBuffer, DictRolloutBuffer)

_EXPECTED: list[tuple[Any, str]] = [
    (BaseAlgorithm._setup_learn, "self._last_obs = self.env.reset()"),
    (BaseAlgorithm._setup_learn, "self.ep_info_buffer = deque("),
    (OnPolicyAlgorithm.learn, "callback.on_training_start(locals(), globals())"),
    (OnPolicyAlgorithm.learn, "while self.num_timesteps < total_timesteps:"),
    (OnPolicyAlgorithm.learn, "callback.on_training_end()"),
    (OnPolicyAlgorithm.collect_rollouts, "rollout_buffer.reset()"),
    (OnPolicyAlgorithm.collect_rollouts, "callback.on_rollout_start()"),
    (OffPolicyAlgorithm.learn, "callback.on_training_start(locals(), globals())"),
    (OffPolicyAlgorithm.learn, "while self.num_timesteps < total_timesteps:"),
    (OffPolicyAlgorithm.learn, "callback.on_training_end()"),
    (OffPolicyAlgorithm.collect_rollouts, "callback.on_rollout_start()"),
    (ReplayBuffer.add, "self.pos += 1"),
    (ReplayBuffer.__init__, "self.observations = np.zeros((self.buffer_size,"),
    (RolloutBuffer.reset, "super().reset()"),
    (CallbackList._on_rollout_start, "callback.on_rollout_start()"),
    (EvalCallback.__init__, "self.evaluations_results"),
    (Monitor.__init__, "self.episode_returns"),
    (Logger.__init__, "self.name_to_excluded"),
    (DummyVecEnv.__init__, "self.envs ="),
]


def check_stable_baselines3() -> None:
    """Raise UsageError if TranLogs does not support this Stable-Baselines3; the message names what is missing."""
    missing = [f"{method.__qualname__} ({part})" for method, part in _EXPECTED if part not in inspect.getsource(method)]
    if missing:
        raise UsageError(
            f"stable-baselines3 {stable_baselines3.__version__} lacks what TranLogs needs to resume inside learn(): "
            f"{', '.join(missing)}. Supported is 2.9: pip install 'stable-baselines3>=2.9,<2.10'"
        )


def optimizers(model: Any) -> dict[str, Optimizer]:
    """Return the optimizers of an algorithm by name, in the order in which it steps them."""
    if isinstance(model, (SAC, TD3)):
        found = {"critic": model.critic.optimizer, "actor": model.actor.optimizer}
        entropy = getattr(model, "ent_coef_optimizer", None)
        return found if entropy is None else {**found, "entropy": entropy}
    return {"main": model.policy.optimizer}


def find_other_optimizers(model: Any) -> list[str]:
    """Return the places of optimizers that TranLogs does not know of: a policy of the user's may have one."""
    known = set(map(id, optimizers(model).values()))
    places = {"model": model} | {f"policy {name}".rstrip(): module for name, module in model.policy.named_modules()}
    return [
        f"{place}.{name}"
        for place, owner in places.items()
        for name, value in vars(owner).items()
        if isinstance(value, Optimizer) and id(value) not in known
    ]


def modules(model: Any) -> dict[str, nn.Module]:
    """Return the modules of an algorithm: its policy, with target networks, and a coefficient that lies outside of it."""
    found: dict[str, nn.Module] = {"policy": model.policy}
    coefficient = getattr(model, "log_ent_coef", None)
    if isinstance(coefficient, Tensor):
        found["entropy"] = _Loose("log_ent_coef", coefficient)
    return found


class _Loose(nn.Module):
    """A tensor that is trained and belongs to no module."""

    def __init__(self, name: str, tensor: Tensor) -> None:
        super().__init__()
        self._parameters[name] = tensor  # type: ignore[assignment]  # it is a plain tensor, and has to stay this one


def callbacks_in(root: BaseCallback) -> list[BaseCallback]:
    """Return a callback and all that it calls, each once, in a fixed order."""
    found: list[BaseCallback] = []
    waiting = [root]
    while waiting:
        one = waiting.pop(0)
        if any(one is other for other in found):
            continue
        found.append(one)
        for name, value in vars(one).items():
            if name != "parent":
                members = value if isinstance(value, (list, tuple)) else [value]
                waiting += [member for member in members if isinstance(member, BaseCallback)]
    return found


def is_called_at_rollouts(root: BaseCallback, callback: BaseCallback) -> bool:
    """Return True if `learn` calls the callback when a rollout starts: it was given itself, or in lists."""
    if root is callback:
        return True
    return isinstance(root, CallbackList) and any(is_called_at_rollouts(one, callback) for one in root.callbacks)
