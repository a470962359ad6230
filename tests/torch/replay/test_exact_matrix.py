"""Every optimizer in every form: die, recover with objects built anew, go on; all bits equal those of an unlogged run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.support import campaign
from tests.torch.lab import Attempt, differences, prove_exact
from tests.torch.nets import Mixed, loss_of, seed, tokens
from tests.torch.scripts import Make, accumulating, adversarial, ordinary, split
from tranlogs_torch.replay import gradient_reader

BATCHES = 9
DIE_AT = (14,)  # three ticks a batch

FORMS: dict[str, dict[str, Any]] = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any], str]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.01}, "single foreach fused"),
    "SGD momentum": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}, "single foreach fused"),
    "SGD nesterov": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, "single foreach"),
    "SGD dampening": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "dampening": 0.3, "maximize": True}, "single foreach"),
    "Adam": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}, "single foreach fused"),
    "Adam amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}, "single foreach fused"),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01}, "single foreach fused"),
    "Adamax": (torch.optim.Adamax, {"lr": 0.01}, "single foreach"),
    "NAdam": (torch.optim.NAdam, {"lr": 0.01, "decoupled_weight_decay": True}, "single foreach"),
    "RAdam": (torch.optim.RAdam, {"lr": 0.01}, "single foreach"),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.01, "lr_decay": 0.01}, "single foreach fused"),
    "Adadelta": (torch.optim.Adadelta, {"lr": 0.5}, "single foreach"),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.5}, "single foreach"),
    "Rprop": (torch.optim.Rprop, {"lr": 0.01}, "single foreach"),
    "ASGD": (torch.optim.ASGD, {"lr": 0.01, "t0": 3}, "single foreach"),
    "Adafactor": (torch.optim.Adafactor, {"lr": 0.01}, "single foreach"),
}
EVERY = [pytest.param(name, form, id=f"{name}-{form}") for name, (_, _, forms) in OPTIMIZERS.items() for form in forms.split()]


def make(name: str, form: str, groups: Iterable[Any]) -> torch.optim.Optimizer:
    """An optimizer of the table."""
    kind, options, _ = OPTIMIZERS[name]
    return kind(groups, **options, **FORMS[form])


def of_table(name: str, form: str = "foreach") -> Make:
    """It, with two groups of a model's parameters."""
    return lambda model: make(name, form, split(model))


