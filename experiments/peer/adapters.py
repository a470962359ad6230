"""The job that all systems save, and how each saves it and brings it back, as its own documentation says: PEERS.

The job is a network with dropout and batch statistics, AdamW, a schedule, shuffled batches. The random numbers are torch's own,
so a run is brought back exactly only with them and with the place in the data. A system is imported when it is used.
"""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import xxhash
from paired_timing import seconds
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

from tranlogs.catalog import Catalog
from tranlogs.catalog.rows import CheckpointRow, SegmentRow
from tranlogs_torch import LoggedOptimizer

KEEP = 2  # saves that stay where a system leaves that to its user
_DCP_COMPLETE = ".metadata"  # written last
_WAIT_SECONDS = 60

Batch = tuple[Tensor, Tensor]
Wrap = Callable[[Optimizer, nn.Module], Optimizer]
BATCH = 64  # samples


@cache
def digits() -> TensorDataset:
    """Return handwritten digits, 8 x 8; 22 whole batches of them."""
    from sklearn.datasets import load_digits

    found, count = load_digits(), 22 * BATCH
    return TensorDataset(torch.from_numpy(found.images[:count]).float() / 16, torch.from_numpy(found.target[:count]))


class Job:
    """Everything a script builds before its loop.

    Attributes:
        model: 64 numbers in, ten classes out.
        optimizer: AdamW, or what `wrap` makes of it.
        scheduler: stepped with each batch.
        loader: shuffled batches of one epoch, their order from torch's global random state.
    """

    def __init__(self, width: int, wrap: Wrap | None = None) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(width, 10),
        )
        self.inner = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.optimizer = wrap(self.inner, self.model) if wrap else self.inner
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 10_000)
        self.loader: DataLoader[Any] = DataLoader(digits(), BATCH, shuffle=True)

    def step(self, x: Tensor, y: Tensor) -> None:
        """Take a step on a batch."""
        nn.functional.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()

    def digest(self, batch: Batch) -> str:
        """Return a digest of all that the rest of the training depends on, with a batch in hand that is about to be trained."""
        found = xxhash.xxh3_64()
        state = [value for p in self.model.parameters() for value in self.inner.state[p].values()]
        for tensor in [*self.model.state_dict().values(), *state, torch.get_rng_state(), *batch]:
            found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        found.update(repr((self.scheduler.last_epoch, [group["lr"] for group in self.inner.param_groups])).encode())
        return found.hexdigest()


class Position:
    """Batches for ever, and the place among them as a careful script keeps it: what its epoch began with, and how many."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader, self._taken, self._begun_with = loader, 0, torch.get_rng_state()

    def state_dict(self) -> dict[str, Any]:
        """Return it, with torch's random state as it is now."""
        return {"taken": self._taken, "begun_with": self._begun_with, "random": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set it, and torch's random state."""
        self._taken, self._begun_with = state["taken"], state["begun_with"].clone()
        torch.set_rng_state(state["random"].clone())

    def batches(self) -> Iterator[Batch]:
        """Yield batches from this place on."""
        while True:
            now = torch.get_rng_state()
            if self._taken == 0:
                self._begun_with = now
            torch.set_rng_state(self._begun_with)
            batches = iter(self._loader)
            for _ in range(self._taken):
                next(batches)
            if self._taken:
                torch.set_rng_state(now)
            for batch in batches:
                self._taken += 1
                yield batch
            self._taken = 0


class Adapter:
    """Base of those that save a state when they are told to; this one saves nothing."""

    kinds: tuple[str, ...] = ("save",)  # of files that `newest` names

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

    def seconds_until_usable(self, step: int) -> float:
        """Return how long it takes from the beginning of a save until it is there."""

        def work() -> None:
            self.save(step)
            self.wait()

        return seconds(work)

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

    log: ClassVar[Literal["gradients", "inputs"]] = "gradients"
    durability = "machine"
    kinds = ("checkpoint", "log")
    _logged: LoggedOptimizer

    def wrap(self, optimizer: Optimizer, model: nn.Module) -> Optimizer:
        settings: dict[str, Any] = {"checkpoint_every": self.every, "durability": self.durability}
        self._logged = LoggedOptimizer(optimizer, self.folder / "run", model, log=self.log, **settings)
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


class TranLogsInputs(TranLogs):
    """Without tensors, as `log="auto"` goes on where gradients cost too much: the loop computes again from a checkpoint on."""

    log = "inputs"
    kinds = ("checkpoint",)

    def seconds_until_usable(self, step: int) -> float:
        schedule = self._logged.training_run.journal.checkpoints.schedule
        return schedule.stall_seconds + schedule.writing_seconds

    @staticmethod
    def newest(folder: Path) -> list[Path]:
        return TranLogs.newest(folder)[:1]


class TranLogsProcess(TranLogs):
    """What the kernel has survives the process, and not the machine."""

    durability = "process"


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

    _pending: Any = None

    def save(self, step: int) -> None:
        self.wait()
        self._pending = dcp.async_save({"app": _App(self, step)}, checkpoint_id=self.folder / f"step-{step}")

    def wait(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None
            keep_newest(self.folder, _DCP_COMPLETE)


def begin_group(folder: Path) -> None:
    """Begin a process group of one; a rendezvous file serves once."""
    place = folder / f"group-{len(list(folder.glob('group-*')))}"
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=0, world_size=1)


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
    "tranlogs": Peer('TranLogs, `log="gradients"`', TranLogs, logs_steps=True),
    "tranlogs-process": Peer('the same, `durability="process"`', TranLogsProcess, is_variant=True, logs_steps=True),
    "tranlogs-inputs": Peer('TranLogs, `log="inputs"`', TranLogsInputs),
    "torch-save": Peer("torch.save, rename", TorchSave),
    "torch-save-synced": Peer("torch.save, fsync, rename", TorchSaveSynced, is_variant=True),
    "dcp": Peer("DCP save", DcpSave),
    "dcp-thread": Peer("DCP async_save, thread", DcpThread),
    "flash-memory": Peer("Flash Checkpoint, memory (disk each tenth)", FlashMemory, _DLROVER),
    "flash-disk": Peer("Flash Checkpoint, disk", FlashDisk, _DLROVER),
}
