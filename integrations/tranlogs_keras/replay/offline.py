"""A Keras run's state, rebuilt from its checkpoint and log alone, without the script that trained it.

Variables are made as the checkpoint lists them, the optimizer from its recorded configuration: Keras's own classes only,
others where the user names them. Steps are redone by the function that a live run uses. Keras is imported here once the run
has named the backend on which it was trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tranlogs.base.errors import DataError, UsageError
from tranlogs.base.notes import Note
from tranlogs.records import Checkpoint
from tranlogs.training import OfflineReplay, Progress, Recovered, Target, judge_exactness, read_facts, recover

from ..backends import choose_backend

if TYPE_CHECKING:
    from .recorded_state import RecordedState


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


class OfflineRun(OfflineReplay[Any]):
    """One journal of a Keras run; the `keras` of the entry points `tranlogs.frameworks`.

    Args:
        folder: the journal's (`run/rank0`).
        optimizers: classes that keras.optimizers does not have, as "module:Class".

    Raises:
        UsageError: the run holds nothing yet, or was trained on another backend than the one that Keras runs on here.
    """

    check_target = staticmethod(check_target)
    state: RecordedState

    def __init__(self, folder: Path, *, optimizers: Sequence[str] = ()) -> None:
        choose_backend(_backend_of(folder))
        from .recorded_state import RecordedState

        super().__init__(folder, RecordedState(optimizers))

    def _recover(self, step: int | None, checkpoint: str | None, progress: Progress | None) -> Recovered | None:
        return recover(self.folder, self.state, Target(step, checkpoint=checkpoint), progress=progress)

    def _judge(self, found: Recovered, differences: list[Note]) -> tuple[bool | None, list[Note]]:
        return judge_exactness(found, self.state.fingerprint_kinds, compared="variables")

    def _find_place(self) -> tuple[int, int, int]:
        from ..state.state import find_place

        return find_place(self.state.body)

    def _write(self, path: Path, form: str | None, progress: Progress | None) -> list[str]:
        from .recorded_state import write

        check_target(path, form)
        notes = write(path, self.state)
        if progress is not None:
            progress("written", 1, 1)
        return notes


def _backend_of(folder: Path) -> str:
    for row in sorted(read_facts(folder).checkpoints, key=lambda row: row.sequence, reverse=True):
        try:
            with Checkpoint(folder / "checkpoints" / row.name) as checkpoint:
                return str(checkpoint.manifest["environment"]["backend"])
        except (DataError, KeyError):
            continue
    raise UsageError(f"{folder}: the run holds no checkpoint that can be read")