@pytest.mark.sampled(16)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "form"), EVERY)
def test_optimizer_comes_back_to_the_bit(
    name: str, form: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where gradients are read ahead; in bfloat16 a kernel rounds otherwise for another piece of a tensor."""
    script = partial(ordinary, optimizer_of=of_table(name, form), batches=BATCHES, dtype=dtype)
    last = prove_exact(script, tmp_path / "run", DIE_AT, checkpoint_every=1000)
    assert last.reports[0].replayed > 0
    monkeypatch.setattr(gradient_reader.os, "sched_getaffinity", lambda pid: range(64))
    monkeypatch.setattr(gradient_reader, "_AHEAD_BYTES_MIN", 0)
    again = Attempt(tmp_path / "run", recheck=False)  # resumes at the end: nothing is left to train
    script(again)
    assert (again.reports[0].replayed, again.reports[0].exact) == (BATCHES, True)
    assert differences(again.outcome(), last.outcome()) == []


# Other scripts: each a function, and the ticks of each life at which it dies.


def sparse_adam(attempt: Attempt) -> None:
    """SparseAdam for the embedding, AdamW for the rest, `add_optimizer`."""
    seed()
    model = Mixed(sparse=True)
    rest = [p for p in model.parameters() if p is not model.embed.weight]
    optimizer = attempt.wrap(torch.optim.AdamW(rest, lr=0.01), model)
    other = attempt.add_optimizer(optimizer, torch.optim.SparseAdam([model.embed.weight], lr=0.05), "embedding")
    attempt.start(optimizer)
    for batch in optimizer.batches(tokens(), BATCHES):
        loss_of(model, batch).backward()
        attempt.tick()
        other.step()
        attempt.tick()
        optimizer.step()
        model.zero_grad()
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer, other=other)
    optimizer.close()


def matrices(attempt: Attempt, *, optimizer_of: Make, closure: bool = False, dtype: torch.dtype = torch.float32) -> None:
    """Matrices only, without a loader; optionally with a closure."""
    seed()
    options: dict[str, Any] = {"bias": False, "dtype": dtype}
    model = nn.Sequential(nn.Linear(5, 7, **options), nn.Tanh(), nn.Linear(7, 3, **options))
    optimizer = attempt.wrap(optimizer_of(model), model)
    attempt.start(optimizer)
    for _ in optimizer.steps(BATCHES, stateless=True):
        x = torch.randn(4, 5, dtype=dtype)

        def work(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x).abs() ** 2).sum() + (model(x + 1).real - 1).abs().sum()
            loss.backward()
            attempt.tick()
            return loss

        if closure:
            optimizer.step(work)
        else:
            work()
            optimizer.step()
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def in_a_bucket(gradient: torch.Tensor) -> torch.Tensor:
    return torch.cat([gradient.new_zeros(3), gradient.reshape(-1)])[3:].view_as(gradient)


def strided(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.contiguous(memory_format=torch.channels_last) if gradient.dim() == 4 else gradient.t().contiguous().t()


def of_other_dtype(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.bfloat16()


def odd_gradients(
    attempt: Attempt, *, name: str, odd: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype = torch.float32
) -> None:
    """Gradients laid out otherwise than their parameters, one tensor as two gradients, and an empty parameter.

    Fused kernels go by memory order and not by strides: what they did is logged, since it cannot be redone.
    """
    seed()
    shapes = [(3, 4, 5, 6), (7, 9), (7, 9), (0, 4)]
    model = nn.ParameterList([nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes])
    if odd is of_other_dtype:
        for p in model:
            p.grad_dtype = torch.bfloat16
    optimizer = attempt.wrap(make(*name.split("-"), model.parameters()), model)
    attempt.start(optimizer)
    for _ in optimizer.steps(BATCHES, stateless=True):
        for p in model:
            p.grad = odd(torch.randn(p.shape, dtype=dtype) + 0.1 * p.detach())
        model[2].grad = model[1].grad
        attempt.tick()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def adam_of_tensors(model: nn.Module) -> torch.optim.Optimizer:
    betas = (torch.tensor(0.9), torch.tensor(0.99))
    return torch.optim.Adam(split(model), lr=torch.tensor(0.01), betas=betas, foreach=False)


def muon(model: nn.Module, adjust: str) -> torch.optim.Optimizer:
    return torch.optim.Muon(split(model), lr=0.01, adjust_lr_fn=adjust)


CASES: dict[str, tuple[Callable[[Attempt], None], tuple[int, ...]]] = {
    "SparseAdam": (sparse_adam, DIE_AT),
    "Muon": (partial(matrices, optimizer_of=partial(muon, adjust="original")), (13,)),
    "complex": (
        partial(matrices, optimizer_of=lambda m: make("SGD momentum", "single", m.parameters()), dtype=torch.complex64),
        (13,),
    ),
    "closure single": (partial(matrices, optimizer_of=of_table("Adam", "single"), closure=True), (13,)),
    "gradient in a bucket": (partial(odd_gradients, name="SGD momentum-fused", odd=in_a_bucket), (9,)),
    "gradient strided": (partial(odd_gradients, name="SGD momentum-foreach", odd=strided, dtype=torch.bfloat16), (9,)),
    "gradient strided, fused": (partial(odd_gradients, name="AdamW-fused", odd=strided), (9,)),
    "gradient of another dtype": (partial(odd_gradients, name="SGD momentum-single", odd=of_other_dtype), (9,)),
    "float64": (partial(ordinary, optimizer_of=of_table("Adam amsgrad"), dtype=torch.float64), DIE_AT),
    "hyper-parameters that are tensors": (partial(ordinary, optimizer_of=adam_of_tensors), DIE_AT),
    # With set_to_none=False a parameter without a gradient decays on; after recovery, too.
    "gradients of zero are not none": (partial(ordinary, optimizer_of=of_table("Adam", "single"), set_to_none=False), DIE_AT),
    "several optimizers": (adversarial, (15, 17)),
    # The buffer is a sparse, uncoalesced tensor; it is compared with that of the script before the loop, like the others.
    "sparse momentum": (partial(ordinary, optimizer_of=of_table("SGD momentum", "single"), sparse=True), DIE_AT),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")  # Adagrad's own
@pytest.mark.parametrize("name", CASES)
def test_other_scripts_come_back_to_the_bit(name: str, tmp_path: Path) -> None:
    script, die_at = CASES[name]
    prove_exact(script, tmp_path / "run", die_at)


@pytest.mark.parametrize("search", ["strong_wolfe", campaign.in_soak(None)])
def test_lbfgs_comes_back_to_the_bit(search: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It cannot be redone from gradients: weights and state are logged, and it says so."""

    def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=3, line_search_fn=search)

    prove_exact(partial(matrices, optimizer_of=optimizer_of, closure=True), tmp_path / "run", (23,))
    assert "LBFGS" in caplog.text


