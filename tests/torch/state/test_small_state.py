"""A small state is compared in full, however long a digest seems to take, so that its recovery is proven."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import torch._dynamo  # the first step imports it, which would take every life a second

from tests.torch.lab import Attempt, in_child
from tests.torch.nets import seed
from tranlogs.training import fingerprint

ROWS_OF_1_MIB = (1 << 20) // (4 * 64)


def script(attempt: Attempt, rows: int) -> None:
    """Train some rows of a table: a step logs far less than a quarter of it."""
    seed()
    table = torch.nn.Embedding(rows, 64, sparse=True)
    optimizer = attempt.wrap(torch.optim.SGD(table.parameters(), 0.1), table)
    attempt.start(optimizer)
    for turn in optimizer.steps(40, stateless=True):
        table(torch.tensor([turn, 0])).square().sum().backward()
        attempt.tick()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.close()


@pytest.mark.parametrize(
    ("rows", "exact"),
    [(40, True), (ROWS_OF_1_MIB - 1, True), (ROWS_OF_1_MIB, True), (ROWS_OF_1_MIB + 1, None), (2 * ROWS_OF_1_MIB, None)],
)
def test_only_a_state_above_the_limit_is_sampled(
    rows: int, exact: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "BUDGET", 0)  # no digest is fast enough
    monkeypatch.setattr(fingerprint, "_FREE_SECONDS", 0)
    in_child(lambda: partial(script, rows=rows)(Attempt(tmp_path / "run", 35, checkpoint_every=1000)))
    last = Attempt(tmp_path / "run", checkpoint_every=1000)
    script(last, rows)
    report = last.final_report()
    assert report.exact is exact, report
    assert any("rotating sample" in note for note in report.notes) is (exact is None)
