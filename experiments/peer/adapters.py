"""How each system saves the job and brings it back, as its own documentation says: PEERS, with a class for each of them.

A system is imported when it is used.
"""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import xxhash
from peer.job import Batch, Job, Position
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer

from tranlogs.catalog import Catalog
from tranlogs.catalog.rows import CheckpointRow, SegmentRow
from tranlogs_torch import LoggedOptimizer

KEEP = 2  # saves that stay where a system leaves that to its user
_DCP_COMPLETE = ".metadata"  # written last
_SNAPSHOT_COMPLETE = ".snapshot_metadata"
_WAIT_SECONDS = 60


class Adapter:
    """Base of those that save a state when they are told to; this one saves nothing."""

    kinds = ("save",)  # of files that `newest` names
    steps_ahead = 5  # trained before costs are measured

    def __init__(self, width: int, folder: Path, every: int) -> None:
        self.folder, self.every = folder, every
        self.job = Job(width, self.wrap)
        self.position = Position(self.job.loader)

    def wrap(self, optimizer: Optimizer, model: nn.Module) -> Optimizer:
        """Return the optimizer that the loop uses."""
        return optimizer

    def open(self) -> int:
        """Start whatever it needs, and bring back the newest save; return the step that is done then."""
        return 0

    def batches(self, until: int) -> Iterator[Batch]:
        """Return those that are to be trained, from there on."""
        return self.position.batches()

    def save(self, step: int) -> None:
        """Save the state after so many steps; it may still be being written."""

    def wait(self) -> None:
        """Wait until what was saved is there."""

    def close(self) -> None:
        """End the training."""

    @staticmethod
    def newest(folder: Path) -> list[Path]:
        """Return the file of each kind that holds the numbers saved last; empty if there is none on disk."""
        return []

    def state(self, step: int) -> dict[str, Any]:
        """Return what a careful user hands to a system that keeps dictionaries."""
        job = self.job
        return {
            "step": step,
            "model": job.model.state_dict(),
            "optimizer": job.optimizer.state_dict(),
            "scheduler": job.scheduler.state_dict(),
            "position": self.position.state_dict(),
        }

    def set_state(self, state: dict[str, Any]) -> int:
        """Set it; return the step that it is of."""
        job = self.job
        job.model.load_state_dict(state["model"])
        job.optimizer.load_state_dict(state["optimizer"])
        job.scheduler.load_state_dict(state["scheduler"])
        self.position.load_state_dict(state["position"])
        return int(state["step"])


def saves(folder: Path, complete: str = "") -> list[Path]:
    """Return what lies there by the name step-NUMBER, oldest first; only folders with the file `complete`, if one is named."""
    found = [path for path in folder.glob("step-*") if path.suffix != ".tmp" and (not complete or (path / complete).exists())]
    return sorted(found, key=lambda path: int(path.stem.removeprefix("step-")))


def keep_newest(folder: Path, complete: str = "") -> None:
    """Delete complete saves but the newest ones."""
    for path in saves(folder, complete)[:-KEEP]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def largest(files: list[Path]) -> list[Path]:
    """Return the largest of them, if there are any."""
    return sorted((path for path in files if path.is_file()), key=lambda path: path.stat().st_size)[-1:]


class TranLogs(Adapter):
    """By gradients; `every` is that of the checkpoints."""

    durability = "machine"
    kinds = ("checkpoint", "log")
    _logged: LoggedOptimizer

    def wrap(self, optimizer: Optimizer, model: nn.Module) -> Optimizer:
        settings: dict[str, Any] = {"checkpoint_every": self.every, "durability": self.durability}
        self._logged = LoggedOptimizer(optimizer, self.folder / "run", model, log="gradients", **settings)
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
        """Return the newest checkpoint, and the log file that is being written."""
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


class TorchSave(Adapter):
    """As one writes it oneself."""

    fsync = False

    def open(self) -> int:
        found = saves(self.folder)
        return self.set_state(torch.load(found[-1], weights_only=True)) if found else 0

    def save(self, step: int) -> None:
        target = self.folder / f"step-{step}.pt"
        temporary = target.with_suffix(".tmp")
        with open(temporary, "wb") as file:
            torch.save(self.state(step), file)
            if self.fsync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, target)
        keep_newest(self.folder)

    @staticmethod
    def newest(folder: Path) -> list[Path]:
        return saves(folder)[-1:]


