"""Every optimizer in every form: die, recover with objects built anew, go on; all bits equal those of an unlogged run."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.support import campaign
from tests.torch.lab import Attempt, Outcome, differences, in_child, prove_exact
from tests.torch.nets import Mixed, loss_of, seed, tokens
from tests.torch.scripts import Make, accumulating, adversarial, numbered, ordinary, per_epoch, split
from tranlogs_torch.replay import gradient_reader

BATCHES = 13
DIE_AT = (16, 18)  # ticks of the first and the second attempt; three ticks a batch, so that they end at steps 5 and 10


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


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "form"), EVERY)
def test_optimizer_comes_back_to_the_bit(name: str, form: str, tmp_path: Path) -> None:
    last = prove_exact(partial(ordinary, optimizer_of=lambda m: make(name, form, split(m))), tmp_path / "run", DIE_AT)
    assert last.reports[0].replayed > 0


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "form"), EVERY)
def test_gradients_that_are_read_ahead_give_the_same_bits(
    name: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16, where a kernel rounds otherwise for another piece of a tensor."""
    script = partial(ordinary, optimizer_of=lambda m: make(name, form, split(m)), dtype=torch.bfloat16)
    trained = Attempt(tmp_path / "run", checkpoint_every=1000)
    script(trained)
    monkeypatch.setattr(gradient_reader.os, "sched_getaffinity", lambda pid: range(64))
    for least in (0, 1 << 30):
        monkeypatch.setattr(gradient_reader, "_AHEAD_BYTES_MIN", least)
        again = Attempt(tmp_path / "run")  # resumes at the end: nothing is left to train
        script(again)
        assert again.reports[0].replayed == BATCHES
        assert again.reports[0].exact is True
        assert differences(again.outcome(), trained.outcome()) == []


