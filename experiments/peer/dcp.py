"""torch.distributed.checkpoint: save, async_save by a thread, async_save by a process; as its own tutorials write it."""

from __future__ import annotations

import warnings
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.checkpoint.stateful import Stateful

from peer.adapter import Adapter, keep_newest, largest, saves

_COMPLETE = ".metadata"  # written last


class _App(Stateful):
    """Weights and optimizer by the functions made for that, the rest as it is."""

    def __init__(self, adapter: Adapter, step: int) -> None:
        self._adapter, self.step = adapter, step

    def state_dict(self) -> dict[str, Any]:
        job = self._adapter.job
        model, optimizer = get_state_dict(job.model, job.optimizer)
        rest = {"scheduler": job.scheduler.state_dict(), "position": self._adapter.position.state_dict(), "step": self.step}
        return {"model": model, "optimizer": optimizer, **rest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        job = self._adapter.job
        set_state_dict(job.model, job.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        job.scheduler.load_state_dict(state["scheduler"])
        self._adapter.position.load_state_dict(state["position"])
        self.step = state["step"]


class DcpSave(Adapter):
    """Synchronous."""

    def open(self) -> int:
        warnings.filterwarnings("ignore", module="torch.distributed")
        begin_group(self.folder)
        found = saves(self.folder, _COMPLETE)
        if not found:
            return 0
        app = _App(self, 0)
        dcp.load({"app": app}, checkpoint_id=found[-1])
        return app.step

    def save(self, step: int) -> None:
        dcp.save({"app": _App(self, step)}, checkpoint_id=self.folder / f"step-{step}")
        keep_newest(self.folder, _COMPLETE)

    def close(self) -> None:
        self.wait()
        dist.destroy_process_group()

    @staticmethod
    def newest(folder: Path) -> list[Path]:
        found = saves(folder, _COMPLETE)
        return largest(list(found[-1].glob("*.distcp"))) if found else []


class DcpThread(DcpSave):
    """Asynchronous: one save at a time, the one before is waited for."""

    way = AsyncCheckpointerType.THREAD
    _pending: Future[Any] | None = None

    def save(self, step: int) -> None:
        self.wait()
        self._pending = dcp.async_save(
            {"app": _App(self, step)}, checkpoint_id=self.folder / f"step-{step}", async_checkpointer_type=self.way
        )  # type: ignore[assignment]

    def wait(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None
            keep_newest(self.folder, _COMPLETE)


class DcpProcess(DcpThread):
    """The same by another process."""

    way = AsyncCheckpointerType.PROCESS


def begin_group(folder: Path) -> None:
    """A process group of one; a rendezvous file serves once."""
    place = folder / f"group-{len(list(folder.glob('group-*')))}"
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=0, world_size=1)
