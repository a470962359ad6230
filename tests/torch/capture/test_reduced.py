"""`log="gradients:bf16"` and `"gradients:int8"`: the optimizer consumes rounded gradients, and exactly these are logged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.format.format_reader import DocumentSegment
from tests.support import campaign
from tests.torch.lab import Attempt, differences, prove_exact
from tests.torch.nets import logged, seed, small
from tests.torch.replay.test_exact_matrix import matrices, of_table
from tests.torch.scripts import accumulating, adversarial, mixed_precision, ordinary, simple
from tranlogs.base.errors import UsageError
from tranlogs.cli import main
from tranlogs_torch.capture.reduced_gradients import BLOCK, ReducedGradients, Reduction

KINDS: tuple[Reduction, ...] = get_args(Reduction)
BYTES = {"bf16": 2.0, "int8": 1 + 4 / BLOCK}  # of an element of a large tensor


class Rounded(Attempt):
    """The script without a log: a hook rounds the gradients of each step."""

    def __init__(self, kind: Reduction) -> None:
        super().__init__()
        self._kind, self._steps = kind, 0

    def wrap(self, optimizer: torch.optim.Optimizer, model: Any = None, **options: Any) -> Any:
        self._hook(optimizer)
        return super().wrap(optimizer, model)

    def add_optimizer(self, logged: Any, optimizer: torch.optim.Optimizer, name: str, **options: Any) -> Any:
        self._hook(optimizer)
        return optimizer

    def _hook(self, optimizer: torch.optim.Optimizer) -> None:
        reducer = ReducedGradients(self._kind)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        names = [f"grad/{i}" for i in range(len(parameters))]

        def round_gradients() -> None:
            reducer.reduce(names, [p.grad for p in parameters], self._steps)
            self._steps += 1

        def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            closure = args[1] if len(args) > 1 else None
            if closure is None:
                round_gradients()
                return None

            def closure_and_rounding() -> Any:
                loss = closure()
                round_gradients()
                return loss

            return (args[0], closure_and_rounding), kwargs

        optimizer.register_step_pre_hook(hook)


def large(attempt: Attempt) -> None:
    """Gradients that are rounded where they lie, ones that are gathered, and odd sizes among both."""
    seed()
    model = nn.Sequential(nn.Linear(256, 300), nn.Tanh(), nn.Linear(300, 512), nn.Tanh(), nn.Linear(512, 301))
    simple(attempt, model, torch.optim.AdamW(model.parameters(), lr=0.01), width=256)


def in_bfloat16(attempt: Attempt) -> None:
    """Most parameters are bfloat16, whose gradients are logged as they are."""
    seed()
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3).to(torch.bfloat16))
    model[1].register_forward_hook(lambda module, args, out: out.to(torch.bfloat16))
    simple(attempt, model, torch.optim.AdamW(model.parameters(), lr=0.01))


SCRIPTS: dict[str, tuple[Callable[[Attempt], None], tuple[int, ...]]] = {
    "foreach, parameters that are seldom used": (partial(ordinary, optimizer_of=of_table("AdamW")), (17, 5, 12)),
    "clipped by the wrapper": (partial(accumulating, clip="ours"), (23,)),
    "several optimizers": (adversarial, (15, 17)),
    "overflow in a fused step": (mixed_precision, (11, 7)),
    "closure": (partial(matrices, optimizer_of=of_table("Adam", "single"), closure=True), (13,)),
    "large": (large, (6, 3)),
}


ALL = [(name, kind) for name in SCRIPTS for kind in KINDS]
GATE = [(name, KINDS[i % 2]) for i, name in enumerate(SCRIPTS)]  # each script once


@pytest.mark.parametrize(("name", "kind"), ALL if campaign.is_soak() else [*GATE, ("large", "bf16")])
def test_killed_run_continues_to_the_bit(name: str, kind: Reduction, tmp_path: Path) -> None:
    """And it is the run that rounds without a log; then the whole run is redone from its first checkpoint."""
    script, die_at = SCRIPTS[name]
    right = Rounded(kind)
    script(right)
    options: dict[str, Any] = {"log": f"gradients:{kind}", "checkpoint_every": 1000}
    last = prove_exact(script, tmp_path / "run", die_at, right=right, **options)
    assert last.reports[0].replayed > 0
    again = Attempt(tmp_path / "run", recheck=False, **options)
    script(again)
    assert again.reports[0].exact
    assert again.reports[0].checkpoint_step == 0
    assert differences(again.outcome(), right.outcome()) == []
    plain = Attempt()
    script(plain)
    assert differences(plain.outcome(), right.outcome())  # it is another training


def test_gradients_of_two_bytes_are_logged_as_they_are(tmp_path: Path) -> None:
    right = Rounded("bf16")
    in_bfloat16(right)
    prove_exact(in_bfloat16, tmp_path / "run", (6,), right=right, log="gradients:bf16")
    step = records(tmp_path / "run")[-1]
    assert {name: len(data) for name, data in step.items()} == {
        "grad/2.weight": 42,
        "grad/2.bias": 6,
        "bf16/0.weight": 140 // 2,
        "bf16/0.bias": 28 // 2,
    }


def test_script_may_change_what_is_logged(tmp_path: Path) -> None:
    """The proof names what differs; all that was logged is redone, whatever follows it."""
    script = partial(ordinary, optimizer_of=of_table("AdamW"))
    until = {"gradients": 5, "gradients:int8": 9, "weights": 13}
    for log, batches in until.items():
        attempt = Attempt(tmp_path / "run", log=log, checkpoint_every=1000, recheck=False)
        script(attempt, batches=batches)
        assert attempt.reports[0].exact is not False
    assert attempt.reports[0].replayed == 9


def records(run: Path) -> list[dict[str, bytes]]:
    """Return the tensors of all steps, read as docs/format.md says."""
    found = []
    for path in sorted((run / "rank0" / "log").glob("*.seg")):
        found += [entry.tensors for entry in DocumentSegment(path).entries() if entry.kind in ("STEP", "UNIT")]
    return found


def product(step: dict[str, bytes], name: str) -> np.ndarray[Any, Any]:
    """Return a gradient, in the order of memory, as docs/format.md says."""
    if f"bf16/{name}" in step:
        return (np.frombuffer(step[f"bf16/{name}"], "<u2").astype("<u4") << 16).view("<f4")
    integers, scales = np.frombuffer(step[f"int8/{name}"], "i1"), np.frombuffer(step[f"scale/{name}"], "<f4")
    return integers.astype(np.float32) * np.repeat(scales, 256)[: len(integers)]


@pytest.mark.parametrize("kind", KINDS)
def test_log_holds_what_the_optimizer_consumed(kind: Reduction, tmp_path: Path) -> None:
    """After the step the gradients are those that it consumed; the log is a half or a quarter as large."""
    seed()
    model = nn.Sequential(nn.Linear(256, 300), nn.Linear(300, 512), nn.Linear(512, 7))
    with logged(model, tmp_path, torch.optim.SGD(model.parameters(), lr=0.1), log=f"gradients:{kind}") as optimizer:
        print(optimizer.recover())
        consumed = []
        for number in optimizer.steps(3, stateless=True):
            optimizer.zero_grad()
            model(torch.full((3, 256), 0.1 * (number + 1))).square().sum().backward()
            before = {name: p.detach().clone() for name, p in model.named_parameters()}
            optimizer.step()
            consumed.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
            for name, p in model.named_parameters():
                assert p.grad is not None
                assert torch.equal(p, before[name].add(p.grad, alpha=-0.1))
    count = sum(p.numel() for p in model.parameters())
    for step, gradients in zip(records(tmp_path), consumed, strict=True):
        assert sum(map(len, step.values())) == pytest.approx(BYTES[kind] * count, rel=0.001)
        for name, gradient in gradients.items():
            assert np.array_equal(product(step, name), gradient.flatten().numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_commands_read_such_a_run(kind: Reduction, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And without the script the state is the one that the script had."""
    seed()
    model = nn.Sequential(nn.Linear(256, 300), nn.Tanh(), nn.Linear(300, 512))
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    with logged(model, tmp_path / "run", inner, log=f"gradients:{kind}", checkpoint_every=1000) as optimizer:
        optimizer.recover()
        for number in optimizer.steps(5, stateless=True):
            one_step(model, optimizer, torch.full((3, 256), 0.1 * number))
    for command in ("status RUN", "verify RUN --replay", "log RUN --step 2", "replay RUN --out OUT"):
        with pytest.raises(SystemExit) as ended:
            main(
                [{"RUN": str(tmp_path / "run"), "OUT": str(tmp_path / "state.pt")}.get(word, word) for word in command.split()]
            )
        assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "gradients are logged" in said
    assert f"{kind}/0.weight" in said
    found = torch.load(tmp_path / "state.pt", weights_only=True)
    assert found["model"].keys() == model.state_dict().keys()
    assert all(torch.equal(found["model"][name], value) for name, value in model.state_dict().items())


