"""`tranlogs rehearse`, called in a process of its own on a script of this folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.launcher import environment

SCRIPTS = Path(__file__).with_name("scripts")


@dataclass(frozen=True)
class Rehearsed:
    """What a rehearsal has said.

    Attributes:
        code: exit code.
        verdict: the verdict, as JSON has it.
        folder: the working folder of the script.
        left: processes that name a folder of the rehearsal and are alive.
    """

    code: int
    verdict: dict[str, Any]
    folder: Path
    left: list[int]

    @property
    def kinds(self) -> list[str]:
        """What differs."""
        return [difference["kind"] for difference in self.verdict["differences"]]

    @property
    def notes(self) -> str:
        return "\n".join(self.verdict["notes"])


Rehearse = Callable[..., Rehearsed]


@pytest.fixture
def rehearse(tmp_path: Path) -> Rehearse:
    """Rehearse a script; print the verdict, and demand that nothing is left of the rehearsal."""
    folder, scratch = tmp_path / "project", tmp_path / "scratch"

    def call(script: str, *options: str, start: tuple[str, ...] = ()) -> Rehearsed:
        folder.mkdir()
        scratch.mkdir()
        shutil.copy(SCRIPTS / script, folder)
        before = sorted(folder.iterdir())
        command = ["--seed", "3", "--json", *options, "--", sys.executable, *start, script]
        called = subprocess.run(
            [sys.executable, "-m", "tranlogs", "rehearse", *command],
            cwd=folder,
            env=environment() | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TMPDIR": str(scratch)},
            capture_output=True,
            text=True,
        )
        assert called.stdout, called.stderr
        print(called.stdout, called.stderr)
        assert sorted(folder.iterdir()) == before, "the rehearsal has written into the script's folder"
        assert not list(scratch.glob("tranlogs-*"))
        return Rehearsed(called.returncode, json.loads(called.stdout), folder, find_processes(scratch))

    return call


def find_processes(scratch: Path) -> list[int]:
    """Return the processes whose environment names a folder of a rehearsal."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            if str(scratch).encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found
