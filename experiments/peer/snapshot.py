"""torchsnapshot: Snapshot.async_take of Statefuls."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch.distributed as dist

from peer.adapter import Adapter, keep_newest, largest, saves
from peer.dcp import begin_group

_COMPLETE = ".snapshot_metadata"


class SnapshotAsync(Adapter):
    """One at a time; its RNGState holds the random numbers. It needs a process group on machines with IPv4 only."""

    _pending: Any = None

    def open(self) -> int:
        warnings.filterwarnings("ignore", module="torchsnapshot|torch")
        begin_group(self.folder)
        from torchsnapshot import Snapshot, StateDict

        found = saves(self.folder, _COMPLETE)
        if not found:
            return 0
        progress = StateDict(step=0, position=self.position.state_dict())
        Snapshot(str(found[-1])).restore(self._app(progress))
        self.position.load_state_dict(progress["position"])
        return int(progress["step"])

    def save(self, step: int) -> None:
        from torchsnapshot import Snapshot, StateDict

        self.wait()
        app = self._app(StateDict(step=step, position=self.position.state_dict()))
        self._pending = Snapshot.async_take(str(self.folder / f"step-{step}"), app)

    def wait(self) -> None:
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
            keep_newest(self.folder, _COMPLETE)

    def close(self) -> None:
        self.wait()
        dist.destroy_process_group()

    def _app(self, progress: Any) -> dict[str, Any]:
        from torchsnapshot import RNGState

        job = self.job
        return {
            "model": job.model,
            "optimizer": job.optimizer,
            "scheduler": job.scheduler,
            "progress": progress,
            "random": RNGState(),
        }

    @staticmethod
    def newest(folder: Path) -> list[Path]:
        found = saves(folder, _COMPLETE)
        return largest([path for path in found[-1].rglob("*") if not path.name.startswith(".")]) if found else []
