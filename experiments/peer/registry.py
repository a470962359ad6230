"""All peers that save this job: what they are called, what they need, and which class does it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import tranlogs
from peer.adapter import Adapter
from peer.job import BATCH


@dataclass(frozen=True, slots=True)
class Peer:
    """One of them.

    Attributes:
        title: in tables.
        module, adapter: where the adapter is.
        package: distribution that must be there, and others that it forgets to ask for; empty: none but torch.
        is_variant: it only costs otherwise than the one above; no faults are tried on it.
        is_slow: it starts other processes, which import everything anew.
        has_agent: a process above the trainer starts it, and starts it again.
        logs_steps: it saves each step whatever the interval, which is that of its checkpoints.
    """

    title: str
    module: str
    adapter: str
    package: tuple[str, ...] = ()
    is_variant: bool = False
    logs_steps: bool = False
    has_agent: bool = False
    is_slow: bool = False

    @property
    def missing(self) -> str:
        """Why it cannot run here; empty if it can."""
        for package in self.package:
            try:
                metadata.version(package)
            except metadata.PackageNotFoundError:
                return f"`{package}` is not installed"
        return ""

    @property
    def version(self) -> str:
        """Of what it is in."""
        return tranlogs.__version__ if self.logs_steps else metadata.version(self.package[0] if self.package else "torch")

    def adapter_class(self) -> type[Adapter]:
        """Imported."""
        found: type[Adapter] = getattr(importlib.import_module(f"peer.{self.module}"), self.adapter)
        return found

    def make(self, width: int, folder: Path, every: int, batch: int = BATCH) -> Adapter:
        """An adapter for a folder."""
        return self.adapter_class()(width, folder, every, batch)


_DLROVER = ("dlrover", "grpcio", "kubernetes", "tornado")

PEERS: dict[str, Peer] = {
    "none": Peer("no saving", "adapter", "Adapter"),
    "tranlogs": Peer("TranLogs", "tranlogs_log", "TranLogs", ("lmdb",), logs_steps=True),
    "tranlogs-process": Peer('TranLogs, `durability="process"`', "tranlogs_log", "TranLogsProcess", ("lmdb",), True, True),
    "tranlogs-later": Peer("TranLogs, its log files used again", "tranlogs_log", "TranLogsLater", ("lmdb",), True, True),
    "torch-save": Peer("torch.save, rename", "torch_save", "TorchSave"),
    "torch-save-synced": Peer("torch.save, fsync, rename", "torch_save", "TorchSaveSynced", is_variant=True),
    "dcp": Peer("DCP save", "dcp", "DcpSave"),
    "dcp-thread": Peer("DCP async_save, thread", "dcp", "DcpThread"),
    "torchsnapshot": Peer("torchsnapshot async_take", "snapshot", "SnapshotAsync", ("torchsnapshot-nightly",)),
    "flash-memory": Peer("Flash Checkpoint, memory (disk each tenth)", "flash", "FlashMemory", _DLROVER),
    "flash-disk": Peer("Flash Checkpoint, disk", "flash", "FlashDisk", _DLROVER),
    "gradient-desc": Peer("gradient-desc", "gradient_desc", "GradientDesc", ("gradient-desc",)),
    "dcp-process": Peer("DCP async_save, process", "dcp", "DcpProcess", is_slow=True),
    "flash-agent": Peer(
        "Flash Checkpoint, memory, under its agent", "flash", "FlashMemory", _DLROVER, has_agent=True, is_slow=True
    ),
}