@pytest.mark.parametrize("is_read_at_once", [False, True])
@pytest.mark.parametrize("odd", [1, 3, 505])
def test_dtypes_that_put_each_other_out_of_place_come_back_to_the_bit(
    odd: int, is_read_at_once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An odd number of bfloat16 lies before float32 in each record."""

    def train(attempt: Attempt) -> None:
        seed()
        shapes = [(odd, torch.bfloat16), (90_000, torch.float32), (40, torch.float32), (7, torch.float64)]
        model = torch.nn.ParameterList([torch.randn(count).to(dtype) for count, dtype in shapes])
        optimizer = attempt.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), model)
        attempt.start(optimizer)
        for _ in optimizer.steps(9, stateless=True):
            optimizer.zero_grad()
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
        attempt.keep(model=model, optimizer=optimizer)
        optimizer.close()

    trained = Attempt(tmp_path / "run", checkpoint_every=1000)
    train(trained)
    if not is_read_at_once:
        monkeypatch.setattr(gradient_reader.GradientMemory, "_over", lambda memory, entry: None)
    again = Attempt(tmp_path / "run")
    train(again)
    assert (again.reports[0].replayed, again.reports[0].exact) == (9, True)
    assert differences(again.outcome(), trained.outcome()) == []


def in_turns(attempt: Attempt, *, shared: str) -> None:
    """Three optimizers: one steps at every batch, one twice at every third, one in the first batches only."""
    seed()
    model = nn.ModuleList([nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 2)])
    optimizers = [
        torch.optim.AdamW(model[0].parameters(), 1e-2),
        torch.optim.SGD(model[1].parameters(), 1e-2, momentum=0.9),
        torch.optim.RMSprop(model[2].parameters(), 1e-2),
    ]
    if shared == "memory":
        optimizers[1].add_param_group({"params": [nn.Parameter(model[0].bias.data)]})
        model[1].register_parameter("shared", optimizers[1].param_groups[1]["params"][0])
    if shared == "parameter":
        optimizers[1].add_param_group({"params": [model[0].bias]})
    first = attempt.wrap(optimizers[0], model)
    logged = [first, *(attempt.add_optimizer(first, inner, f"number {i}") for i, inner in enumerate(optimizers[1:], 1))]
    attempt.start(first)
    for turn in first.steps(12, stateless=True):
        value = torch.randn(3, 6)
        for layer in model:
            value = torch.tanh(layer(value))
        value.square().sum().backward()
        for p in [p for group in optimizers[1].param_groups for p in group["params"] if p.grad is None]:
            p.grad = torch.randn_like(p)
        first.clip_grad_norm_(0.5)
        for i in [0, *([1, 1] if turn % 3 == 1 else []), *([2] if turn < 4 else [])]:
            logged[i].step()
            attempt.tick()
        model[0].zero_grad()
    attempt.keep(model=model, **{f"optimizer{i}": optimizer for i, optimizer in enumerate(optimizers)})
    first.close()


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("shared", ["nothing", "memory", "parameter"])
def test_optimizers_that_step_in_turns_come_back_to_the_bit(
    shared: str, is_ahead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where they train the same parameter or memory: then the order of their updates counts."""
    script = partial(in_turns, shared=shared)
    trained = Attempt(tmp_path / "run", checkpoint_every=1000)
    script(trained)
    if is_ahead:
        monkeypatch.setattr(gradient_reader.os, "sched_getaffinity", lambda pid: range(64))
        monkeypatch.setattr(gradient_reader, "_AHEAD_BYTES_MIN", 0)
    again = Attempt(tmp_path / "run")  # resumes at the end: nothing is left to train
    script(again)
    assert (again.reports[0].replayed, again.reports[0].exact) == (24, True)
    assert differences(again.outcome(), trained.outcome()) == []
    prove_exact(script, tmp_path / "killed", (7, 9))


@pytest.mark.parametrize("name", ["SGD momentum", "Adam amsgrad", "Adafactor"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes_come_back_to_the_bit(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    prove_exact(
        partial(ordinary, optimizer_of=lambda m: make(name, "foreach", split(m)), dtype=dtype), tmp_path / "run", DIE_AT
    )


def test_zeroed_gradients_are_not_the_same_as_none(tmp_path: Path) -> None:
    """With set_to_none=False a parameter without a gradient decays on; after recovery, too."""
    script = partial(ordinary, optimizer_of=lambda m: make("Adam", "single", split(m)), set_to_none=False)
    prove_exact(script, tmp_path / "run", DIE_AT)


@pytest.mark.parametrize("options", [{"log": "weights"}, {"fingerprint": "sample"}, {"writer": "thread"}, {"keep": 1}], ids=str)
def test_way_of_logging_changes_nothing(options: dict[str, Any], tmp_path: Path) -> None:
    script = partial(ordinary, optimizer_of=lambda m: make("AdamW", "foreach", split(m)))
    prove_exact(script, tmp_path / "run", DIE_AT, is_exact=None if "fingerprint" in options else True, **options)


def test_weights_without_optimizer_state_are_not_called_exact(tmp_path: Path) -> None:
    run = tmp_path / "run"
    script = partial(ordinary, optimizer_of=lambda m: make("AdamW", "foreach", split(m)))
    trained = Attempt(run, log="weights", optimizer_state=False, checkpoint_every=1000)
    script(trained)
    again = Attempt(run, log="weights", optimizer_state=False)
    script(again)
    found = differences(again.outcome(), trained.outcome())
    assert found
    assert all(path.startswith("['optimizer']['state']") for path in found)
    assert again.reports[0].exact is None
    assert any("optimizer state" in note for note in again.reports[0].notes)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")  # Adagrad's own
@pytest.mark.parametrize("name", ["SGD", "SGD momentum", "Adagrad"])
def test_sparse_gradients_come_back_to_the_bit(name: str, tmp_path: Path) -> None:
    """SGD's momentum buffer is a sparse, uncoalesced tensor then."""

    def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
        return make(name, "single", split(model))

    prove_exact(partial(ordinary, optimizer_of=optimizer_of, sparse=True), tmp_path / "run", DIE_AT)


def sparse_adam(attempt: Attempt) -> None:
    """SparseAdam for the embedding, AdamW for the rest, `add_optimizer`."""
    seed()
    model = Mixed(sparse=True)
    loader = tokens()
    rest = [p for p in model.parameters() if p is not model.embed.weight]
    optimizer = attempt.wrap(torch.optim.AdamW(rest, lr=0.01), model)
    other = attempt.add_optimizer(optimizer, torch.optim.SparseAdam([model.embed.weight], lr=0.05), "embedding")
    attempt.start(optimizer, loader=loader)
    for batch in optimizer.batches(loader, BATCHES):
        loss_of(model, batch).backward()
        attempt.tick()
        other.step()
        attempt.tick()
        optimizer.step()
        optimizer.zero_grad()
        other.zero_grad()
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer, other=other)
    optimizer.close()


def test_sparse_adam_comes_back_to_the_bit(tmp_path: Path) -> None:
    prove_exact(sparse_adam, tmp_path / "run", DIE_AT)


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


@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
def test_muon_comes_back_to_the_bit(adjust: str, tmp_path: Path) -> None:
    def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Muon(split(model), lr=0.01, adjust_lr_fn=adjust)

    prove_exact(partial(matrices, optimizer_of=optimizer_of), tmp_path / "run", (13, 9))


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_comes_back_to_the_bit(search: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It cannot be redone from gradients: weights and state are logged, and it says so."""

    def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=3, line_search_fn=search)

    prove_exact(partial(matrices, optimizer_of=optimizer_of, closure=True), tmp_path / "run", (23, 17))
    assert "LBFGS" in caplog.text


@pytest.mark.parametrize(
    ("name", "form"),
    campaign.each_once(
        ["SGD momentum", "Adam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD", "RAdam"], ["single", "foreach"]
    ),
)
def test_complex_parameters_come_back_to_the_bit(name: str, form: str, tmp_path: Path) -> None:
    script = partial(matrices, optimizer_of=lambda m: make(name, form, m.parameters()), dtype=torch.complex64)
    prove_exact(script, tmp_path / "run", (13,))


@pytest.mark.parametrize("form", ["single", "fused"])
def test_closures_come_back_to_the_bit(form: str, tmp_path: Path) -> None:
    script = partial(
        matrices, optimizer_of=lambda m: make("AdamW" if form == "fused" else "Adam", form, split(m)), closure=True
    )
    prove_exact(script, tmp_path / "run", (13, 9))


def expanded(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.mean().expand_as(gradient) if gradient.numel() else gradient


def in_a_bucket(gradient: torch.Tensor) -> torch.Tensor:
    return torch.cat([gradient.new_zeros(3), gradient.reshape(-1)])[3:].view_as(gradient)


def strided(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.contiguous(memory_format=torch.channels_last) if gradient.dim() == 4 else gradient.t().contiguous().t()


def of_other_dtype(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.bfloat16()


def odd_gradients(
    attempt: Attempt, *, optimizer_of: Make, odd: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype = torch.float32
) -> None:
    """Gradients laid out otherwise than their parameters, one tensor as two gradient_reader, and an empty parameter."""
    seed()
    shapes = [(3, 4, 5, 6), (7, 9), (7, 9), (0, 4)]
    model = nn.ParameterList([nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes])
    if odd is of_other_dtype:
        for p in model:
            p.grad_dtype = torch.bfloat16
    optimizer = attempt.wrap(optimizer_of(model), model)
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


@pytest.mark.parametrize(
    ("name", "odd", "dtype"),
    campaign.pairwise(
        ["SGD momentum-single", "SGD momentum-foreach", "SGD momentum-fused", "AdamW-fused"],
        [in_a_bucket, strided],
        [torch.float32, torch.bfloat16],
    ),
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_gradient_in_another_layout_comes_back_to_the_bit(
    name: str, odd: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype, tmp_path: Path
) -> None:
    """Fused kernels go by memory order and not by strides: what they did is logged, since it cannot be redone."""
    kind, form = name.split("-")
    script = partial(odd_gradients, optimizer_of=lambda m: make(kind, form, m.parameters()), odd=odd, dtype=dtype)
    prove_exact(script, tmp_path / "run", (9,))


@pytest.mark.parametrize("odd", [expanded, of_other_dtype], ids=lambda odd: odd.__name__)
def test_gradient_of_another_kind_comes_back_to_the_bit(odd: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path) -> None:
    script = partial(odd_gradients, optimizer_of=lambda m: make("SGD momentum", "single", m.parameters()), odd=odd)
    prove_exact(script, tmp_path / "run", (9,))


def test_hyper_parameters_that_are_tensors_come_back(tmp_path: Path) -> None:
    def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            split(model), lr=torch.tensor(0.01), betas=(torch.tensor(0.9), torch.tensor(0.99)), foreach=False
        )

    prove_exact(partial(ordinary, optimizer_of=optimizer_of), tmp_path / "run", DIE_AT)


@pytest.mark.parametrize("clip", ["", "torch", "ours"])
def test_accumulation_resumes_at_the_last_finished_step(clip: str, tmp_path: Path) -> None:
    last = prove_exact(partial(accumulating, clip=clip), tmp_path / "run", (9, 20))
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


def scheduled(attempt: Attempt, *, scheduler_of: Callable[[Any], Any], on_inner: bool) -> None:
    """A scheduler per step, on the wrapper or on the optimizer in it."""
    seed()
    model = Mixed()
    loader = tokens()
    inner = torch.optim.SGD(split(model), lr=0.01, momentum=0.9)
    optimizer = attempt.wrap(inner, model)
    scheduler = scheduler_of(inner if on_inner else optimizer)
    attempt.start(optimizer, scheduler=scheduler, loader=loader)
    for batch in optimizer.batches(loader, BATCHES):
        loss_of(model, batch).backward()
        attempt.tick()
        (inner if on_inner else optimizer).step()
        attempt.tick()
        scheduler.step()
        optimizer.zero_grad()
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer, scheduler=scheduler)
    optimizer.close()


@pytest.mark.parametrize(("name", "on_inner"), campaign.each_once(list(SCHEDULERS), [False, True]))
def test_scheduler_comes_back_with_the_values_it_wrote(name: str, on_inner: bool, tmp_path: Path) -> None:
    prove_exact(partial(scheduled, scheduler_of=SCHEDULERS[name], on_inner=on_inner), tmp_path / "run", DIE_AT)


def test_code_per_epoch_runs_once_an_epoch(tmp_path: Path) -> None:
    """Killed before the epoch's code, in its middle, behind it, and in later epochs."""
    prove_exact(per_epoch, tmp_path / "run", (23, 2, 3, 20, 25))


def test_several_optimizers_come_back_to_the_same_moment(tmp_path: Path) -> None:
    """Gradients that wait for a step at the boundary are state, too."""
    prove_exact(adversarial, tmp_path / "run", (15, 17, 11))


def growing(attempt: Attempt) -> None:
    """Layers are unfrozen, and their group is added, in the middle of the run."""
    seed()
    model = Mixed()
    loader = tokens()
    model.hidden.requires_grad_(False)
    first = [p for name, p in model.named_parameters() if not name.startswith("hidden")]
    optimizer = attempt.wrap(torch.optim.AdamW(first, lr=0.01), model)
    attempt.start(optimizer, loader=loader)
    for number, batch in numbered(optimizer, optimizer.batches(loader, BATCHES)):
        if number == 4:
            model.hidden.requires_grad_(True)
            optimizer.add_param_group({"params": list(model.hidden.parameters()), "lr": 0.05})
        loss_of(model, batch).backward()
        attempt.tick()
        optimizer.step()
        optimizer.zero_grad()
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer, trains=[p.requires_grad for p in model.parameters()])
    optimizer.close()


@pytest.mark.parametrize("every", [7, 1000])
def test_group_added_in_the_middle_comes_back_by_itself(every: int, tmp_path: Path) -> None:
    """From a checkpoint that has it, and from one that lacks it."""
    last = prove_exact(growing, tmp_path / "run", (15, 5), checkpoint_every=every)
    assert last.reports[0].step > 5


def test_group_may_be_added_again_before_recovery(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert in_child(lambda: growing(Attempt(run, 15, checkpoint_every=1000))) == -signal.SIGKILL
    shutil.copytree(run, tmp_path / "copy")
    outcomes: list[Outcome] = []
    for folder, early in ((run, False), (tmp_path / "copy", True)):
        seed()
        model = Mixed()
        first = [p for name, p in model.named_parameters() if not name.startswith("hidden")]
        attempt = Attempt(folder)
        optimizer = attempt.wrap(torch.optim.AdamW(first, lr=0.01), model)
        if early:
            optimizer.add_param_group({"params": list(model.hidden.parameters()), "lr": 0.05})
        attempt.start(optimizer)
        assert attempt.reports[0].exact is True
        attempt.keep(model=model, optimizer=optimizer)
        outcomes.append(attempt.outcome())
        optimizer.close()
    assert differences(outcomes[0], outcomes[1]) == []


def test_parameters_that_share_memory_come_back_to_the_bit(tmp_path: Path) -> None:
    """Two parameters over one memory: the order of their updates counts, so that they are not redone one by one."""

    def script(attempt: Attempt) -> None:
        seed()
        model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Tanh(), nn.Linear(6, 6, bias=False), nn.Linear(6, 2))
        model[2].weight.data = model[0].weight.data
        groups = [{"params": model[0].parameters()}, {"params": [*model[2:].parameters()], "lr": 0.03}]
        optimizer = attempt.wrap(torch.optim.AdamW(groups, lr=0.01), model)
        attempt.start(optimizer)
        for number in optimizer.steps(9, stateless=True):
            model(torch.full((3, 6), 0.1 * number)).square().mean().backward()
            attempt.tick()
            optimizer.step()
            optimizer.zero_grad()
        attempt.keep(model=model, optimizer=optimizer)
        optimizer.close()

    prove_exact(script, tmp_path / "run", (6, 2), checkpoint_every=1000)


def test_buffers_of_a_part_called_module_come_back(tmp_path: Path) -> None:
    """The prefix that wrappers add is no prefix here: both layers would have one name without it."""

    def script(attempt: Attempt) -> None:
        seed()
        model = nn.Module()
        model.bn, model.module = nn.BatchNorm1d(4), nn.Sequential()
        model.module.bn = nn.BatchNorm1d(4)
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=0.01), model)
        attempt.start(optimizer)
        for _ in optimizer.steps(6, stateless=True):
            model.module.bn(model.bn(torch.randn(5, 4)).exp()).square().sum().backward()
            attempt.tick()
            optimizer.step()
            optimizer.zero_grad()
        attempt.keep(model=model, optimizer=optimizer)
        optimizer.close()

    prove_exact(script, tmp_path / "run", (4,))
