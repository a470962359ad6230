"""Loops of many kinds, each with the state of its loop in the run, or without it."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.lab import Attempt
from tests.torch.nets import seed

EPOCHS, BATCHES, TURNS = 3, 5, 16

Script = Callable[[Attempt], None]


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1))


def _loader() -> DataLoader[Any]:
    draw = torch.Generator().manual_seed(5)
    rows = torch.randn(4 * BATCHES, 6, generator=draw)
    return DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), batch_size=4, shuffle=True)


def _begin(attempt: Attempt, **options: Any) -> tuple[nn.Module, Any, DataLoader[Any]]:
    seed()
    model, loader = _net(), _loader()
    return model, attempt.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), model, **options), loader


def _loss(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    return (model(x) - y).square().mean()


def _step(attempt: Attempt, model: nn.Module, optimizer: Any, batch: Any) -> None:
    optimizer.zero_grad()
    loss = _loss(model, batch)
    loss.backward()
    attempt.tick()
    optimizer.step()
    optimizer.log_scalars(loss=loss.item())


def batches(attempt: Attempt, **options: Any) -> None:
    """A loop over batches."""
    model, optimizer, loader = _begin(attempt, **options)
    attempt.start(optimizer)
    for batch in optimizer.batches(loader, until=TURNS):
        _step(attempt, model, optimizer, batch)
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def weights(attempt: Attempt) -> None:
    """A log of weights."""
    batches(attempt, log="weights")


def epochs(attempt: Attempt) -> None:
    """Epochs with a validation behind each, and a scheduler."""
    model, optimizer, loader = _begin(attempt)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    attempt.start(optimizer, scheduler=scheduler)
    for epoch in optimizer.epochs(EPOCHS, loader):
        for batch in epoch:
            _step(attempt, model, optimizer, batch)
        model.eval()
        with torch.no_grad():
            optimizer.log_scalars(validation=sum(_loss(model, batch).item() for batch in _loader()))
        attempt.tick()
        model.train()
        scheduler.step()
    attempt.keep(model=model, optimizer=optimizer, scheduler=scheduler)
    optimizer.close()


def accumulated(attempt: Attempt) -> None:
    """Several batches a step, clipped."""
    model, optimizer, loader = _begin(attempt)
    attempt.start(optimizer)
    for number, batch in optimizer.batches(loader, until=TURNS, enumerate=True):
        (_loss(model, batch) / 2).backward()
        attempt.tick()
        if number % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def scaled(attempt: Attempt) -> None:
    """A GradScaler that skips some steps."""
    model, optimizer, loader = _begin(attempt)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    attempt.start(optimizer, scaler=scaler)
    for number, batch in optimizer.batches(loader, until=TURNS, enumerate=True):
        optimizer.zero_grad()
        scaler.scale(_loss(model, batch) * (math.inf if number % 4 == 3 else 1)).backward()
        attempt.tick()
        scaler.step(optimizer)
        scaler.update()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def gan(attempt: Attempt, *, tracks: bool = True) -> None:
    """Two optimizers; the generator is trained every third turn, which a counter of the script's own tells."""
    seed()
    generator, critic = nn.Linear(3, 6), _net()
    optimizer = attempt.wrap(torch.optim.Adam(critic.parameters(), lr=0.01), {"critic": critic, "generator": generator})
    other = attempt.add_optimizer(optimizer, torch.optim.Adam(generator.parameters(), lr=0.01), "generator")
    state = optimizer.remember(number=0) if tracks else SimpleNamespace(number=0)
    attempt.start(optimizer)
    for x, _ in optimizer.batches(_loader(), until=TURNS):
        optimizer.zero_grad()
        made = generator(torch.randn(len(x), 3))
        (critic(made.detach()).mean() - critic(x).mean()).backward()
        attempt.tick()
        optimizer.step()
        if state.number % 3 == 0:
            other.zero_grad()
            (-critic(made).mean()).backward()
            attempt.tick()
            other.step()
        state.number += 1
    attempt.keep(critic=critic, generator=generator)
    optimizer.close()


