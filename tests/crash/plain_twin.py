"""A small training script, and the plain PyTorch that a logged run of it is compared with: a twin that never saw TranLogs.

Everything a loop may do between two batches is in `Script.body`; the twin does the same with random numbers of its own.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.lab import Outcome, contents, flatten

BODIES = ("step", "two steps", "zeros", "closure", "note", "write", "nothing", "accumulate", "clip", "schedule")
STEPS = {"two steps": 2, "zeros": 2, "write": 0, "nothing": 0, "accumulate": 0}  # of an optimizer; others take one
Curve = tuple[list[int], list[float]]


class Net(nn.Module):
    """Buffers, random numbers, and a part (`extra`) that is not trained from the beginning on."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.2))
        self.head, self.extra = nn.Linear(5, 2), nn.Linear(5, 2, bias=False)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        found = self.body(batch)
        return self.head(found) + self.extra(found)  # type: ignore[no-any-return]


@dataclass
class Kind:
    """Which script: its optimizer, whether the head has one of its own, and its data.

    Attributes:
        data: "drawn" in the body, or a loader that is "shuffled", by a "generator" of its own, or in "order".
    """

    optimizer: str = "adamw"
    has_two: bool = False
    data: str = "drawn"


class Script:
    """Model, optimizers and scheduler, always built alike.

    Args:
        kind: of the script.
        wrap: makes logged optimizers of plain ones; by default they stay plain.
    """

    def __init__(self, kind: Kind, wrap: Callable[..., list[Any]] = lambda optimizers, model: optimizers) -> None:
        torch.manual_seed(1)
        self.model = Net()
        main = [*self.model.body.parameters(), *(() if kind.has_two else self.model.head.parameters())]
        plain: list[Any] = [
            torch.optim.AdamW(main, 0.01)
            if kind.optimizer == "adamw"
            else torch.optim.SGD(main, 0.05, momentum=0.9, nesterov=True)
        ]
        if kind.has_two:
            plain.append(torch.optim.SGD(self.model.head.parameters(), 0.02, momentum=0.5))
        self.optimizers = wrap(plain, self.model)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizers[0], 3, 0.9)
        self.loader = None if kind.data == "drawn" else loader(kind.data)
        self.batch: torch.Tensor | None = None  # of the loader, in hand

    @property
    def is_grown(self) -> bool:
        """Whether the group was added."""
        return len(self.optimizers[0].param_groups) > 1

    def grow(self) -> None:
        """Train `extra`, too, from now on."""
        self.optimizers[0].add_param_group({"params": list(self.model.extra.parameters()), "lr": 0.003})

    def body(self, what: str, *, is_amid: bool) -> float | None:
        """What the loop does with a batch; gives what it notes. `is_amid`: gradients wait from the batch before."""
        if what == "write":
            with torch.no_grad():
                self.model.head.weight.mul_(0.9)
            return None
        batch = torch.rand(4, 3) if self.batch is None else self.batch
        if what == "nothing":
            return None
        if what == "closure":
            self._step_by_closure(batch)
            return None
        loss = None
        for number in range(STEPS.get(what, 1) or 1):
            if not is_amid:
                self.model.zero_grad(set_to_none=number == 0 or what != "zeros")
            loss = self._backward(batch)
            if what == "accumulate":
                return None
            if what == "clip":
                self._clip()
            for optimizer in self.optimizers:
                optimizer.step()
            is_amid = False
        if what == "schedule":
            self.scheduler.step()
        assert loss is not None
        return float(loss.detach()) if what == "note" else None

    def _backward(self, batch: torch.Tensor) -> torch.Tensor:
        loss = self.model(batch).square().sum()
        loss.backward()
        if not self.is_grown:
            self.model.extra.weight.grad = None
        return loss  # type: ignore[no-any-return]

    def _step_by_closure(self, batch: torch.Tensor) -> None:
        def closure() -> torch.Tensor:
            self.model.zero_grad()
            return self._backward(batch)

        self.optimizers[0].step(closure)
        for other in self.optimizers[1:]:
            other.step()

    def load(self, saved: dict[str, Any]) -> None:
        """Weights and optimizers as a boundary had them: what a script does that goes back by its own means."""
        self.model.load_state_dict(saved["model"])
        for name, optimizer in zip("ab", self.optimizers, strict=False):
            optimizer.load_state_dict(copy.deepcopy(saved[name]))

    def _clip(self) -> None:
        optimizer = self.optimizers[0]
        if hasattr(optimizer, "clip_grad_norm_"):
            optimizer.clip_grad_norm_(0.1)
        else:
            torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 0.1)

    def outcome(self) -> Outcome:
        """All that is compared, but for random numbers."""
        things = {"model": self.model, "scheduler": self.scheduler.state_dict(), "batch": self.batch}
        return flatten(
            {name: contents(thing) for name, thing in things.items()}
            | {f"optimizer {i}": contents(optimizer) for i, optimizer in enumerate(self.optimizers)}
        )


