"""Training loops of many kinds, each a script of `lab.Attempt`: it may die at any of its ticks."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from tests.kills.pytorch import Job
from tests.torch.lab import Attempt
from tests.torch.nets import Mixed, loss_of, seed, tokens
from tests.torch.sources import SOURCES

Make = Callable[[nn.Module], torch.optim.Optimizer]


def split(model: nn.Module) -> list[dict[str, Any]]:
    """Two parameter groups with different learning rates."""
    parameters = list(model.parameters())
    return [{"params": parameters[::2]}, {"params": parameters[1::2], "lr": 0.003}]


def numbered(optimizer: Any, batches: Any) -> Any:
    """The batches with their numbers over the whole run."""
    return enumerate(batches, optimizer.report.batch if hasattr(optimizer, "report") else 0)


def ordinary(
    attempt: Attempt,
    *,
    optimizer_of: Make,
    batches: int = 13,
    dtype: torch.dtype = torch.float32,
    set_to_none: bool = True,
    sparse: bool = False,
) -> None:
    """Two groups, a scheduler that changes lr and momentum at each step, an average of the weights."""
    seed()
    model = Mixed(sparse=sparse).to(dtype)
    loader = tokens()
    optimizer = attempt.wrap(optimizer_of(model), model)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
    average = AveragedModel(model)
    attempt.start(optimizer, scheduler=scheduler, average=average, loader=loader)
    for number, batch in numbered(optimizer, optimizer.batches(loader, batches)):
        attempt.saw(number, batch)
        loss_of(model, batch).backward()
        attempt.tick()
        optimizer.step()
        attempt.tick()
        scheduler.step()
        average.update_parameters(model)
        optimizer.zero_grad(set_to_none=set_to_none)
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer, scheduler=scheduler, average=average)
    optimizer.close()


def validate(model: nn.Module, loader: DataLoader[Any]) -> float:
    """The loss over a loader, with some noise from every generator."""
    model.eval()
    with torch.no_grad():
        total = sum(loss_of(model, batch).item() for batch in loader)
    model.train()
    return total + 0.01 * (torch.rand(()).item() + float(np.random.rand()) + random.random())


def accumulating(attempt: Attempt, *, batches: int = 20, clip: str = "") -> None:
    """Steps after every third batch; windows straddle epochs."""
    seed()
    model = Mixed()
    loader = tokens(36)  # nine batches
    optimizer = attempt.wrap(torch.optim.AdamW(split(model), lr=0.01), model)
    attempt.start(optimizer, loader=loader)
    for number, batch in numbered(optimizer, optimizer.batches(loader, batches)):
        attempt.saw(number, batch)
        (loss_of(model, batch) / 3).backward()
        attempt.tick()
        if number % 3 == 2:
            if clip == "torch":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            elif clip == "ours":
                optimizer.clip_grad_norm_(0.1)
            attempt.tick()
            optimizer.step()
            optimizer.zero_grad()
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def adversarial(attempt: Attempt, *, batches: int = 20) -> None:
    """Two steps of D a batch, its weights clipped by `.data`; G every third batch, its gradients accumulated meanwhile."""
    seed()
    critic = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    maker = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 6))
    loader = DataLoader(TensorDataset(torch.randn(40, 6)), batch_size=5, shuffle=True)
    optimizer = attempt.wrap(torch.optim.RMSprop(critic.parameters(), 1e-3), {"d": critic, "g": maker})
    inner = torch.optim.Adam(maker.parameters(), 1e-3, fused=True)
    attempt.add_optimizer(optimizer, inner, "g")
    attempt.start(optimizer, loader=loader)
    for number, batch in numbered(optimizer, optimizer.batches(loader, batches)):
        attempt.saw(number, batch)
        x = batch[0]
        for _ in range(2):
            optimizer.zero_grad()
            (critic(maker(torch.randn(len(x), 4)).detach()).mean() - critic(x).mean()).backward()
            optimizer.step()
            attempt.tick()
            for p in critic.parameters():
                p.data.clamp_(-0.1, 0.1)
        (-critic(maker(torch.randn(len(x), 4))).mean()).backward()
        attempt.tick()
        if number % 3 == 2:
            inner.step()  # directly, not through the wrapper
            attempt.tick()
            inner.zero_grad()
    attempt.keep(critic=critic, maker=maker, optimizer=optimizer, inner=inner)
    optimizer.close()


def own_loop(attempt: Attempt, *, batches: int = 20, is_compiled: bool = False) -> None:
    """No loop of ours: the unit ends at the next training forward, or at the next step where that is compiled."""
    seed()
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 2))
    called = torch.compile(model, backend="eager", fullgraph=True) if is_compiled else model
    optimizer = attempt.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), called)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    attempt.start(optimizer, scheduler=scheduler)
    for number in range(attempt.reports[0].step if attempt.reports else 0, batches):
        attempt.saw(number, number)
        loss = called(torch.full((3, 4), 0.1 * number) + torch.rand(3, 4)).square().sum()
        loss.backward()
        attempt.tick()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        optimizer.log_scalars(loss=loss.item())
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer, scheduler=scheduler)
    optimizer.close()


def simple(
    attempt: Attempt,
    model: nn.Module,
    inner: torch.optim.Optimizer,
    *,
    turns: int = 9,
    width: int = 5,
    change: Callable[[int, Any], None] = lambda number, optimizer: None,
) -> None:
    """The plainest script: one step a turn, on numbers that depend on the turn; `change` runs before each."""
    optimizer = attempt.wrap(inner, model)
    attempt.start(optimizer)
    for number in optimizer.steps(turns, stateless=True):
        change(number, optimizer)
        model(torch.full((3, width), 0.1 * number)).square().mean().backward()
        attempt.tick()
        optimizer.step()
        optimizer.zero_grad()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def built(job: Job) -> tuple[nn.Module, DataLoader[Any], Any]:
    """Return a model of one layer, its data, and its optimizer."""
    seed()
    model = nn.Linear(6, 1)
    loader = DataLoader(TensorDataset(torch.randn(40, 6)), batch_size=8, shuffle=True)
    return model, loader, job.wrap(torch.optim.SGD(model.parameters(), lr=0.01), model)


def stepped(job: Job, model: nn.Module, optimizer: Any, rows: torch.Tensor) -> float:
    """Take a step, and return its loss."""
    optimizer.zero_grad()
    loss = model(rows).square().mean()
    loss.backward()
    optimizer.step()
    job.at("batch")
    return loss.item()


# Loops of many kinds, with the ticks at which one life after the other dies.

EPOCHS, BATCHES, TURNS = 3, 5, 16

Script = Callable[[Attempt], None]


def loader_of(batches: int = BATCHES) -> DataLoader[Any]:
    draw = torch.Generator().manual_seed(batches)
    rows = torch.randn(4 * batches, 6, generator=draw)
    return DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), batch_size=4, shuffle=True)


def begin(attempt: Attempt, **options: Any) -> tuple[nn.Module, Any, DataLoader[Any]]:
    """Return a net with BatchNorm and dropout, its optimizer, and a loader."""
    seed()
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1))
    return model, attempt.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), model, **options), loader_of()


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    return (model(x) - y).square().mean()


def step(attempt: Attempt, model: nn.Module, optimizer: Any, batch: Any) -> None:
    optimizer.zero_grad()
    found = loss(model, batch)
    found.backward()
    attempt.tick()
    optimizer.step()
    optimizer.log_scalars(loss=found.item())


def batches(attempt: Attempt, **options: Any) -> None:
    """A loop over batches."""
    model, optimizer, loader = begin(attempt, **options)
    attempt.start(optimizer)
    for batch in optimizer.batches(loader, until=TURNS):
        step(attempt, model, optimizer, batch)
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def epochs(attempt: Attempt) -> None:
    """Epochs with a validation behind each, and a scheduler."""
    model, optimizer, loader = begin(attempt)
    scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)
    attempt.start(optimizer, scheduler=scheduler)
    for epoch in optimizer.epochs(EPOCHS, loader):
        for batch in epoch:
            step(attempt, model, optimizer, batch)
        model.eval()
        with torch.no_grad():
            optimizer.log_scalars(validation=sum(loss(model, batch).item() for batch in loader_of()))
        attempt.tick()
        model.train()
        scheduler.step()
    attempt.keep(model=model, optimizer=optimizer, scheduler=scheduler)
    optimizer.close()


def mixed_precision(attempt: Attempt) -> None:
    """Autocast, a GradScaler, and windows of three batches, of which some skip their step; clipped and fused."""
    seed()
    model, loader = Mixed(), tokens(36)
    optimizer = attempt.wrap(torch.optim.AdamW(model.parameters(), lr=0.01, fused=True), model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    attempt.start(optimizer, scaler=scaler, scheduler=scheduler, loader=loader)
    for number, batch in optimizer.batches(loader, 18, enumerate=True):
        attempt.saw(number, batch)
        with torch.autocast("cpu", torch.bfloat16):
            found = loss_of(model, batch) / 3
        if number in (4, 9, 17):  # in the middle of a window, at its beginning, at its end
            found = found * math.inf
        scaler.scale(found).backward()
        attempt.tick()
        if number % 3 == 2:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            attempt.tick()
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()
    attempt.keep(model=model, optimizer=optimizer, scaler=scaler, scheduler=scheduler)
    optimizer.close()


def averaged(attempt: Attempt) -> None:
    """Weights that are clamped behind each step, and an average of them."""
    model, optimizer, loader = begin(attempt)
    average = AveragedModel(model, use_buffers=True)
    attempt.start(optimizer, average=average)
    for batch in optimizer.batches(loader, until=TURNS):
        step(attempt, model, optimizer, batch)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.4, 0.4)
        average.update_parameters(model)
    attempt.keep(model=model, optimizer=optimizer, average=average)
    optimizer.close()


def carried(attempt: Attempt, *, how: str) -> None:
    """What becomes of a gradient after the step that used it."""
    seed()
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
    optimizer = attempt.wrap(torch.optim.AdamW(model.parameters(), lr=0.01, fused=True), model)
    attempt.start(optimizer)
    for _ in optimizer.steps(12, stateless=True):
        model(torch.randn(5, 6)).square().sum().backward()
        attempt.tick()
        optimizer.step()
        for p in model.parameters():
            if how == "replaced":
                p.grad = p.grad.sign()  # type: ignore[union-attr]
            else:  # momentum by hand, past the version counter
                p.grad.data.mul_(0.5)  # type: ignore[union-attr]
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer, gradients=[p.grad for p in model.parameters()])
    optimizer.close()


def many_or_none(attempt: Attempt) -> None:
    """Turns of no, one and two passes over what the turn has drawn, as PPO's; the rates of two groups are annealed."""
    seed()
    policy, value = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), nn.Linear(4, 1)
    groups = [{"params": policy.parameters()}, {"params": value.parameters(), "lr": 0.01}]
    optimizer = attempt.wrap(torch.optim.Adam(groups, lr=0.003), {"policy": policy, "value": value})
    scheduler = lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=10)
    attempt.start(optimizer, scheduler=scheduler)
    for turn in optimizer.steps(8, stateless=True):
        states = torch.randn(12, 4)
        attempt.tick()
        for _ in range((1, 0, 2)[turn % 3]):
            for part in torch.randperm(12).split(4):
                optimizer.zero_grad()
                advantage = states[part].sum(1) - value(states[part]).squeeze(1)
                (policy(states[part]).logsumexp(1) * advantage.detach() + advantage.square()).mean().backward()
                attempt.tick()
                optimizer.clip_grad_norm_(0.5)
                optimizer.step()
        scheduler.step()
        attempt.tick()
    attempt.keep(policy=policy, value=value, optimizer=optimizer, scheduler=scheduler)
    optimizer.close()


