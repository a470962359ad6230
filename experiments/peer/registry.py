"""All peers that save this job: what they are called, what they need, and which class does it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata

import tranlogs
from peer import adapters


@dataclass(frozen=True, slots=True)
class Peer:
    """One of them.

    Attributes:
        title: in tables.
        adapter: the class that saves.
        package: distribution that must be there, and others that it forgets to ask for; empty: none but torch.
        is_variant: it only costs otherwise than the one above; no faults are tried on it.
        is_slow: it starts other processes, which import everything anew.
        logs_steps: it saves each step whatever the interval, which is that of its checkpoints.
    """

    title: str
    adapter: type[adapters.Adapter]
    package: tuple[str, ...] = ()
    is_variant: bool = False
    logs_steps: bool = False
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


_DLROVER = ("dlrover", "grpcio", "kubernetes", "tornado")

PEERS: dict[str, Peer] = {
    "none": Peer("no saving", adapters.Adapter),
    "tranlogs": Peer("TranLogs", adapters.TranLogs, ("lmdb",), logs_steps=True),
    "tranlogs-process": Peer('TranLogs, `durability="process"`', adapters.TranLogsProcess, ("lmdb",), True, True),
    "tranlogs-later": Peer("TranLogs, its log files used again", adapters.TranLogsLater, ("lmdb",), True, True),
    "torch-save": Peer("torch.save, rename", adapters.TorchSave),
    "torch-save-synced": Peer("torch.save, fsync, rename", adapters.TorchSaveSynced, is_variant=True),
    "dcp": Peer("DCP save", adapters.DcpSave),
    "dcp-thread": Peer("DCP async_save, thread", adapters.DcpThread),
    "torchsnapshot": Peer("torchsnapshot async_take", adapters.SnapshotAsync, ("torchsnapshot-nightly",)),
    "flash-memory": Peer("Flash Checkpoint, memory (disk each tenth)", adapters.FlashMemory, _DLROVER),
    "flash-disk": Peer("Flash Checkpoint, disk", adapters.FlashDisk, _DLROVER),
    "gradient-desc": Peer("gradient-desc", adapters.GradientDesc, ("gradient-desc",)),
    "dcp-process": Peer("DCP async_save, process", adapters.DcpProcess, is_slow=True),
}