class TorchSaveSynced(TorchSave):
    """It survives power loss, too."""

    fsync = True


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
        found = saves(self.folder, _DCP_COMPLETE)
        if not found:
            return 0
        app = _App(self, 0)
        dcp.load({"app": app}, checkpoint_id=found[-1])
        return app.step

    def save(self, step: int) -> None:
        dcp.save({"app": _App(self, step)}, checkpoint_id=self.folder / f"step-{step}")
        keep_newest(self.folder, _DCP_COMPLETE)

    @staticmethod
    def newest(folder: Path) -> list[Path]:
        found = saves(folder, _DCP_COMPLETE)
        return largest(list(found[-1].glob("*.distcp"))) if found else []


class DcpThread(DcpSave):
    """Asynchronous: one save at a time, the one before is waited for."""

    way = AsyncCheckpointerType.THREAD
    _pending: Any = None

    def save(self, step: int) -> None:
        self.wait()
        self._pending = dcp.async_save(
            {"app": _App(self, step)}, checkpoint_id=self.folder / f"step-{step}", async_checkpointer_type=self.way
        )

    def wait(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None
            keep_newest(self.folder, _DCP_COMPLETE)


class DcpProcess(DcpThread):
    """The same by another process."""

    way = AsyncCheckpointerType.PROCESS


def begin_group(folder: Path) -> None:
    """Begin a process group of one; a rendezvous file serves once."""
    place = folder / f"group-{len(list(folder.glob('group-*')))}"
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=0, world_size=1)


class SnapshotAsync(Adapter):
    """One at a time; its RNGState holds the random numbers. It needs a process group on machines with IPv4 only."""

    _pending: Any = None

    def open(self) -> int:
        warnings.filterwarnings("ignore", module="torchsnapshot|torch")
        begin_group(self.folder)
        from torchsnapshot import Snapshot, StateDict

        found = saves(self.folder, _SNAPSHOT_COMPLETE)
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
            keep_newest(self.folder, _SNAPSHOT_COMPLETE)

    def _app(self, progress: Any) -> dict[str, Any]:
        from torchsnapshot import RNGState

        job = self.job
        kept = {"model": job.model, "optimizer": job.optimizer, "scheduler": job.scheduler}
        return {**kept, "progress": progress, "random": RNGState()}

    @staticmethod
    def newest(folder: Path) -> list[Path]:
        found = saves(folder, _SNAPSHOT_COMPLETE)
        return largest([path for path in found[-1].rglob("*") if not path.name.startswith(".")]) if found else []


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
    """Name the sockets and the shared memory of a run, which outlive it: no other run is ever to have the same."""
    return f"{folder.name}-{xxhash.xxh3_64_hexdigest(str(folder).encode())[:8]}"


def clear_flash(folder: Path) -> None:
    """Delete them."""
    name = run_id(folder)
    shutil.rmtree(Path("/tmp/ckpt_sock") / name, ignore_errors=True)
    for path in Path("/dev/shm").glob(f"{name}_*"):
        path.unlink(missing_ok=True)


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


@dataclass(frozen=True, slots=True)
class Peer:
    """A system that saves the job."""

    title: str  # in tables
    adapter: type[Adapter]
    package: tuple[str, ...] = ()  # distributions that must be there, beside torch
    is_variant: bool = False  # it only costs otherwise than the one above; no faults are tried on it
    logs_steps: bool = False  # it saves each step whatever the interval, which is that of its checkpoints

    @property
    def is_here(self) -> bool:
        """True if all that it needs is installed."""
        try:
            return all(metadata.version(package) for package in self.package)
        except metadata.PackageNotFoundError:
            return False


_DLROVER = ("dlrover", "grpcio", "kubernetes", "tornado")  # and what it forgets to ask for

PEERS: dict[str, Peer] = {
    "tranlogs": Peer("TranLogs", TranLogs, logs_steps=True),
    "tranlogs-process": Peer('TranLogs, `durability="process"`', TranLogsProcess, is_variant=True, logs_steps=True),
    "tranlogs-later": Peer("TranLogs, its log files used again", TranLogsLater, is_variant=True, logs_steps=True),
    "torch-save": Peer("torch.save, rename", TorchSave),
    "torch-save-synced": Peer("torch.save, fsync, rename", TorchSaveSynced, is_variant=True),
    "dcp": Peer("DCP save", DcpSave),
    "dcp-thread": Peer("DCP async_save, thread", DcpThread),
    "torchsnapshot": Peer("torchsnapshot async_take", SnapshotAsync, ("torchsnapshot-nightly",)),
    "flash-memory": Peer("Flash Checkpoint, memory (disk each tenth)", FlashMemory, _DLROVER),
    "flash-disk": Peer("Flash Checkpoint, disk", FlashDisk, _DLROVER),
    "gradient-desc": Peer("gradient-desc", GradientDesc, ("gradient-desc",)),
    "dcp-process": Peer("DCP async_save, process", DcpProcess),
}