def loader(data: str) -> DataLoader[Any]:
    """A loader with three batches an epoch, the last of them smaller."""
    samples = torch.rand(10, 3, generator=torch.Generator().manual_seed(2))
    generator = torch.Generator().manual_seed(3) if data == "generator" else None
    return DataLoader(TensorDataset(samples), 4, shuffle=data != "order", generator=generator)


class Place:
    """Where the twin is in the loader's data: batches that it took of an epoch, and what it was opened with."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader, self._live, self.taken = loader, iter(()), 0
        self._opened: tuple[torch.Tensor, ...] = ()

    def _generators(self) -> list[torch.Generator]:
        return [torch.default_generator, *([self._loader.generator] if self._loader.generator is not None else [])]

    def next(self) -> torch.Tensor:
        """The next batch, of the next epoch where this one is over."""
        if self.taken == 0 or self.taken == len(self._loader):
            self._opened, self.taken = tuple(one.get_state() for one in self._generators()), 0
            self._live = iter(self._loader)
        self.taken += 1
        return next(self._live)[0]  # type: ignore[no-any-return]

    def read(self) -> tuple[tuple[torch.Tensor, ...], int]:
        """What `go_to` needs."""
        return self._opened, self.taken

    def go_to(self, opened: tuple[torch.Tensor, ...], taken: int) -> torch.Tensor:
        """Open that epoch again, and take its batches up to there."""
        for generator, state in zip(self._generators(), opened, strict=True):
            generator.set_state(state)
        self.taken = 0
        return [self.next() for _ in range(taken)][-1]


@dataclass
class Boundary:
    """What was at a boundary: where a recovery may land, and what it must find there."""

    step: int
    outcome: Outcome
    rng: torch.Tensor
    curve: Curve
    saved: dict[str, Any] = field(repr=False)
    is_amid: bool = False  # gradients wait

    def holds(self, step: int, outcome: Outcome, rng: torch.Tensor, curve: Curve) -> bool:
        """Whether this is what came back."""
        return (step, outcome, curve) == (self.step, self.outcome, self.curve) and torch.equal(rng, self.rng)


class Twin:
    """The script in plain PyTorch, which can be set back to a boundary by its own state_dicts."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        kept = torch.get_rng_state()
        self.script = Script(kind)
        self._enter()
        self.rng = torch.get_rng_state()
        torch.set_rng_state(kept)
        self.step, self.curve, self.is_amid = 0, ([], []), False

    def _enter(self) -> None:
        """Begin the loop."""
        self.place = None if self.script.loader is None else Place(self.script.loader)
        if self.place is not None:
            self.script.batch = self.place.next()

    @property
    def is_at_start(self) -> bool:
        """Whether the batch in hand is the first of an epoch."""
        return self.place is not None and self.place.taken == 1

    def do(self, what: str) -> None:
        """The body of a batch, and the next batch."""
        kept = torch.get_rng_state()
        torch.set_rng_state(self.rng)
        noted = self.script.body(what, is_amid=self.is_amid)
        if self.place is not None:
            self.script.batch = self.place.next()
        self.rng = torch.get_rng_state()
        torch.set_rng_state(kept)
        self.step += len(self.script.optimizers) * STEPS.get(what, 1)
        self.is_amid = what == "accumulate" or (self.is_amid and what in ("write", "nothing"))
        if noted is not None:
            self.curve = [*self.curve[0], self.step], [*self.curve[1], noted]

    def boundary(self) -> Boundary:
        """What is now."""
        script = self.script
        things = {"model": script.model, "scheduler": script.scheduler, **dict(zip("ab", script.optimizers, strict=False))}
        saved = {name: copy.deepcopy(thing.state_dict()) for name, thing in things.items()}
        saved["grown"] = script.is_grown
        saved["place"] = None if self.place is None else self.place.read()
        saved["gradients"] = [None if p.grad is None else p.grad.clone() for p in script.model.parameters()]
        return Boundary(self.step, script.outcome(), self.rng.clone(), self.curve, saved, self.is_amid)

    def set_back(self, to: Boundary) -> None:
        """Be as at a boundary."""
        kept = torch.get_rng_state()
        self.script, saved = Script(self.kind), copy.deepcopy(to.saved)
        self._enter()
        if self.place is not None:
            self.script.batch = self.place.go_to(*saved["place"])
        torch.set_rng_state(kept)
        if saved["grown"]:
            self.script.grow()
        self.script.load(saved)
        self.script.scheduler.load_state_dict(saved["scheduler"])
        for parameter, gradient in itertools.zip_longest(self.script.model.parameters(), saved["gradients"]):
            parameter.grad = gradient
        self.rng, self.step, self.curve, self.is_amid = to.rng.clone(), to.step, to.curve, to.is_amid
