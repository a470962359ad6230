"""What a script begins to track or to remember while its run goes on, as a note of the report advises."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

from tests.torch.lab import Attempt, in_child
from tests.torch.loops.recheck_scripts import TURNS, _begin, _step

pytestmark = pytest.mark.crash


class Counter:
    """An object with a state."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def train(attempt: Attempt, *, remembers: tuple[str, ...] = (), tracks: bool = False) -> None:
    model, optimizer, loader = _begin(attempt)
    state = optimizer.remember(**dict.fromkeys(remembers, 0)) if remembers else None
    counter = Counter()
    attempt.start(optimizer, **({"counter": counter} if tracks else {}))
    for batch in optimizer.batches(loader, until=TURNS):
        _step(attempt, model, optimizer, batch)
        counter.count += 1
        for name in remembers:
            setattr(state, name, getattr(state, name) + 1)
    attempt.keep(model=model)
    optimizer.close()


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
    before: dict[str, object], after: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANLOGS_RECHECK", "1")
    run = tmp_path / "run"
    assert in_child(partial(train, Attempt(run, 5), **before)) == -signal.SIGKILL
    assert in_child(partial(train, Attempt(run, 4), **after)) == -signal.SIGKILL
    attempt = Attempt(run)
    train(attempt, **after)
    report = attempt.final_report()
    assert (report.recheck, report.exact) == ("equal", True), report.notes
