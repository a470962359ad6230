"""Stable-Baselines3's `learn`, killed at every kind of place: it ends with the bits of one that nobody killed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch._dynamo  # before TensorFlow, which Stable-Baselines3 imports where TensorBoard is installed
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EveryNTimesteps

from tests.kills.pytorch import Death, Expected, Job, finished, judge, prove
from tests.public.torch.scripts.pole import Pole, SettablePole
from tests.public.torch.scripts.stable_baselines3 import NET, SCRIPTS, learn
from tests.support import campaign
from tests.torch.lab import in_child
from tranlogs.base.errors import UsageError
from tranlogs_torch.trainers.stable_baselines3 import TranLogsSB3Callback

_ALSO = ("ddpg", "a2c")  # what is particular to them, td3 and ppo have, too


@pytest.mark.sampled(2)
@pytest.mark.crash
@pytest.mark.parametrize("name", [campaign.in_soak(name) if name in _ALSO else name for name in SCRIPTS])
def test_algorithm(name: str, tmp_path: Path) -> None:
    prove(SCRIPTS[name], tmp_path / name)


def killed(script: Callable[[Job], None], folder: Path, *deaths: Death, **options: Any) -> Any:
    """Return the untouched twin of a script, and the script killed so often."""
    place = folder / "killed"
    for death in deaths:
        assert in_child(lambda death=death: Job(place, place / "run", death, **options).live(script)) == -signal.SIGKILL
    return finished(script, folder / "twin"), finished(script, place, place / "run", **options)


# Environments and callbacks that are not known


def cart_pole(job: Job) -> None:
    """gymnasium's own, in all of its wrappers: its state are attributes."""
    env = gym.make("CartPole-v1")
    learn(job, PPO("MlpPolicy", env, n_steps=24, batch_size=12, n_epochs=2, seed=1, policy_kwargs=NET, device="cpu"), 120)


@pytest.mark.crash
def test_an_environment_of_attributes_needs_nothing(tmp_path: Path) -> None:
    twin, last = killed(cart_pole, tmp_path, Death("timestep", 40), Death("step", 30))
    judge(twin, last, Expected(), "CartPole-v1")


class InParts(gym.ObservationWrapper[Any, Any, Any]):
    """Observations in parts."""

    def __init__(self) -> None:
        super().__init__(Pole())
        box = gym.spaces.Box(-10, 10, (2,))
        self.observation_space = gym.spaces.Dict({"cart": box, "pole": box})

    def observation(self, observation: Any) -> dict[str, Any]:
        return {"cart": observation[:2], "pole": observation[2:]}


def in_parts(job: Job) -> None:
    model = DQN("MultiInputPolicy", InParts(), buffer_size=40, learning_starts=10, batch_size=4, seed=2, policy_kwargs=NET)
    learn(job, model, 90, boundary_every=10)
    job.keep(parts=[model.replay_buffer.observations, model.replay_buffer.next_observations])


@pytest.mark.crash
def test_observations_in_parts_come_back(tmp_path: Path) -> None:
    twin, last = killed(in_parts, tmp_path, Death("timestep", 60), Death("step", 50), checkpoint_every=50)
    judge(twin, last, Expected(), "in parts")


