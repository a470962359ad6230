"""gradient-desc: an anchor, and differences to it; it keeps random numbers and schedule by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peer.adapter import Adapter


class GradientDesc(Adapter):
    """Its own `commit`, with the settings that it has; the place in the data is registered with it."""

    _engine: Any

    def open(self) -> int:
        from gradient import GradientEngine

        job = self.job
        place = str(self.folder / "work")
        self._engine = GradientEngine.attach(job.model, job.optimizer, job.scheduler, workspace=place, repo="job")
        self._engine.register_state("position", getter=self.position.state_dict, setter=self.position.load_state_dict)
        self._engine.autocommit(every=self.every)
        return int(self._engine.resume_latest()) if self.newest(self.folder) else 0

    def save(self, step: int) -> None:
        self._engine.commit(step)

    @staticmethod
    def newest(folder: Path) -> list[Path]:
        found = folder.glob("work/job/ckpt_*.pt")
        return sorted(found, key=lambda path: int(path.stem.rpartition("_s")[2]))[-1:]