def one_step(model: nn.Module, optimizer: Any, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def rounded(kind: Reduction, *gradients: torch.Tensor, step: int = 0) -> list[torch.Tensor]:
    """Return gradients, rounded; those that are given stay."""
    copies = [gradient.clone(memory_format=torch.preserve_format) for gradient in gradients]
    ReducedGradients(kind).reduce([f"grad/{i}" for i in range(len(copies))], copies, step)
    return copies


NUMBERS = st.floats(width=32, allow_subnormal=True, min_value=-(2.0**100), max_value=2.0**100)


@pytest.mark.parametrize("kind", KINDS)
@given(values=st.lists(NUMBERS, min_size=1, max_size=3 * BLOCK), step=st.integers(0, 1 << 40))
def test_a_number_becomes_one_of_its_neighbours(kind: Reduction, values: list[float], step: int) -> None:
    gradient = torch.tensor(values, dtype=torch.float32)
    (found,) = rounded(kind, gradient, step=step)
    assert torch.equal(found, rounded(kind, gradient, step=step)[0])  # the step alone decides
    if kind == "bf16":
        below = (gradient.view(torch.int32) & -65536).view(torch.float32)  # towards zero
        above = ((gradient.view(torch.int32) + 65535) & -65536).view(torch.float32)
        assert bool(((found == below) | (found == above)).all())
        assert torch.equal(found, rounded(kind, found, step=step + 1)[0])
        return
    for part, numbers in zip(found.split(BLOCK), gradient.split(BLOCK), strict=True):
        scale = numbers.abs().max().clamp(min=2.0**-119) / 127
        assert bool(((part - numbers).abs() <= scale * 1.0001).all())


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_over_steps_is_the_gradient(kind: Reduction) -> None:
    gradient = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    steps = 200
    found = torch.stack([rounded(kind, gradient, step=step)[0] for step in range(steps)]).double()
    if kind == "bf16":
        unit = torch.exp2(gradient.abs().log2().floor() - 7)
    else:
        unit = torch.cat([part.abs().max().expand(len(part)) for part in gradient.split(BLOCK)]) / 127
    assert bool(((found.mean(0) - gradient).abs() <= 5 * unit * 0.5 / steps**0.5).all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [0x7F800000, 0xFF800000, 0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001])
def test_what_is_not_finite_stays_so(kind: Reduction, bits: int) -> None:
    gradient = torch.zeros(5 * BLOCK)
    gradient.view(torch.int32)[700] = bits - (1 << 32 if bits >> 31 else 0)
    for step in range(20):
        (found,) = rounded(kind, gradient, step=step)
        assert not found[700].isfinite()
        assert bool(found[: 2 * BLOCK].isfinite().all())
        assert bool(found[3 * BLOCK :].isfinite().all())


def test_shape_and_order_of_memory_stay() -> None:
    images = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    for kind in KINDS:
        found = rounded(kind, images, torch.tensor(1.5), torch.zeros(0), torch.randn(7).reshape(7, 1).t())
        assert found[0].stride() == images.stride()
        assert bool(((found[0] - images).abs() < 0.05).all())


def sparse(model: nn.Module) -> None:
    weight: Any = model[0].weight  # type: ignore[index]
    weight.grad = weight.grad.to_sparse()


def overlapping(model: nn.Module) -> None:
    weight: Any = model[0].weight  # type: ignore[index]
    weight.grad = torch.ones(1, 1).expand(weight.shape)


def shared(model: nn.Module) -> None:
    first: Any = model[0].bias  # type: ignore[index]
    second: Any = model[2].weight  # type: ignore[index]
    second.grad = first.grad.new_zeros(12).view(2, 6)
    first.grad = second.grad.view(12)[:6]


@pytest.mark.parametrize(
    ("change", "why"),
    [(sparse, "0.weight is sparse"), (overlapping, "gaps or overlaps"), (shared, "two parameters have one gradient")],
)
def test_gradients_that_cannot_be_rounded_are_refused_before_the_step(
    change: Callable[[nn.Module], None], why: str, tmp_path: Path
) -> None:
    for kind in KINDS:
        model = small()
        with logged(model, tmp_path / kind, torch.optim.SGD(model.parameters(), lr=0.1), log=f"gradients:{kind}") as optimizer:
            optimizer.recover()
            model(torch.ones(3, 4)).square().sum().backward()
            change(model)
            before = [p.detach().clone() for p in model.parameters()]
            with pytest.raises(UsageError, match=f'log="gradients:{kind}": .*{why}.* Use log="gradients"'):
                optimizer.step()
            assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize(("kind", "dtype"), [("bf16", torch.float64), ("int8", torch.bfloat16), ("int8", torch.float16)])
def test_other_dtypes_are_refused(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = small().to(dtype)
    with logged(model, tmp_path, log=f"gradients:{kind}") as optimizer:
        optimizer.recover()
        model(torch.ones(3, 4, dtype=dtype)).square().sum().backward()
        with pytest.raises(UsageError, match=r"0.weight is .*float.*, and float32 is rounded"):
            optimizer.step()


class Twice(torch.optim.SGD):
    """An optimizer that evaluates its closure twice."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        closure()
        return super().step(closure)


def test_gradients_that_are_computed_several_times_in_a_step_are_refused(tmp_path: Path) -> None:
    model = small()
    with pytest.raises(UsageError, match="LBFGS evaluates its closure many times"):
        logged(model, tmp_path, torch.optim.LBFGS(model.parameters()), log="gradients:int8")
    with logged(model, tmp_path, Twice(model.parameters(), 0.1), log="gradients:int8") as optimizer:
        optimizer.recover()

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(torch.ones(3, 4)).square().sum()
            loss.backward()
            return loss

        with pytest.raises(UsageError, match=r"\(Twice\) evaluates its closure several times per step"):
            optimizer.step(closure)


class Drawing(torch.optim.Optimizer):
    """An optimizer that cannot be redone from gradients."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad * torch.rand_like(parameter), alpha=0.1)


def test_where_weights_are_logged_training_is_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is found out again in each process, so rounding must not end with it."""

    def script(attempt: Attempt) -> None:
        seed()
        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
        simple(attempt, model, Drawing(model.parameters(), {}))

    right = Rounded("int8")
    script(right)
    with caplog.at_level(logging.WARNING):
        prove_exact(script, tmp_path / "run", (5,), right=right, log="gradients:int8")
    assert "now logs weights and state" in caplog.text
