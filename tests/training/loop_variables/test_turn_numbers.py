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
        "if x is None:\n        pass\n    else:\n        while i > 3: raise ValueError",
    ],
)
def test_what_decides_by_a_number_is_found(body: str) -> None:
    source = f"for i, x in enumerate(loader):\n    {body}"
    assert found_in(source) == "i"
    assert found_in(source.replace("enumerate(loader)", "enumerate(tqdm(self.loader), 1)")) == "i"
    assert found_in(source.replace("enumerate(loader)", "enumerate(optimizer.batches(data, until=9))")) == "i"


@pytest.mark.parametrize(
    "source",
    [
        "for i, x in enumerate(loader):\n    if i % 100 == 0: print(i, loss)",
        "for i, x in enumerate(loader):\n    step(x); history.append(i)",
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