def test_way_of_logging_changes_nothing(tmp_path: Path) -> None:
    options: dict[str, Any] = {"fingerprint": "sample", "writer": "thread", "keep": 1}
    prove_exact(partial(ordinary, optimizer_of=of_table("AdamW")), tmp_path / "run", DIE_AT, is_exact=None, **options)


def test_weights_without_optimizer_state_are_not_called_exact(tmp_path: Path) -> None:
    script = partial(ordinary, optimizer_of=of_table("AdamW"))
    options = {"log": "weights", "optimizer_state": False, "recheck": False, "checkpoint_every": 1000}
    trained, again = (Attempt(tmp_path / "run", **options) for _ in range(2))
    script(trained)
    script(again)
    found = differences(again.outcome(), trained.outcome())
    assert found
    assert all(path.startswith("['optimizer']['state']") for path in found)
    assert again.reports[0].exact is None
    assert any("optimizer state" in note for note in again.reports[0].notes)


@pytest.mark.parametrize("clip", ["ours", campaign.in_soak("torch"), campaign.in_soak("")])
def test_accumulation_resumes_at_the_last_finished_step(clip: str, tmp_path: Path) -> None:
    last = prove_exact(partial(accumulating, clip=clip), tmp_path / "run", (9, 20), recheck=False)
    assert [report.batch % 3 for report in last.reports] == [0]
    assert [report.step for report in last.reports] == [report.batch // 3 for report in last.reports]


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.05, total_steps=60),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.05, step_size_up=3, cycle_momentum=True),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5, 9]),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.ExponentialLR(o, 0.9)], [4]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, 3), lr_scheduler.StepLR(o, 2)], optimizer=o
    ),
}


def test_schedulers_come_back_with_the_values_they_wrote(tmp_path: Path) -> None:
    """One a layer, with an optimizer each, per step; on what `add_optimizer` returned, or on the optimizer in it."""

    def script(attempt: Attempt) -> None:
        seed()
        layers = nn.ModuleList([nn.Linear(3, 3) for _ in SCHEDULERS])
        inner = [torch.optim.SGD(split(layer), lr=0.01, momentum=0.9) for layer in layers]
        first = attempt.wrap(inner[0], layers)
        logged = [first, *(attempt.add_optimizer(first, one, f"number {i}") for i, one in enumerate(inner[1:], 1))]
        face = [inner[i] if i % 2 else logged[i] for i in range(len(inner))]
        schedulers = {name: make(face[i]) for i, (name, make) in enumerate(SCHEDULERS.items())}
        attempt.start(first, **schedulers)
        for _ in first.steps(BATCHES, stateless=True):
            value = torch.randn(2, 3)
            for layer in layers:
                value = torch.tanh(layer(value))
            value.square().sum().backward()
            attempt.tick()
            for optimizer in face:
                optimizer.step()
            attempt.tick()
            for scheduler in schedulers.values():
                scheduler.step()
            layers.zero_grad()
            attempt.tick()
        attempt.keep(layers=layers, **schedulers, **{f"optimizer{i}": one for i, one in enumerate(inner)})
        first.close()

    prove_exact(script, tmp_path / "run", DIE_AT)
