"""What a script begins to track or to remember while its run goes on, as a note of the report advises."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.torch.lab import Attempt, in_child
from tests.torch.loops.recheck_scripts import EPOCHS, TURNS, _begin, _step

pytestmark = pytest.mark.crash


class Counter:
    """An object with a state."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def _batches(optimizer: Any, loader: Any, loop: str) -> Iterator[Any]:
    if loop == "batches":
        yield from optimizer.batches(loader, until=TURNS)
    else:
        for epoch in optimizer.epochs(EPOCHS, loader):
            yield from epoch


def train(attempt: Attempt, loop: str, *, remembers: tuple[str, ...] = (), tracks: bool = False) -> None:
    model, optimizer, loader = _begin(attempt)
    state = optimizer.remember(**dict.fromkeys(remembers, 0)) if remembers else None
    counter = Counter()
    given = {"counter": counter} if tracks else {}
    attempt.start(optimizer, **given)
    for batch in _batches(optimizer, loader, loop):
        _step(attempt, model, optimizer, batch)
        counter.count += 1
        for name in remembers:
            setattr(state, name, getattr(state, name) + 1)
    attempt.keep(model=model)
    optimizer.close()


@pytest.mark.parametrize("loop", ["batches", "epochs"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"remembers": ("best",)}),
        ({"remembers": ("best",)}, {"remembers": ("best", "bad")}),
        ({"remembers": ("best", "bad")}, {"remembers": ("best",)}),
        ({}, {"tracks": True}),
        ({"tracks": True}, {}),
    ],
    ids=["first name", "another name", "a name less", "an object", "an object less"],
)
def test_a_name_that_only_the_run_has_or_only_the_script_makes_no_resume_wrong(
    loop: str, before: dict[str, Any], after: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANLOGS_RECHECK", "1")
    run = tmp_path / "run"
    assert in_child(partial(train, Attempt(run, 8), loop, **before)) == -signal.SIGKILL
    for die_at in (2, 4):  # in the first unit that the script with the other names logs, and later
        assert in_child(partial(train, Attempt(run, die_at), loop, **after)) == -signal.SIGKILL
        copy = tmp_path / f"copy {die_at}"
        shutil.copytree(run, copy)
        attempt = Attempt(copy)
        train(attempt, loop, **after)
        report = attempt.final_report()
        assert report.recheck == "equal", report.notes
        assert report.exact is not False, report.notes
    assert report.exact is True, report.notes
