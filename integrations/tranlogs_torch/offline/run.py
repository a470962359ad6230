"""A run without the script that trained it: replayed, described, exported.

Parameters are made as the checkpoint describes them, optimizers from torch's own classes; what follows is the recovery
of a live run, so the bits are the same. Only what code alone can make is missing: the model itself, and what was
tracked; their states are here as plain values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tranlogs.base.notes import Note
from tranlogs.ranks import SingleReader, is_of_group, is_sharded, read_environment
from tranlogs.records import Checkpoint
from tranlogs.training import LoopRecord, OfflineReplay, Progress, Recovered, Target, recover

from ..data.loader_iteration import find_place
from ..state.caveats import lost_attributes, verdict
from . import export
from .merged_ranks import recover_joined
from .recorded_state import OptimizerClasses, RecordedState


class OfflineRun(OfflineReplay[RecordedState]):
    """One journal of a PyTorch run; the `torch` of the entry points `tranlogs.frameworks`.

    Args:
        folder: the journal's (`run/rank0`).
        optimizers: classes that torch.optim does not have, as "module:Class" or "NAME=module:Class".
    """

    check_target = staticmethod(export.check_target)

    def __init__(self, folder: Path, *, optimizers: Sequence[str] = ()) -> None:
        self._classes = OptimizerClasses(optimizers)
        super().__init__(folder, RecordedState(self._classes))

    def _recover(self, step: int | None, checkpoint: str | None, progress: Progress | None) -> Recovered | None:
        found = self._recover_state(step, checkpoint, progress)
        for parameter in self.state.parameters.values():
            parameter.grad = None
        return found

    def _recover_state(self, step: int | None, checkpoint: str | None, progress: Progress | None) -> Recovered | None:
        environment = read_environment(self.folder)
        is_alone = not is_of_group(environment) and not is_sharded(environment)
        if is_alone or (is_sharded(environment) and checkpoint is not None):
            return recover(self.folder, self.state, Target(step, checkpoint=checkpoint), progress=progress)
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
            found = recover(self.folder, self.state, Target(newest, checkpoint=checkpoint), progress=progress)
            if found is not None:
                found.notes += self.state.shards.notes
            return found

    def _judge(self, found: Recovered, differences: list[Note]) -> tuple[bool | None, list[Note]]:
        exact, reasons = verdict(self.state, found)
        lost = lost_attributes(self.state)
        return None if lost and exact else exact, [*reasons, *lost]

    def _find_place(self) -> tuple[int, int, int]:
        body = self.state.body
        return find_place(LoopRecord.read(body.get("loop")), body["data"], body["count"])

    def _write(self, path: Path, form: str | None, progress: Progress | None) -> list[str]:
        assert self.report is not None
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
