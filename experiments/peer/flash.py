"""DLRover Flash Checkpoint: into shared memory, from there to disk by a saver beside the trainer, or by the agent above it."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import xxhash

from peer.adapter import Adapter, largest

_WAIT_SECONDS = 60


class FlashMemory(Adapter):
    """Into shared memory; the first save and each tenth go on to disk, as in its examples."""

    disk_every = 10
    _checkpointer: Any
    _saves = 0

    def open(self) -> int:
        os.environ.setdefault("TORCHELASTIC_RUN_ID", run_id(self.folder))
        from dlrover.python.common.storage import KeepLatestStepStrategy
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

        place = str(self.folder / "flash")
        self._checkpointer = DdpCheckpointer(place, deletion_strategy=KeepLatestStepStrategy(2, place))
        state = self._checkpointer.load_checkpoint()
        return self.set_state(state) if state else 0

    def save(self, step: int) -> None:
        from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType

        to_disk = self._saves % self.disk_every == 0
        self._saves += 1
        storage = StorageType.DISK if to_disk else StorageType.MEMORY
        self._checkpointer.save_checkpoint(step, self.state(step), storage_type=storage)

    def wait(self) -> None:
        """Its own wait looks once in three seconds, and raises before its file is there: this one reads that file."""
        wanted = self._checkpointer._engine.latest_step  # the last that was to go to disk, and was taken
        told, end = self.folder / "flash" / "dlrover_latest.txt", time.monotonic() + _WAIT_SECONDS
        while wanted and not (told.exists() and told.read_text().strip() == str(wanted)):
            if time.monotonic() > end:
                raise TimeoutError(f"step {wanted} is not on disk after {_WAIT_SECONDS} s")
            time.sleep(0.001)

    @staticmethod
    def newest(folder: Path) -> list[Path]:
        found = sorted((folder / "flash").glob("[0-9]*"), key=lambda path: int(path.name))
        return largest(list(found[-1].glob("*.pt"))) if found else []


class FlashDisk(FlashMemory):
    """Each save to disk; one that comes while the last is being written is left out, as it is made."""

    disk_every = 1


def run_id(folder: Path) -> str:
    """Names sockets and shared memory of a run, which outlive it: no other run is ever to have the same."""
    return f"{folder.name}-{xxhash.xxh3_64_hexdigest(str(folder).encode())[:8]}"


def clear(folder: Path) -> None:
    """Delete them."""
    name = run_id(folder)
    shutil.rmtree(Path("/tmp/ckpt_sock") / name, ignore_errors=True)
    for path in Path("/dev/shm").glob(f"{name}_*"):
        path.unlink(missing_ok=True)
