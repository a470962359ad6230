"""TranLogs: each step in the log, and a checkpoint now and then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from peer.adapter import Adapter
from peer.job import Batch
from tranlogs.catalog import Catalog
from tranlogs.catalog.rows import CheckpointRow, SegmentRow
from tranlogs_torch import LoggedOptimizer


class TranLogs(Adapter):
    """By gradients; `every` is that of the checkpoints."""

    durability = "machine"
    kinds = ("checkpoint", "log")
    _logged: LoggedOptimizer

    def wrap(self, optimizer: Optimizer, model: nn.Module) -> Optimizer:
        self._logged = LoggedOptimizer(
            optimizer, self.folder / "run", model, checkpoint_every=self.every, durability=self.durability
        )
        return self._logged

    def open(self) -> int:
        return int(self._logged.track(scheduler=self.job.scheduler, loader=self.job.loader).recover().step)

    def batches(self, until: int) -> Iterator[Batch]:
        return self._logged.batches(self.job.loader, until=until)

    def wait(self) -> None:
        self._logged.training_run.journal.wait_synced()
        self._logged.training_run.journal.wait_checkpoint()

    def close(self) -> None:
        self._logged.close()

    @staticmethod
    def newest(folder: Path) -> list[Path]:
        """The newest checkpoint, and the log file that is being written."""
        run = folder / "run" / "rank0"
        catalog = Catalog.open(run)
        checkpoints, segments = catalog.read(
            lambda tables: (tables.rows("checkpoint/", CheckpointRow), tables.rows("segment/", SegmentRow))
        )
        catalog.close()
        newest = max((row for row in checkpoints if row.state == "published"), key=lambda row: row.sequence)
        written = max((row for row in segments if row.state in ("open", "sealed")), key=lambda row: row.ordinal)
        return [run / "checkpoints" / newest.name / "state.safetensors", run / "log" / written.file]


class TranLogsProcess(TranLogs):
    """What the kernel has survives the process, and not the machine."""

    durability = "process"


class TranLogsLater(TranLogs):
    """Behind its first checkpoints: their log files are pruned, and written anew."""

    steps_ahead = 505
