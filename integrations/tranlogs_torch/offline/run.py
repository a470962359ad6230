"""A run without the script that trained it: replayed, described, put into a checkpoint, exported.

Parameters are made as the checkpoint describes them, optimizers from torch's own classes; what follows is the recovery
of a live run, so the bits are the same. Only what code alone can make is missing: the model itself, and what was
tracked; their states are here as plain values.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tranlogs.base.errors import UsageError
from tranlogs.ranks import SingleReader, get_world, is_of_group, is_sharded, read_environment
from tranlogs.records import Checkpoint, Position, Snapshot
from tranlogs.training import Progress, Recovered, RecoveryReport, make_report, recover

from ..interop.imported import import_source
from ..state import environment
from ..state.caveats import lost_attributes, verdict
from . import derived_checkpoint, export
from .joined_ranks import recover_joined
from .optimizer_classes import OptimizerClasses
from .recorded_state import RecordedState


class OfflineRun:
    """One journal of a PyTorch run; the `torch` of the entry points `tranlogs.frameworks`.

    Args:
        folder: the journal's (`run/rank0`).
        optimizers: classes that torch.optim does not have, as "module:Class" or "NAME=module:Class".
    """

    check_target = staticmethod(export.check_target)
    import_source = staticmethod(import_source)

    def __init__(self, folder: Path, *, optimizers: Sequence[str] = ()) -> None:
        self.folder = folder
        self._classes = OptimizerClasses(optimizers)
        self.state = RecordedState(self._classes)
        self.report: RecoveryReport | None = None
        self._found: Recovered | None = None

    def replay(
        self,
        *,
        step: int | None = None,
        sequence: int | None = None,
        checkpoint: str | None = None,
        progress: Progress | None = None,
    ) -> RecoveryReport:
        """Bring the state to a step (default: the newest). Threads and flags of this process become the run's.

        Args:
            step: where to land.
            sequence: number of the last entry to be redone.
            checkpoint: name of the checkpoint to start from.
            progress: told what is done.

        Raises:
            RecoveryError: no sound checkpoint is left, or `step` is not covered.
            UsageError: the run holds nothing yet, or an optimizer's class is not known.
        """
        start = time.monotonic()
        found = self._recover(step, sequence, checkpoint, progress)
        if found is None:
            raise UsageError(f"{self.folder}: the run holds nothing yet")
        for parameter in self.state.parameters.values():
            parameter.grad = None
        self._found, self.report = found, self._told(found, time.monotonic() - start)
        return self.report

    def snapshot(self, position: Position) -> Snapshot:
        """The replayed state as the run itself would put it into a checkpoint at `position`: the same bytes.

        Raises:
            UsageError: that cannot be known, and why.
        """
        if self._found is None:
            raise UsageError("replay() comes before snapshot()")
        self._found.require_position(position)
        return derived_checkpoint.snapshot(self.state, self._found)

    def _recover(
        self, step: int | None, sequence: int | None, checkpoint: str | None, progress: Progress | None
    ) -> Recovered | None:
        environment = read_environment(self.folder)
        is_alone = not is_of_group(environment) and not is_sharded(environment)
        is_one_part = is_sharded(environment) and (sequence is not None or checkpoint is not None)
        if is_alone or is_one_part or (sequence is not None and get_world(environment) == 1):
            return recover(self.folder, self.state, step=step, sequence=sequence, checkpoint=checkpoint, progress=progress)
        if sequence is not None:
            raise UsageError(
                f"{self.folder}: several processes train this run, and a checkpoint holds what is the next one's "
                "own: only they can make it"
            )
        reader = SingleReader(self.folder, step=step, checkpoint=checkpoint)  # each rank's journal has its share of the records
        if reader.generation.is_sharded and checkpoint is None:
            joined = recover_joined(reader, partial(RecordedState, self._classes), step, progress)
            if joined is not None:
                self.state = joined[0]
            return None if joined is None else joined[1]
        if checkpoint is None:
            landing = reader.make_recovery(self.state).recover(step, progress)
            if landing is None or landing.recovered is None:
                return None
            landing.recovered.notes += landing.notes
            return landing.recovered
        with reader.open_shards() as self.state.shards:
            newest = reader.find_newest_step_from(_step_of(self.folder, checkpoint)) if step is None else step
            return recover(self.folder, self.state, step=newest, checkpoint=checkpoint, progress=progress)

    def _told(self, found: Recovered, seconds: float) -> RecoveryReport:
        state = self.state
        exact, told = verdict(state, found)
        compared = environment.compare(state.recorded_environment, environment.describe(state.optimizers))
        lost = lost_attributes(state)
        if lost and exact:
            exact = None
        loaders = list(state.body["data"].values())
        return make_report(
            found,
            exact=exact,
            notes=[*found.notes, *state.notes, *compared, *told, *lost],
            batch=loaders[0]["taken"] if loaders else state.body["count"],
            epoch=loaders[0]["epoch"] if loaders else 0,
            seconds=seconds,
        )

    def export(self, path: Path, form: str | None = None, progress: Progress | None = None) -> list[str]:
        """Write the replayed state to a file or folder (see `export`); returns what it does not hold, one sentence each.

        Args:
            path: what to write.
            form: "pt", "safetensors" or "dcp"; None for what the file's name says.
            progress: told what is done.

        Raises:
            UsageError: the name or folder, or the state, does not allow it.
            DataError: what was written does not read back as it was.
        """
        if self.report is None:
            raise UsageError("replay() comes before export()")
        state = self.state
        tensors = {f"param/{name}": p.detach() for name, p in state.parameters.items()}
        tensors |= {f"buffer/{name}": b for name, b in state.body["buffers"].items()}
        models = {
            prefix: {k: tensors[name] for k, name in keys.items() if name in tensors} for prefix, keys in state.keys.items()
        }
        held = {name for keys in state.keys.values() for name in keys.values()}
        rest = {name: p.detach() for name, p in state.parameters.items() if f"param/{name}" not in held}
        tracked = state.body["tracked"]
        exported = export.Exported(self.report.step, models, rest, state.optimizers, state.name_of, tracked)
        return export.write(path, exported, form, progress)


def _step_of(folder: Path, checkpoint: str) -> int:
    with Checkpoint(folder / "checkpoints" / checkpoint) as found:
        return found.step