def stages(attempt: Attempt) -> None:
    """Layers frozen and unfrozen in the middle, averages from half-way on, validation, and weights clamped between epochs."""
    seed()
    model, loader, validation = Mixed(), tokens(24), tokens(12)
    optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01), model)
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    average, annealed = AveragedModel(model), SWALR(optimizer, swa_lr=0.02, anneal_epochs=2)
    attempt.start(optimizer, plateau=plateau, average=average, annealed=annealed, loader=loader)
    for epoch in optimizer.epochs(4, loader):
        model.train()
        model.conv.requires_grad_(epoch < 2)
        for i, batch in epoch.enumerate():
            attempt.saw(6 * epoch + i, batch)
            if (epoch, i) in ((1, 2), (2, 3)):
                model.embed.weight.requires_grad_(not model.embed.weight.requires_grad)
            loss_of(model, batch).backward()
            attempt.tick()
            optimizer.step()
            optimizer.zero_grad()
            if i % 5 == 4:
                validate(model, validation)
        attempt.tick()
        if epoch >= 2:
            average.update_parameters(model)
            annealed.step()
        else:
            plateau.step(validate(model, validation) + validate(model, loader))
        model.rare.weight.data.clamp_(-0.1, 0.1)
        attempt.tick()
        model.eval()
    trains = [p.requires_grad for p in model.parameters()]
    attempt.keep(model=model, optimizer=optimizer, plateau=plateau, average=average, annealed=annealed, trains=trains)
    optimizer.close()


