"""In the style of Stable-Baselines3's documentation: an algorithm, its environments, an evaluation now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch._dynamo  # noqa: F401  # before TensorFlow, which Stable-Baselines3 imports where TensorBoard is installed
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import VecNormalize

from tests.kills.pytorch import Job
from tests.public.torch.scripts.pole import Pole, SettablePole

NET = {"net_arch": [16]}


class Places(BaseCallback):
    """Tells the job where the training is, and counts on its own what it sees."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job, self.seen, self.best = job, 0, -np.inf
        self.lengths: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "best": self.best, "lengths": self.lengths}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen, self.best, self.lengths = state["seen"], state["best"], state["lengths"]

    def _on_training_start(self) -> None:
        inner = self.model.policy.optimizer if hasattr(self.model.policy, "optimizer") else self.model.critic.optimizer
        self.hook = inner.register_step_post_hook(lambda *_: self.job.at("step"))

    def _on_rollout_start(self) -> None:
        self.job.at("rollout start")

    def _on_step(self) -> bool:
        self.seen += 1
        self.lengths = [*self.lengths[-9:], int(self.locals["dones"].sum())]
        self.job.at("timestep")
        return True

    def _on_rollout_end(self) -> None:
        self.best = max(self.best, float(np.mean(self.lengths)))
        self.job.at("rollout end")


def learn(job: Job, model: BaseAlgorithm, timesteps: int, *others: BaseCallback, boundary_every: int = 1) -> None:
    """Learn, and keep all that can be compared."""
    places = Places(job)
    callbacks: list[BaseCallback] = [places, *others]
    if job.run is not None:
        from tranlogs_torch.trainers.stable_baselines3 import TranLogsSB3Callback

        logged = TranLogsSB3Callback(job.run, boundary_every=boundary_every, **job.settings)
        job.watch(lambda: logged.report)
        callbacks.insert(1, logged)
    model.learn(timesteps, callback=callbacks)
    places.hook.remove()
    keep(job, model, callbacks)


def keep(job: Job, model: BaseAlgorithm, callbacks: list[BaseCallback]) -> None:
    """Compare these at the end."""
    names = ("num_timesteps", "_n_updates", "_episode_num", "_last_obs", "_last_episode_starts", "_current_progress_remaining")
    names += ("exploration_rate", "_n_calls")
    job.keep(model=model.policy)
    parts = {name: getattr(model, name, None) for name in ("policy", "actor", "critic")}
    job.keep(**{name: part.optimizer for name, part in parts.items() if hasattr(part, "optimizer")})
    job.keep(counters={name: getattr(model, name) for name in names if hasattr(model, name)})
    if getattr(model, "log_ent_coef", None) is not None:
        job.keep(entropy=model.log_ent_coef, entropy_state=model.ent_coef_optimizer.state_dict())
    job.keep(episodes=[{key: value for key, value in info.items() if key != "t"} for info in model.ep_info_buffer])
    buffer = getattr(model, "replay_buffer", None)
    if buffer is not None:
        kept = {key: value for key, value in vars(buffer).items() if isinstance(value, (np.ndarray, int, bool))}
        job.keep(buffer=kept)
    normalize = model.get_vec_normalize_env()
    if normalize is not None:
        job.keep(normalize={name: vars(rms) for name, rms in (("o", normalize.obs_rms), ("r", normalize.ret_rms))})
        job.keep(returns=normalize.returns)
    env: Any = model.get_env()
    inner = [one.unwrapped for one in env.unwrapped.envs]
    job.keep(env=[one.look_inside() if isinstance(one, Pole) else one.state for one in inner])
    job.keep(numbers=[one.np_random.bit_generator.state for one in inner])
    job.keep(monitors=[[one.get_episode_rewards(), one.get_total_steps(), one.rewards] for one in env.unwrapped.envs])
    job.keep(spaces=[one.action_space.np_random.bit_generator.state for one in inner])
    for callback in callbacks:
        if isinstance(callback, Places):
            job.keep(places=[callback.seen, callback.best, callback.lengths, callback.n_calls])
        if isinstance(callback, EvalCallback):
            job.keep(evaluations=[callback.best_mean_reward, callback.last_mean_reward, callback.n_calls])
            job.keep(results=[callback.evaluations_results, callback.evaluations_timesteps, callback.evaluations_length])


def ppo(job: Job) -> None:
    """Several environments, normalized; an evaluation with environments of its own, which saves the best model."""
    env = VecNormalize(make_vec_env(Pole, n_envs=3, seed=5))
    evaluation = EvalCallback(
        VecNormalize(make_vec_env(Pole, n_envs=1, seed=7), training=False),
        n_eval_episodes=2,
        eval_freq=30,
        log_path=str(job.folder / "evaluations"),
        best_model_save_path=str(job.folder / "best"),
        deterministic=False,
        verbose=0,
    )
    model = PPO("MlpPolicy", env, n_steps=16, batch_size=12, n_epochs=2, seed=3, policy_kwargs=NET, device="cpu")
    learn(job, model, 300, evaluation)


def a2c(job: Job) -> None:
    """An environment with methods for its state; its own optimizer, another learning rate at each update."""
    model = A2C(
        "MlpPolicy", Monitor(SettablePole()), learning_rate=lambda left: 1e-3 * left, seed=4, policy_kwargs=NET, device="cpu"
    )
    learn(job, model, 120)


def dqn(job: Job) -> None:
    """A replay buffer that comes round, a target network that follows now and then."""
    model = DQN(
        "MlpPolicy",
        Pole(),
        buffer_size=70,
        learning_starts=20,
        batch_size=8,
        target_update_interval=24,
        exploration_fraction=0.5,
        seed=6,
        policy_kwargs=NET,
        device="cpu",
    )
    learn(job, model, 220, boundary_every=9)


def sac(job: Job) -> None:
    """Three optimizers, two environments, several gradient steps for each rollout, a memory-efficient replay buffer."""
    model = SAC(
        "MlpPolicy",
        make_vec_env(SettablePole, n_envs=2, seed=8, env_kwargs={"is_continuous": True}),
        buffer_size=60,
        learning_starts=24,
        batch_size=8,
        gradient_steps=2,
        optimize_memory_usage=True,
        replay_buffer_kwargs={"handle_timeout_termination": False},
        seed=9,
        policy_kwargs=NET,
        device="cpu",
    )
    learn(job, model, 110)


def td3(job: Job) -> None:
    """A delayed actor, correlated noise, training behind each episode."""
    noise = OrnsteinUhlenbeckActionNoise(np.zeros(1), 0.1 * np.ones(1))
    model = TD3(
        "MlpPolicy",
        Pole(is_continuous=True),
        buffer_size=1000,
        learning_starts=30,
        batch_size=8,
        train_freq=(1, "episode"),
        action_noise=noise,
        seed=10,
        policy_kwargs=NET,
        device="cpu",
    )
    learn(job, model, 130)


def ddpg(job: Job) -> None:
    """Returns of three steps, a noise for each environment."""
    env = make_vec_env(Pole, n_envs=2, seed=11, env_kwargs={"is_continuous": True})
    noise = NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))
    model = DDPG(
        "MlpPolicy",
        env,
        buffer_size=200,
        learning_starts=20,
        batch_size=8,
        n_steps=3,
        action_noise=noise,
        seed=12,
        policy_kwargs=NET,
        device="cpu",
    )
    learn(job, model, 90)


SCRIPTS: dict[str, Callable[[Job], None]] = {"ppo": ppo, "a2c": a2c, "dqn": dqn, "sac": sac, "td3": td3, "ddpg": ddpg}
