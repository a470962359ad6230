"""Ranges of elements: how tensors are divided into them, and that they have the bits of whole tensors."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torch.lab import Attempt, differences
from tests.torch.nets import seed
from tests.torch.replay.test_exact_matrix import FORMS, OPTIMIZERS
from tranlogs.base.types import ITEMSIZE
from tranlogs.training import Divergence
from tranlogs_torch.replay import gradient_blocks, range_trial, redo, redo_by_tensor
from tranlogs_torch.replay.ranges import VECTOR_BYTES, Extent, divide, is_even
from tranlogs_torch.replay.replayable_state import ReplayableState
from tranlogs_torch.sharding.update_kinds import BY_ELEMENT

DIVISIBLE = [
    pytest.param(name, form, id=f"{name}-{form}")
    for name, (_, _, forms) in OPTIMIZERS.items()
    for form in forms.split()
    if OPTIMIZERS[name][0].__name__ in BY_ELEMENT
]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def extents_of(chance: random.Random, dtype: str) -> list[Extent]:
    found, offset = [], 0
    for i in range(chance.randrange(1, 12)):
        unit = VECTOR_BYTES // ITEMSIZE[dtype]
        elements = chance.choice([1, unit, 3 * unit, unit + 1, 40_000, 40_000 + unit * 7, 300_000, 262_144, 600_001])
        found.append(Extent(str(i), (elements,), dtype, offset))
        offset = found[-1].end + chance.choice([0, 0, 0, 64])
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_full_vectors_stay_full_vectors(dtype: str) -> None:
    chance = random.Random(7)
    for turn in range(200):
        count = 1 + turn % 9
        extents = [e for e in extents_of(chance, dtype) if is_even(e.elements, e.itemsize, count)]
        ranges = list(divide(extents, chance.choice([20, 5_000, 262_144]), count))
        parts = [part for range_ in ranges for part in range_.parts]
        by_name = {extent.name: extent for extent in extents}
        assert sum(part.end - part.begin for part in parts) == sum(extent.elements for extent in extents)
        for range_ in ranges:
            assert is_even(range_.elements, ITEMSIZE[dtype], count)
            at = by_name[range_.parts[0].name].offset
            for i, part in enumerate(range_.parts):
                extent = by_name[part.name]
                assert part.begin * extent.itemsize % VECTOR_BYTES == 0
                if len(range_.parts) > 1:
                    assert (part.begin, part.end, extent.offset) == (0, extent.elements, at)
                    at = extent.end
                if i < len(range_.parts) - 1:
                    assert part.end * extent.itemsize % VECTOR_BYTES == 0


@pytest.mark.parametrize(("name", "form"), DIVISIBLE)
def test_ranges_have_the_bits_of_whole_tensors(name: str, form: str, threads: int) -> None:
    kind, options, _ = OPTIMIZERS[name]
    optimizer = kind([torch.nn.Parameter(torch.zeros(3))], **options, **FORMS[form])
    for dtype in (torch.float32, torch.bfloat16):
        assert range_trial.gives_same_bits(optimizer, 0, dtype)


class Normed(torch.optim.SGD):
    """Its update of an element depends on the whole tensor."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            p.sub_(0.1 * p.grad / p.grad.norm())


def test_optimizer_that_looks_at_whole_tensors_is_found_out() -> None:
    optimizer = Normed([torch.nn.Parameter(torch.zeros(3))], lr=0.1)
    assert not range_trial.gives_same_bits(optimizer, 0, torch.float32)


def test_steps_are_redone_as_they_were_taken_if_another_order_gives_other_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that this page does not know of: its result differs, and the run comes back all the same."""
    trained = Attempt(tmp_path / "run", checkpoint_every=1000)
    script(trained)
    orders: list[str] = []

    class Wrong(redo_by_tensor.ByTensor):
        def redo(self, tick: Any) -> Divergence | None:
            found = super().redo(tick)
            assert found is None
            with torch.no_grad():
                next(iter(self.state.parameters.values())).view(-1)[0] += 1.0
            orders.append("by tensor")
            return Divergence(self.run[0][0].step, next(iter(self.state.parameters)))

    monkeypatch.setattr(redo, "ByTensor", Wrong)
    again = Attempt(tmp_path / "run")
    script(again)
    assert orders == ["by tensor"]
    assert (again.reports[0].replayed, again.reports[0].exact) == (9, True)
    assert differences(again.outcome(), trained.outcome()) == []


@pytest.mark.parametrize("is_read_at_once", [False, True])
@pytest.mark.parametrize("odd", [1, 3, 505])
def test_dtypes_that_put_each_other_out_of_place_come_back_without_a_second_redo(
    odd: int, is_read_at_once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An odd number of bfloat16 lies before float32 in each record; ranges of a large tensor are cut, small ones merged."""

    def train(attempt: Attempt) -> None:
        seed()
        large = 600_000 if is_read_at_once else 9_000
        shapes = [(odd, torch.bfloat16), (large, torch.float32), (40, torch.float32), (64, torch.float32), (7, torch.float64)]
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
    monkeypatch.setattr(ReplayableState, "redo_as_trained", lambda state: pytest.fail("the steps were redone once more"))
    if not is_read_at_once:
        monkeypatch.setattr(redo_by_tensor, "_BUNDLE_ELEMENTS", 2_048)
        monkeypatch.setattr(gradient_blocks.GradientMemory, "_over", lambda memory, entry, span: None)
    again = Attempt(tmp_path / "run")
    train(again)
    assert (again.reports[0].replayed, again.reports[0].exact) == (9, True)
    assert differences(again.outcome(), trained.outcome()) == []


def script(attempt: Attempt) -> None:
    seed()
    model = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
    optimizer = attempt.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), model)
    attempt.start(optimizer)
    for _ in optimizer.steps(9, stateless=True):
        optimizer.zero_grad()
        model(torch.randn(8, 40)).square().mean().backward()
        optimizer.step()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()
