"""Loops of one's own that are left by `break`, and what a start says of a run whose script came to its end before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.keras.lab import Lab


def train(run: str, stop_at: list[int] | None = None, last: int | None = None) -> dict[str, Any]:
    """Train epochs that are left at their third batch; die at a batch, or leave the loop over epochs behind number `last`."""
    import os
    import signal

    import keras
    import numpy as np

    from tranlogs_keras import LoggedOptimizer

    keras.utils.set_random_seed(4)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    x = np.random.default_rng(1).random((12, 3), "float32")
    optimizer = LoggedOptimizer(keras.optimizers.Adam(0.1), run, model, durability="process", segment_bytes=1 << 20, seed=5)
    line = str(optimizer.recover()).partition("\n")[0]
    before = Path(f"{run}.seen").read_text() if Path(f"{run}.seen").exists() else ""
    for epoch in optimizer.epochs(4, x, batch_size=2, shuffle=True):
        for i, batch in epoch.enumerate():
            loss = keras.ops.mean(model(batch))
            model.zero_grad()
            loss.backward()
            trainable = model.trainable_variables
            optimizer.apply([v.value.grad for v in trainable], trainable)
            with open(f"{run}.seen", "a") as file:
                file.write(f"{epoch} {i} {float(loss.detach())!r}\n")
            if [epoch, i] == stop_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if i == 2:
                break
        if epoch == last:
            break
    optimizer.close()
    seen = Path(f"{run}.seen").read_text()
    return {"line": line, "seen": seen.splitlines(), "new": seen[len(before) :].split("\n"), "weights": weights_of(model)}


def weights_of(model: Any) -> list[Any]:
    return [weight.tolist() for weight in model.get_weights()]


NAME = "tests.keras.test_finished_loops.train"


def test_epochs_that_are_left_by_break_go_on_at_the_right_batch(torch: Lab, tmp_path: Path) -> None:
    whole = torch.value(NAME, run=str(tmp_path / "whole"))
    assert [line.split()[:2] for line in whole["seen"]] == [[str(epoch), str(i)] for epoch in range(4) for i in range(3)]
    for place in ([1, 1], [2, 0]):
        assert torch.run(NAME, run=str(tmp_path / "parts"), stop_at=place).was_killed
    last = torch.value(NAME, run=str(tmp_path / "parts"))
    assert last["weights"] == whole["weights"]
    assert sorted(set(last["seen"])) == sorted(whole["seen"])
    again = torch.value(NAME, run=str(tmp_path / "parts"))
    assert again["new"] == [""]
    assert again["line"].startswith("recovered to step 12 (epoch 4, after 12 batches, ")
    assert again["line"].endswith(
        "): the run is finished; only a longer loop or a further one trains on (for another training, give another folder)"
    )


def test_a_loop_that_was_left_is_named_at_the_next_start(torch: Lab, tmp_path: Path) -> None:
    torch.value(NAME, run=str(tmp_path / "run"), last=1)
    again = torch.value(NAME, run=str(tmp_path / "run"))
    assert again["line"].endswith("): the loop was left in epoch 2 of 4, and trains on unless it is left again")
    assert again["seen"][-1].startswith("3 2 ")
