"""What docs/keras.md says of data of unknown length: only computed steps count."""

from __future__ import annotations

from pathlib import Path

from tests.keras.lab import Lab

SCRIPT = "tests.public.keras.iterations.counted"


def test_only_computed_steps_count(tensorflow: Lab, tmp_path: Path) -> None:
    """Keras alone counts the step that finds no data, too: a newer Keras that no longer does is welcome."""
    assert tensorflow.value(SCRIPT, run=str(tmp_path / "run")) == 4 * 40
    assert tensorflow.value(SCRIPT, run=None) in (4 * 40, 4 * 41)
