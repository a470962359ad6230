"""Several loops of one's own in one run: each counts from 0, and finished ones yield nothing after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab


def train(run: str, die_at: int = 0, last: int = 2) -> dict[str, Any]:
    """Train three loops with code between them; die at a tick."""
    import itertools
    import os
    import signal

    import keras
    import numpy as np

    from tranlogs_keras import LoggedOptimizer

    keras.utils.set_random_seed(4)
    ticks = itertools.count(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    x, y = np.random.default_rng(1).random((2, 6, 3), "float32")
    optimizer = LoggedOptimizer(
        keras.optimizers.Adam(0.1), run, model, durability="process", segment_bytes=1 << 20, seed=5, recheck=True
    )
    report = optimizer.recover()
    place = [report.loop, report.epoch, report.batch]
    losses: dict[str, float] = {}

    def tick() -> None:
        if next(ticks) == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def step(name: str, batch: Any) -> None:
        loss = keras.ops.mean(model(batch) ** 2)
        model.zero_grad()
        loss.backward()
        tick()
        trainable = model.trainable_variables
        optimizer.apply([v.value.grad for v in trainable], trainable)
        losses[name] = float(loss.detach())

    for epoch in optimizer.epochs(2, x, batch_size=2):
        for i, batch in epoch.enumerate():
            step(f"first {epoch} {i}", batch)
    tick()
    optimizer.learning_rate = 0.01
    model.set_weights([weight * 0.5 for weight in model.get_weights()])
    tick()
    for epoch in optimizer.epochs(2, y, batch_size=3):
        for i, batch in epoch.enumerate():
            step(f"second {epoch} {i}", batch)
    tick()
    for turn in optimizer.steps(last, stateless=True):
        step(f"third {turn}", np.full((2, 3), turn + 1, "float32"))
    tick()
    optimizer.close()
    weights = [weight.tolist() for weight in model.get_weights()]
    return {"weights": weights, "losses": losses, "exact": optimizer.report.exact, "place": place}


NAME = "tests.keras.test_loop_sequence.train"


def test_loops_with_code_between_them_come_back(torch: Lab, tmp_path: Path) -> None:
    whole = torch.value(NAME, run=str(tmp_path / "whole"))
    assert [name.split()[0] for name in whole["losses"]] == ["first"] * 6 + ["second"] * 4 + ["third"] * 2
    for die_at in (8, 9, 13):
        run = str(tmp_path / f"run{die_at}")
        assert torch.run(NAME, run=run, die_at=die_at).was_killed
        found = torch.value(NAME, run=run)
        assert found["weights"] == whole["weights"], die_at
        assert found["exact"] is True, die_at
        assert all(whole["losses"][name] == loss for name, loss in found["losses"].items())


def test_finished_run_trains_nothing_and_a_longer_last_loop_goes_on(torch: Lab, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    torch.value(NAME, run=run)
    assert torch.value(NAME, run=run)["losses"] == {}
    assert list(torch.value(NAME, run=run, last=4)["losses"]) == ["third 2", "third 3"]


def test_a_last_loop_may_become_shorter_while_something_is_left(torch: Lab, tmp_path: Path) -> None:
    assert torch.run(NAME, run=str(tmp_path), last=4, die_at=16).was_killed
    found = torch.value(NAME, run=str(tmp_path), last=3)
    assert list(found["losses"])[-1] == "third 2"
    assert found["exact"] is True


@pytest.mark.parametrize("die_at", [11])
def test_report_counts_in_the_loop_that_runs(die_at: int, torch: Lab, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    assert torch.run(NAME, run=run, die_at=die_at).was_killed
    assert torch.value(NAME, run=run)["place"] in ([2, 0, 1], [2, 0, 2], [2, 1, 2])


def leave(run: str, limit: int, die_at: int = 0, kind: str = "epochs") -> dict[str, Any]:
    """Leave the first loop after so many steps of the run, by `break`; then train two epochs. Die in a step."""
    import itertools
    import os
    import signal

    import keras
    import numpy as np

    from tranlogs_keras import LoggedOptimizer

    keras.utils.set_random_seed(4)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.2), keras.layers.Dense(2)])
    x = np.random.default_rng(1).random((6, 3), "float32")
    optimizer = LoggedOptimizer(
        keras.optimizers.Adam(0.1), run, model, durability="process", segment_bytes=1 << 20, seed=5, recheck=True
    )
    state = optimizer.remember(count=0)
    report, steps, epochs = optimizer.recover(), itertools.count(1), list[int]()

    def step(batch: Any) -> None:
        loss = keras.ops.mean(model(batch, training=True) ** 2)
        model.zero_grad()
        loss.backward()
        if next(steps) == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        trainable = model.trainable_variables
        optimizer.apply([v.value.grad for v in trainable], trainable)
        state.count += 1

    if kind == "epochs":
        for epoch in optimizer.epochs(4, x, batch_size=2):
            if state.count >= limit:
                break
            for batch in epoch:
                step(batch)
                if state.count >= limit:
                    break
    else:
        for batch in optimizer.batches(x, 12, batch_size=2):
            if state.count >= limit:
                break
            step(batch)
    optimizer.learning_rate = 0.01
    for epoch in optimizer.epochs(2, x, batch_size=2):
        epochs.append(int(epoch))
        for batch in epoch:
            step(batch)
    optimizer.close()
    weights = [weight.tolist() for weight in model.get_weights()]
    exact, recheck = optimizer.report.exact, optimizer.report.recheck
    return {"weights": weights, "count": state.count, "epochs": epochs, "exact": exact, "recheck": recheck, "step": report.step}


@pytest.mark.parametrize("kind", ["epochs", "batches"])
def test_loop_that_is_left_at_once_after_a_crash_loses_no_step(kind: str, torch: Lab, tmp_path: Path) -> None:
    """The condition to leave differs from the run before the crash, which stood in the middle of an epoch."""
    name = "tests.keras.test_loop_sequence.leave"
    whole = torch.value(name, run=str(tmp_path / "whole"), limit=5, kind=kind)
    run = str(tmp_path / "run")
    assert torch.run(name, run=run, limit=9, die_at=6, kind=kind).was_killed
    found = torch.value(name, run=run, limit=2, kind=kind)
    assert (found["count"], found["epochs"], found["exact"]) == (11, [0, 1], None)
    assert found["weights"] == whole["weights"]


def test_step_before_a_break_is_committed_when_the_next_loop_begins(torch: Lab, tmp_path: Path) -> None:
    """The process dies in the first step of the second loop."""
    name, run = "tests.keras.test_loop_sequence.leave", str(tmp_path / "run")
    whole = torch.value(name, run=str(tmp_path / "whole"), limit=5)
    assert torch.run(name, run=run, limit=5, die_at=6).was_killed
    found = torch.value(name, run=run, limit=5)
    assert (found["step"], found["exact"], found["recheck"]) == (4, True, "equal")  # step 5 is computed again
    assert found["weights"] == whole["weights"]
