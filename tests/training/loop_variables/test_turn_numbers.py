"""Numbers of batches by which a loop decides what a turn does."""

from __future__ import annotations

import ast
import textwrap

import pytest

from tranlogs.training.loop_variables.turn_numbers import deciding_number


def found_in(source: str) -> str | None:
    (loop,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(loop, (ast.For, ast.While))
    return deciding_number(loop, lambda name: name in ("loader", "self.loader", "optimizer"))


@pytest.mark.parametrize(
    "body",
    [
        "if i >= 9: break",
        "if i == 0: continue",
        "if (i + 1) % 4 == 0: optimizer.step(); optimizer.zero_grad()",
        "is_last = (i + 1) % 4 == 0; is_due = is_last or x is None\n    if is_due:\n        optimizer.step()",
        "scheduler.step(epoch + i / len(loader))",
        "scheduler.step(epoch=epoch + i / len(loader))",
        "if (due := i % 4 == 0):\n        pass\n    if due: self.optimizer.step()",
        "if x is None:\n        pass\n    else:\n        while i > 3: raise ValueError",
    ],
)
def test_what_decides_by_a_number_is_found(body: str) -> None:
    source = f"for i, x in enumerate(loader):\n    {body}"
    assert found_in(source) == "i"
    for other in ("enumerate(tqdm(self.loader), 1)", "tqdm(enumerate(loader), total=9)"):
        assert found_in(source.replace("enumerate(loader)", other)) == "i"
    assert found_in(source.replace("enumerate(loader)", "enumerate(optimizer.batches(data, until=9))")) == "i"


@pytest.mark.parametrize(
    "source",
    [
        "for i, x in enumerate(loader):\n    if i % 100 == 0: print(i, loss)",
        "for i, x in enumerate(loader):\n    step(x); history.append(i)",
        "for i, x in enumerate(loader):\n    if i % 500 == 0:\n        for v in other:\n            if v: break",
        "for i, x in enumerate(loader):\n    if i % 500 == 0:\n        def f(): return 1\n        profiler.step(); env.step(i)",
        "for i, x in enumerate(loader):\n    i += report.batch\n    if i > 9: break",
        "for i, x in enumerate(loader):\n    for i in range(3):\n        if i > 1: break",
        "for i, x in enumerate(optimizer.param_groups):\n    if i > 9: break",
        "for i, x in enumerate(folds.split(loader.dataset)):\n    if i > 9: break",
        "for i, x in enumerate(other):\n    if i > 9: break",
        "for i, x in enumerate(loader, start=report.batch % len(loader)):\n    if i > 9: break",
        "for i, x in epoch.enumerate():\n    if i > 9: break",
        "for i, x in zip(range(9), loader):\n    if i > 9: break",
        "for pair in enumerate(loader):\n    if pair[0] > 9: break",
        "while i < 3:\n    if i > 9: break",
    ],
)
def test_other_loops_have_none(source: str) -> None:
    assert found_in(source) is None