def averaged(attempt: Attempt) -> None:
    """Weights that are clamped behind each step, and an average of them."""
    model, optimizer, loader = _begin(attempt)
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    attempt.start(optimizer, average=average)
    for batch in optimizer.batches(loader, until=TURNS):
        _step(attempt, model, optimizer, batch)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.4, 0.4)
        average.update_parameters(model)
    attempt.keep(model=model, optimizer=optimizer, average=average)
    optimizer.close()


def prefetched(attempt: Attempt, *, tracks: bool = True) -> None:
    """nanoGPT's way: the next batch is fetched while this one is computed, and a counter sets the learning rate."""
    model, optimizer, _ = _begin(attempt)
    rows = torch.randn(40, 6)

    def fetch() -> Any:
        x = rows[torch.randint(40, (4,))]
        return x, x.sum(1, keepdim=True)

    x, y = fetch()
    state = optimizer.remember(number=0, x=x, y=y) if tracks else SimpleNamespace(number=0, x=x, y=y)
    attempt.start(optimizer)
    while state.number < TURNS:
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (1 + state.number)
        loss = _loss(model, (state.x, state.y))
        state.x, state.y = fetch()
        optimizer.zero_grad()
        loss.backward()
        attempt.tick()
        optimizer.step()
        state.number += 1
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def rated(attempt: Attempt, *, tracks: bool = True) -> None:
    """A learning rate that is changed around epochs, by a number of the script's own."""
    model, optimizer, loader = _begin(attempt)
    state = optimizer.remember(rate=0.01) if tracks else SimpleNamespace(rate=0.01)
    attempt.start(optimizer)
    for epoch in optimizer.epochs(EPOCHS, loader):
        if epoch.batch == 0:
            state.rate *= 0.3
        for batch in epoch:
            for group in optimizer.param_groups:
                group["lr"] = state.rate
            _step(attempt, model, optimizer, batch)
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def episodes(attempt: Attempt, *, tracks: bool = True) -> None:
    """An environment and a running reward that go on from turn to turn."""
    model, optimizer, _ = _begin(attempt)
    place = torch.zeros(4, 6)
    state = optimizer.remember(place=place, reward=0.0) if tracks else SimpleNamespace(place=place, reward=0.0)
    attempt.start(optimizer)
    for _ in optimizer.steps(TURNS):
        state.place = 0.9 * state.place + torch.randn(4, 6)
        optimizer.zero_grad()
        loss = (model(state.place) - state.reward).square().mean()
        loss.backward()
        attempt.tick()
        optimizer.step()
        state.reward = 0.9 * state.reward + 0.1 * loss.item()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def forward_forward(attempt: Attempt, *, tracks: bool = True) -> None:
    """Layers that are trained one after the other, each for some turns, on what the layers before them give."""
    seed()
    layers = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 5)])
    right, wrong = torch.randn(12, 6), torch.randn(12, 6)
    optimizer = attempt.wrap(torch.optim.Adam(layers[0].parameters(), lr=0.03), layers)
    optimizers = [optimizer]
    optimizers.append(attempt.add_optimizer(optimizer, torch.optim.Adam(layers[1].parameters(), lr=0.03), "second"))
    state = optimizer.remember(layer=0, turn=0) if tracks else SimpleNamespace(layer=0, turn=0)
    attempt.start(optimizer)
    while state.layer < len(layers):
        goodness = []
        for x in (right, wrong):
            with torch.no_grad():
                for before in layers[: state.layer]:
                    x = torch.relu(before(x))
            goodness.append(torch.relu(layers[state.layer](x / x.norm())).square().mean(1))
        optimizers[state.layer].zero_grad()
        (goodness[1] - goodness[0]).exp().mean().backward()
        attempt.tick()
        optimizers[state.layer].step()
        state.turn += 1
        if state.turn == TURNS // 2:
            state.layer, state.turn = state.layer + 1, 0
    attempt.keep(layers=layers)
    optimizer.close()


PROVEN: dict[str, Script] = {
    script.__name__: script
    for script in (
        *(batches, weights, epochs, accumulated, scaled, gan, averaged, prefetched, rated, episodes),
        forward_forward,
    )
}
