"""TranLogs: each step in the log, and a checkpoint now and then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from peer.adapter import Adapter, largest
from peer.job import Batch
from tranlogs_torch import LoggedOptimizer


class TranLogs(Adapter):
    """By gradients; `every` is that of the checkpoints."""

    durability = "machine"
    kinds = ("checkpoint", "log")
    _logged: LoggedOptimizer

    def wrap(self, optimizer: Optimizer, model: nn.Module) -> Optimizer:
        self._logged = LoggedOptimizer(optimizer, self.folder / "run", model, checkpoint_every=self.every,
                                       durability=self.durability)  # fmt: skip
        return self._logged

    def open(self) -> int:
        return int(self._logged.track(scheduler=self.job.scheduler, loader=self.job.loader).recover().step)

    def batches(self, until: int) -> Iterator[Batch]:
        return self._logged.batches(self.job.loader, until=until)

    def wait(self) -> None:
        self._logged.session.journal.wait_synced()
        self._logged.session.journal.wait_checkpoint()

    def close(self) -> None:
        self._logged.close()

    @staticmethod
    def newest(folder: Path) -> list[Path]:
        """The newest checkpoint, and the log file that was written last: the one of the highest number that holds records."""
        run = folder / "run" / "rank0"
        checkpoints = sorted((run / "checkpoints").glob("step-*/state.safetensors"), key=lambda path: path.stat().st_mtime)
        return [*checkpoints[-1:], *largest(_written(run / "log"))]


class TranLogsProcess(TranLogs):
    """What the kernel has survives the process, and not the machine."""

    durability = "process"


def _written(log: Path) -> list[Path]:
    """The segment in use: the newest whose own second half of pages holds anything is not told from outside, so by time."""
    return sorted(log.glob("*.seg"), key=lambda path: path.stat().st_mtime)[-1:]
