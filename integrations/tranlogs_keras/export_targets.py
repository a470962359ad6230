"""The files that a replayed Keras run can be written to; known without Keras."""

from __future__ import annotations

from pathlib import Path

from tranlogs.base.errors import UsageError


def check_target(path: Path, form: str | None = None) -> None:
    """Whether a file can be written there, in a format that its name says; one that is named (`form`) is PyTorch's.

    Raises:
        UsageError: it cannot.
    """
    if form is not None:
        raise UsageError(
            f"{path}: this is a Keras run, and `tranlogs export` writes those of PyTorch. This one is written by `tranlogs "
            "replay RUN --out FILE.keras` (for keras.models.load_model) or FILE.weights.h5 (for model.load_weights)"
        )
    if not path.name.endswith((".weights.h5", ".keras")):
        raise UsageError(f"{path}: this is a Keras run: the name must end in .weights.h5 (for model.load_weights) or .keras")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder")
