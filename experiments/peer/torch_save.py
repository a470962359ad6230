"""torch.save of everything to a temporary name, then a rename; with or without fsync before it."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from peer.adapter import Adapter, keep_newest, saves


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