class Counting(BaseCallback):
    """It keeps what can be stored, and what cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.rng, self.stream = 0, np.random.default_rng(3), iter(range(10**6))

    def _on_step(self) -> bool:
        self.count += 1 + int(self.rng.integers(3))
        return True


def with_callback(job: Job, *, is_storable: bool) -> None:
    counting = Counting()
    if is_storable:
        del counting.stream
    model = PPO("MlpPolicy", Pole(), n_steps=24, batch_size=12, n_epochs=1, seed=1, policy_kwargs=NET, device="cpu")
    learn(job, model, 96, counting)
    job.keep(count=counting.count, counting=counting.rng.bit_generator.state)


@pytest.mark.crash
def test_what_a_callback_keeps_comes_back_or_is_named(tmp_path: Path) -> None:
    deaths = (Death("timestep", 35), Death("step", 8))
    judge(*killed(partial(with_callback, is_storable=True), tmp_path / "all", *deaths), Expected(), "storable")
    twin, last = killed(partial(with_callback, is_storable=False), tmp_path / "some", *deaths)
    judge(twin, last, Expected(exact=None, because="Counting.stream is a builtins.range_iterator"), "not storable")


class Sharing(BaseCallback):
    """All of its kind keep one list."""

    steps: ClassVar[list[int]] = []

    def _on_step(self) -> bool:
        self.steps.append(self.num_timesteps)
        return True


def test_what_the_class_of_a_callback_keeps_is_named(tmp_path: Path) -> None:
    reports = []
    for _ in range(2):
        model = PPO("MlpPolicy", Pole(), n_steps=8, batch_size=8, seed=1, policy_kwargs=NET, device="cpu")
        logged = TranLogsSB3Callback(tmp_path / "run", boundary_every=1, durability="process")
        model.learn(16, callback=[logged, Sharing()])
        reports.append(logged.report)
    assert reports[1].exact is None
    assert any("an attribute of the class Sharing has changed" in note for note in reports[1].notes)


# Training that ends before all timesteps are trained, or goes on


class Stops(BaseCallback):
    """It ends the training."""

    def _on_step(self) -> bool:
        return self.num_timesteps < 50


def stopped(job: Job) -> None:
    model = DQN("MlpPolicy", Pole(), learning_starts=10, batch_size=4, seed=2, policy_kwargs=NET, device="cpu")
    learn(job, model, 100, Stops())


@pytest.mark.crash
def test_a_training_that_a_callback_has_ended_is_over(tmp_path: Path) -> None:
    twin, last = killed(stopped, tmp_path, Death("step", 40))
    judge(twin, last, Expected(), "stopped")
    again = finished(stopped, tmp_path / "killed", tmp_path / "killed" / "run")
    assert not again.differences(twin)
    assert "timestep" not in again.places


def longer(job: Job, *, timesteps: int) -> None:
    model = DQN("MlpPolicy", Pole(), learning_starts=10, batch_size=4, seed=2, policy_kwargs=NET, device="cpu")
    model.exploration_schedule = lambda left: 0.3  # the default depends on the number of timesteps
    learn(job, model, timesteps)
    del job.kept["counters"]["_current_progress_remaining"]  # as does this


@pytest.mark.crash
def test_a_finished_training_goes_on_to_more_timesteps(tmp_path: Path) -> None:
    run = tmp_path / "run"
    finished(partial(longer, timesteps=60), tmp_path / "short", run)
    last = finished(partial(longer, timesteps=100), tmp_path / "long", run)
    judge(finished(partial(longer, timesteps=100), tmp_path / "twin"), last, Expected(), "longer")
    assert last.step > 0


# Refusals


class Opaque(Pole):
    """Nobody can store what it holds, and it has no methods for it."""

    def __init__(self) -> None:
        super().__init__()
        self.simulator = iter([])


class Unsound(SettablePole):
    """Its methods give something that cannot be stored."""

    def get_state(self) -> dict[str, Any]:
        return {"all": self}


class Kept(ReplayBuffer):
    """It may keep whatever it wants."""


def refused(model: Any, callback: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        model.learn(8, callback=callback)


def test_what_cannot_be_exact_is_refused_by_name(tmp_path: Path) -> None:
    def ppo(env: Any, **options: Any) -> PPO:
        return PPO("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu", **options)

    def own() -> TranLogsSB3Callback:
        return TranLogsSB3Callback(tmp_path / "run")

    refused(ppo(Opaque()), own(), r"Opaque.simulator is a builtins.\w+_iterator: .* Give the class state_dict\(\)")
    refused(ppo(Unsound()), own(), r"Unsound.get_state\(\)\['all'\] is a .*Unsound")
    refused(ppo(gym.wrappers.TimeLimit(Opaque(), 9)), own(), r"Opaque\.simulator")
    buffered = DQN("MlpPolicy", Pole(), replay_buffer_class=Kept, device="cpu")
    refused(buffered, own(), r"the replay_buffer is a Kept.* supported are ReplayBuffer")
    further = ppo(Pole())
    further.policy.mlp_extractor.other = torch.optim.SGD(further.policy.parameters(), lr=0.1)
    refused(further, own(), r"a second optimizer \(policy mlp_extractor.other\)")
    explored = SAC("MlpPolicy", Pole(is_continuous=True), use_sde=True, device="cpu")
    refused(explored, own(), "use_sde=True")
    refused(ppo(Pole()), CallbackList([own(), own()]), "has two TranLogsSB3Callbacks")
    refused(ppo(Pole()), EveryNTimesteps(10, own()), "is inside another callback")
    with pytest.raises(UsageError, match="boundary_every must be"):
        TranLogsSB3Callback(tmp_path / "run", boundary_every=0)
    assert not (tmp_path / "run").exists()


def test_what_is_printed_of_a_finished_training_is_what_the_report_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The callback's own loop has no end; that the training is over is known all the same."""
    said = []
    for timesteps in (16, 16, 24):
        model = PPO("MlpPolicy", Pole(), n_steps=8, batch_size=8, policy_kwargs=NET, seed=1, device="cpu")
        logged = TranLogsSB3Callback(tmp_path / "run", durability="process")
        model.learn(timesteps, callback=logged)
        said.append((capsys.readouterr().out, str(logged.report)))
    (_, first), (printed, again), (longer, last) = said
    assert first.startswith("fresh run")
    assert "is finished at timestep 16, and nothing is trained (for another training, give another folder): " in printed
    assert again.endswith("): the run is finished, and nothing is trained (for another training, give another folder)")
    assert "goes on at timestep 16: " in longer
    assert last.endswith(")")
    assert not any("left the loop" in text or "trains on" in text for text in (printed, again, longer, last))


def test_one_callback_logs_one_learn(tmp_path: Path) -> None:
    model = PPO("MlpPolicy", Pole(), n_steps=8, batch_size=8, policy_kwargs=NET, device="cpu")
    logged = TranLogsSB3Callback(tmp_path / "run", durability="process")
    with pytest.raises(UsageError, match="no step has been taken yet"):
        logged.report  # noqa: B018
    model.learn(8, callback=logged)
    refused(model, logged, "has already logged another learn")