def before_each_epoch(attempt: Attempt) -> None:
    """Code before an epoch's loop runs again after a crash in its middle; what it does is not done twice.

    It lowers the rate, draws, resets a layer, adds a group, and begins a second source that the body asks.
    """
    seed()
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Dropout(0.2), nn.Linear(4, 1))
    model[4].requires_grad_(False)
    optimizer = attempt.wrap(torch.optim.SGD(model[:4].parameters(), 0.1, momentum=0.9), model)
    loader, second = loader_of(), loader_of(7)
    attempt.start(optimizer, loader=loader, second=second)
    for epoch in optimizer.epochs(EPOCHS, loader):
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
        if epoch == 1:
            model[2].reset_parameters()
            optimizer.add_param_group({"params": model[4].requires_grad_(True).parameters(), "lr": 0.02})
        factor, others = float(np.random.rand()) + random.random() + torch.rand(()).item(), iter(second)
        for batch in epoch:
            optimizer.zero_grad()
            (factor * loss(model, batch) + loss(model, next(others))).backward()
            attempt.tick()
            optimizer.step()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


class Growing(nn.Module):
    """Registers a buffer in its first forward pass, has one outside of its state_dict, and is put into eval mode in part."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.late, self.head = nn.BatchNorm1d(6), nn.BatchNorm1d(6), nn.Linear(6, 1)
        self.register_buffer("counter", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counter += 1
        if self.counter == 10:
            self.norm.eval()
        if not hasattr(self, "mean"):
            self.register_buffer("mean", torch.zeros(6))
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.head(self.late(self.norm(x - self.mean)))


def growing(attempt: Attempt) -> None:
    """Buffers and modes that change."""
    seed()
    model, loader = Growing(), loader_of()
    optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), 0.05), model)
    attempt.start(optimizer)
    for batch in optimizer.batches(loader, until=TURNS):
        step(attempt, model, optimizer, batch)
    attempt.keep(model=model, modes=[module.training for module in model.modules()])
    optimizer.close()


def late(attempt: Attempt) -> None:
    """Between construction and recovery everything is used; between recovery and the loop, some of it."""
    seed()
    model, loader, validation = Mixed(), tokens(), tokens(22)
    optimizer = attempt.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), model)
    scheduler, average = lr_scheduler.StepLR(optimizer, 3), AveragedModel(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=5)
    for batch in loader:  # a sanity pass over the training data, in training mode
        scaler.scale(loss_of(model, batch)).backward()
    validate(model, validation)
    with torch.no_grad():
        model.scale.mul_(0.5)
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    average.update_parameters(model)
    optimizer.zero_grad()
    attempt.start(optimizer, scheduler=scheduler, scaler=scaler, average=average, loader=loader)
    if attempt.reports and attempt.reports[0].step:  # the run that is not interrupted does not do this
        validate(model, validation)
        copy.deepcopy(model)
        next(iter(loader))
    for number, batch in numbered(optimizer, optimizer.batches(loader, 14)):
        attempt.saw(number, batch)
        scaler.scale(loss_of(model, batch)).backward()
        attempt.tick()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        average.update_parameters(model)
        optimizer.zero_grad()
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, average=average)
    optimizer.close()


# Iterations over tracked loaders beside the loop.


def _logged(attempt: Attempt, **loaders: DataLoader[Any]) -> tuple[nn.Module, Any]:
    model = nn.Linear(2, 1)
    optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=1e-5), model)
    attempt.start(optimizer, **loaders)
    return model, optimizer


def _noisy(attempt: Attempt, model: nn.Module, optimizer: Any, *inputs: torch.Tensor) -> None:
    noise = torch.randn(()) + float(np.random.rand()) + random.random()
    sum(((model(x.reshape(-1, 2)) + noise) ** 2).mean() for x in inputs).backward()  # type: ignore[union-attr]
    attempt.tick()
    optimizer.step()
    optimizer.zero_grad()
    attempt.tick()


def second_source(attempt: Attempt) -> None:
    """Another loader, begun anew in the body whenever it is empty, and asked now and then."""
    seed()
    first, second = SOURCES["shuffled"](), SOURCES["subset sampler"]()
    model, optimizer = _logged(attempt, first=first, second=second)
    others = iter(second)
    for epoch in optimizer.epochs(2, first):
        for i, x in epoch.enumerate():
            inputs = [x]
            if i % 3 == 2:
                try:
                    inputs.append(next(others))
                except StopIteration:
                    others = iter(second)
                    inputs.append(next(others))
            attempt.saw(12 * epoch + i, inputs)
            _noisy(attempt, model, optimizer, *inputs)
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def one_after_the_other(attempt: Attempt) -> None:
    """A loop, then epochs beside a second loader, which trains in a loop of its own, too, and is left; looks at batches."""
    seed()
    first, second = SOURCES["shuffled"](), SOURCES["generator of its own"](drop_last=True)
    before = [len(x) for x in first]  # before recover()
    model, optimizer = _logged(attempt, first=first, second=second)
    assert len(next(iter(first))) == 4
    for x in optimizer.batches(first, 5):
        _noisy(attempt, model, optimizer, x)
    for epoch in optimizer.epochs(2, first):
        for x, y in zip(epoch, second, strict=False):
            _noisy(attempt, model, optimizer, x, y)
            with torch.no_grad():
                next(iter(first))
        total = sum(model(x).sum().item() for x in first)
        for group in optimizer.param_groups:
            group["lr"] = 1e-5 / (1 + abs(total))
        for x in second:
            _noisy(attempt, model, optimizer, x)
            if x[0, 0] % 4 == 3:
                break
    attempt.keep(model=model, optimizer=optimizer, before=before)
    optimizer.close()


def held(attempt: Attempt) -> None:
    """An iterator over a loader that turns take from; windows of two turns, with two steps in some."""
    seed()
    loader = SOURCES["shuffled"]()
    model, optimizer = _logged(attempt, loader=loader)
    given = iter(loader)
    for turn in optimizer.steps(20):
        try:
            batch = next(given)
        except StopIteration:
            given = iter(loader)
            batch = next(given)
        model(batch).square().mean().backward()
        if turn % 2:
            optimizer.step()
            _noisy(attempt, model, optimizer, batch)
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


LOOPS: dict[str, tuple[Script, tuple[int, ...]]] = {
    "a log of weights": (partial(batches, log="weights"), (9, 4)),
    "epochs": (epochs, (5, 8, 3)),
    "mixed precision": (mixed_precision, (8, 9, 5)),  # first behind a step that was skipped
    "averaged": (averaged, (10, 3)),
    "gradients replaced": (partial(carried, how="replaced"), (10, 9)),
    "gradients decayed": (partial(carried, how="decayed"), (10, 9)),
    "many steps or none": (many_or_none, (5, 12, 9)),
    "stages": (stages, (9, 12, 7, 4)),
    "before each epoch": (before_each_epoch, (7, 3, 5)),  # first behind a step of the group that was added
    "growing": (growing, (4, 9)),
    "late": (late, (9, 8)),
    "second source": (second_source, (7, 19, 8)),
    "one after the other": (one_after_the_other, (7, 19, 16, 9)),
    "held": (held, (7, 12)),
}
OWN_LOOPS: dict[str, tuple[Script, tuple[int, ...]]] = {  # without a loop of the optimizer's: never called exact
    "own loop": (own_loop, (9,)),
    "own loop, compiled": (partial(own_loop, is_compiled=True), (9,)),
}
