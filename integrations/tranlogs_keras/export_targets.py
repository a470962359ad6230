"""The files that a replayed Keras run can be written to; known without Keras."""

from __future__ import annotations

from pathlib import Path

from tranlogs.base.errors import UsageError


def check_target(path: Path, form: str | None = None) -> None:
    """Check that a file of this name can be written. The only format that `form` may name is "keras".

    Raises:
        UsageError: the file cannot be written.
    """
    if form not in (None, "keras"):
        raise UsageError(
            f"{path}: this is a Keras run, and the format {form!r} is for runs of PyTorch. Write `tranlogs replay RUN --out "
            "FILE.keras` (for keras.models.load_model) or FILE.weights.h5 (for model.load_weights)"
        )
    if not path.name.endswith((".weights.h5", ".keras")):
        raise UsageError(f"{path}: this is a Keras run: the name must end in .weights.h5 (for model.load_weights) or .keras")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder")
