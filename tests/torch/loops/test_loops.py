"""Loops that people write: the step taken now and then, gradients that stay, several optimizers, phases of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from tests.support import campaign
from tests.torch.lab import Attempt, prove_exact
from tests.torch.nets import Mixed, loss_of, seed, tokens
from tests.torch.scripts import numbered, validate
from tranlogs.base.errors import UsageError

Make = Callable[[Any], torch.optim.Optimizer]
FORMS: dict[str, dict[str, Any]] = {"foreach": {"foreach": True}, "fused": {"fused": True}}


# A GradScaler, autocast, and accumulation: windows of three batches, of which some skip their step.


def mixed_precision(attempt: Attempt, *, form: str, clip: bool, is_zeroed_first: bool = False) -> None:
    seed()
    model = Mixed()
    loader = tokens(36)
    optimizer = attempt.wrap(torch.optim.AdamW(model.parameters(), lr=0.01, **FORMS[form]), model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    attempt.start(optimizer, scaler=scaler, scheduler=scheduler, loader=loader)
    for number, batch in numbered(optimizer, optimizer.batches(loader, 24)):
        attempt.saw(number, batch)
        if is_zeroed_first and number % 3 == 0:
            optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, batch) / 3
        if number in (4, 12, 17):  # in the middle of a window, at its beginning, at its end
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        attempt.tick()
        if number % 3 == 2:
            if clip:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            attempt.tick()
            scaler.step(optimizer)
            attempt.tick()
            scaler.update()
            scheduler.step()
            if not is_zeroed_first:
                optimizer.zero_grad()
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer, scaler=scaler, scheduler=scheduler)
    optimizer.close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("form", "clip", "is_zeroed_first"), campaign.pairwise(list(FORMS), [False, True], [False, True]))
def test_skipped_steps_amid_accumulation_come_back_to_the_bit(
    form: str, clip: bool, is_zeroed_first: bool, tmp_path: Path
) -> None:
    """Killed in windows behind each skipped step."""
    script = partial(mixed_precision, form=form, clip=clip, is_zeroed_first=is_zeroed_first)
    prove_exact(script, tmp_path / "run", (19, 17, 14, 8))


# Gradients that stay after the step.


def carried(attempt: Attempt, *, how: str, options: dict[str, Any]) -> None:
    """What becomes of a gradient after the step that used it."""
    seed()
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
    optimizer = attempt.wrap(torch.optim.AdamW(model.parameters(), lr=0.01, **options), model)
    attempt.start(optimizer)
    held: list[Any] = []
    for _ in optimizer.steps(14, stateless=True):
        if how == "held and written later":
            for gradient in held:
                gradient.mul_(3.0)  # the optimizer has used it
            optimizer.zero_grad()
        model(torch.randn(5, 6)).square().sum().backward()
        attempt.tick()
        optimizer.step()
        gradients = [p.grad for p in model.parameters()]
        if how == "decayed":  # momentum by hand: never cleared
            for gradient in gradients:
                gradient.mul_(0.5)
        elif how == "decayed past the version counter":
            for gradient in gradients:
                gradient.data.mul_(0.5)
        elif how == "one kept":
            for gradient in gradients[1:]:
                gradient.zero_()
        elif how == "replaced":
            for p in model.parameters():
                p.grad = p.grad.sign()
        elif how == "never cleared":
            pass
        else:
            held = gradients
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer, gradients=[p.grad for p in model.parameters()])
    optimizer.close()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "how",
    ["held and written later", "decayed", "decayed past the version counter", "one kept", "replaced", "never cleared"],
)
@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": False}], ids=["fused", "single"])
def test_gradient_that_stays_after_the_step(how: str, options: dict[str, Any], tmp_path: Path) -> None:
    prove_exact(partial(carried, how=how, options=options), tmp_path / "run", (10, 9))


def test_gradient_written_while_its_record_waits_for_the_writer(tmp_path: Path) -> None:
    script = partial(carried, how="decayed", options={"fused": True})
    prove_exact(script, tmp_path / "run", (16,), writer="thread")


# Hooks that clip: on parameters, before and after ours.


def halve(p: torch.Tensor) -> None:
    p.grad.mul_(0.5)


def clipped_by_hooks(attempt: Attempt, *, fused: bool) -> None:
    seed()
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
    inner = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)

    def clip(*_: Any) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    inner.register_step_pre_hook(clip)
    optimizer = attempt.wrap(inner, model)
    optimizer.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_value_(model.parameters(), 0.01))
    for p in model[0].parameters():
        p.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
        p.register_post_accumulate_grad_hook(halve)
    attempt.start(optimizer)
    for _ in optimizer.steps(12, stateless=True):
        optimizer.zero_grad()
        model(torch.randn(5, 6)).square().sum().backward()
        attempt.tick()
        optimizer.step()
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


@pytest.mark.parametrize("fused", [False, True], ids=["single", "fused"])
def test_hooks_that_clip_come_back_to_the_bit(fused: bool, tmp_path: Path) -> None:
    prove_exact(partial(clipped_by_hooks, fused=fused), tmp_path / "run", (10, 9))


# Models in other memory formats and dtypes.


def images(attempt: Attempt, *, optimizer_of: Make, dtype: torch.dtype) -> None:
    """A whole model in channels_last."""
    seed()
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 4, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 2),
    ).to(dtype=dtype, memory_format=torch.channels_last)
    loader = DataLoader(TensorDataset(torch.randn(24, 3, 6, 6)), batch_size=4, shuffle=True)
    optimizer = attempt.wrap(optimizer_of(model.parameters()), model)
    attempt.start(optimizer, loader=loader)
    for number, (x,) in numbered(optimizer, optimizer.batches(loader, 14)):
        attempt.saw(number, x)
        model(x.to(dtype=dtype, memory_format=torch.channels_last)).square().sum().backward()
        attempt.tick()
        optimizer.step()
        optimizer.zero_grad()
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("form", "dtype", "name"),
    campaign.pairwise(list(FORMS), [torch.float32, torch.bfloat16, torch.float64], ["SGD", "AdamW"]),
    ids=str,
)
def test_channels_last_comes_back_to_the_bit(form: str, name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    options = {"SGD": {"momentum": 0.9}, "AdamW": {}}[name]
    optimizer_of = partial(getattr(torch.optim, name), lr=0.01, **options, **FORMS[form])
    prove_exact(partial(images, optimizer_of=optimizer_of, dtype=dtype), tmp_path / "run", (10, 9))


# Several optimizers, phases, and turns of none, one or many steps.


def fused_gan(attempt: Attempt) -> None:
    """D twice a batch, G every third batch, G directly; both fused, each with a scheduler and a moving average."""
    seed()
    critic, maker = nn.Linear(6, 1), nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 6))
    loader = DataLoader(TensorDataset(torch.randn(40, 6)), batch_size=5, shuffle=True)
    optimizer = attempt.wrap(
        torch.optim.Adam(critic.parameters(), 1e-2, betas=(0.0, 0.9), fused=True), {"d": critic, "g": maker}
    )
    inner = torch.optim.AdamW(maker.parameters(), 1e-2, fused=True)
    other = attempt.add_optimizer(optimizer, inner, "g")
    schedulers = [lr_scheduler.ExponentialLR(optimizer, 0.97), lr_scheduler.CosineAnnealingLR(other, 20)]
    average = AveragedModel(maker, use_buffers=True)
    attempt.start(optimizer, one=schedulers[0], two=schedulers[1], average=average, loader=loader)
    for number, (x,) in numbered(optimizer, optimizer.batches(loader, 20)):
        attempt.saw(number, x)
        for _ in range(2):
            optimizer.zero_grad()
            (critic(maker(torch.randn(len(x), 4)).detach()).mean() - critic(x).mean()).backward()
            attempt.tick()
            optimizer.step()
        if number % 3 == 2:
            inner.zero_grad()
            (-critic(maker(torch.randn(len(x), 4))).mean()).backward()
            attempt.tick()
            inner.step()  # directly
            average.update_parameters(maker)
            schedulers[1].step()
        schedulers[0].step()
        attempt.tick()
    attempt.keep(critic=critic, maker=maker, optimizer=optimizer, inner=inner, average=average)
    optimizer.close()


def test_fused_gan_comes_back_to_the_bit(tmp_path: Path) -> None:
    prove_exact(fused_gan, tmp_path / "run", (13, 15, 11))


def many_or_none(attempt: Attempt) -> None:
    """As PPO: a rollout a turn, then epochs of shuffled minibatches over it; turns without any step in between."""
    seed()
    policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    value = nn.Linear(4, 1)
    optimizer = attempt.wrap(
        torch.optim.Adam([{"params": policy.parameters()}, {"params": value.parameters(), "lr": 0.01}], lr=0.003),
        {"policy": policy, "value": value},
    )
    scheduler = lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=10)
    attempt.start(optimizer, scheduler=scheduler)
    for turn in optimizer.steps(10, stateless=True):
        with torch.no_grad():
            states = torch.randn(12, 4)
            before = torch.distributions.Categorical(logits=policy(states))
            actions = before.sample()
            rewards = states.sum(1) * actions + torch.rand(12)
        attempt.tick()
        for _ in range((1, 0, 2)[turn % 3]):
            for part in torch.randperm(12).split(4):
                optimizer.zero_grad()
                advantage = rewards[part] - value(states[part]).squeeze(1)
                now = torch.distributions.Categorical(logits=policy(states[part]))
                ratio = (now.log_prob(actions[part]) - before.log_prob(actions)[part]).exp()
                clipped = ratio.clamp(0.8, 1.2)
                loss = -torch.min(ratio * advantage.detach(), clipped * advantage.detach()).mean() + advantage.square().mean()
                loss.backward()
                attempt.tick()
                optimizer.clip_grad_norm_(0.5)
                optimizer.step()
                attempt.tick()
        scheduler.step()
        attempt.tick()
    attempt.keep(policy=policy, value=value, optimizer=optimizer, scheduler=scheduler)
    optimizer.close()


def test_turns_of_no_and_of_many_steps_come_back_to_the_bit(tmp_path: Path) -> None:
    prove_exact(many_or_none, tmp_path / "run", (5, 10, 19, 16, 9))


def phases(attempt: Attempt) -> None:
    """Layers frozen and unfrozen in the middle, tied weights untied from the loss, averages from half-way on."""
    seed()
    model = Mixed()
    loader, validation = tokens(), tokens(22)
    optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01), model)
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    average = AveragedModel(model)
    annealed = SWALR(optimizer, swa_lr=0.02, anneal_epochs=2)
    attempt.start(optimizer, plateau=plateau, average=average, annealed=annealed, loader=loader)
    for epoch in optimizer.epochs(4, loader):
        model.hidden.requires_grad_(epoch % 2 == 0)
        model.conv.requires_grad_(epoch < 2)
        for batch in epoch:
            attempt.saw_next(batch)
            number = max(attempt.seen)
            if number in (5, 28):
                model.embed.weight.requires_grad_(not model.embed.weight.requires_grad)
            loss_of(model, batch).backward()
            attempt.tick()
            optimizer.step()
            optimizer.zero_grad()
            attempt.tick()
            if number % 5 == 4:
                validate(model, validation)
        if epoch >= 2:
            average.update_parameters(model)
            annealed.step()
        else:
            plateau.step(validate(model, validation))
        attempt.tick()
    attempt.keep(
        model=model,
        optimizer=optimizer,
        plateau=plateau,
        average=average,
        annealed=annealed,
        trains=[p.requires_grad for p in model.parameters()],
    )
    optimizer.close()


def test_phases_come_back_to_the_bit(tmp_path: Path) -> None:
    prove_exact(phases, tmp_path / "run", (13, 11, 12, 20, 15))


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (range(10), ["optimizer.epochs(10, ...) yields the numbers from 0 on, and leaves finished epochs out"]),
        (range(1, 11), ["optimizer.epochs(10, ...) yields the numbers from 0 on", "The numbers of the range are epoch + 1"]),
        ([0, 1], ["optimizer.epochs(10, data) yields the numbers of ten epochs, from 0 on"]),
    ],
    ids=str,
)
def test_epochs_of_a_range_is_refused_with_what_to_write(count: Any, told: list[str], tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = Attempt(tmp_path / "run").wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    with pytest.raises(UsageError, match="give the number of epochs of the whole run") as caught:
        optimizer.epochs(count, tokens(8))
    for words in told:
        assert words in str(caught.value)
    optimizer.close()


@pytest.mark.parametrize("options", [{"batch_size": 3, "shuffle": True}, {"batch_size": None}, {"batch_size": 2}], ids=str)
def test_an_epoch_stands_for_its_loader(options: dict[str, Any], tmp_path: Path) -> None:
    """Training functions print `len(loader.dataset)`, and call `loader.sampler.set_epoch`."""
    model, loader = nn.Linear(2, 2), DataLoader(TensorDataset(torch.ones(9, 2)), **options)
    sampler = loader.sampler
    optimizer = Attempt(tmp_path / "run").wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    optimizer.track(loader=loader).recover()
    for epoch in optimizer.epochs(2):
        assert epoch.dataset is loader.dataset
        assert (epoch.batch_size, len(epoch)) == (options["batch_size"], len(loader))
        assert epoch.sampler is sampler
        for (x,) in epoch:
            model(x).sum().backward()
            optimizer.step()
    optimizer.close()
