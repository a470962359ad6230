"""Which event files of TensorBoard a resume cuts: those of former processes of the run, and no others."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace

from tests.keras.lab import Lab


def event_file(folder: Path, seconds: float, process: str) -> Path:
    path = folder / "train" / f"events.out.tfevents.{int(seconds)}.{process}.0.v2"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(90))
    return path


def cut(folder: str) -> dict[str, int | None]:
    """Restore files of several processes, of which the boundary holds 40 bytes each; return the sizes after that."""
    from tranlogs_keras.state.written_files import restore_file

    now, host, pid, logs = time.time(), socket.gethostname(), os.getpid(), Path(folder)
    files = {
        "former": event_file(logs, now - 500, f"{host}.7"),
        "former, in the second in which this process began": event_file(logs, now, f"{host}.{pid + 1}"),
        "former, with the number of this process": event_file(logs, now - 10**6, f"{host}.{pid}"),
        "former, made after the boundary": event_file(logs, now - 499, f"{host}.7"),
        "this process": event_file(logs, now, f"{host}.{pid}"),
        "another training": event_file(logs, now - 9, "other.host.12"),
    }
    known = [path for name, path in files.items() if name.startswith("former") and "boundary" not in name]
    recorded = {
        "sizes": {f"train/{path.name}": 40 for path in known},
        "processes": [f"{host}.7", f"{host}.{pid + 1}", f"{host}.{pid}"],
    }
    restore_file(SimpleNamespace(log_dir=folder), recorded, is_complete=False)
    return {name: path.stat().st_size if path.exists() else None for name, path in files.items()}


def test_files_of_former_processes_are_cut_to_what_the_boundary_holds(torch: Lab, tmp_path: Path) -> None:
    assert torch.value("tests.keras.test_event_files.cut", folder=str(tmp_path)) == {
        "former": 40,
        "former, in the second in which this process began": 40,
        "former, with the number of this process": 40,
        "former, made after the boundary": None,
        "this process": 90,
        "another training": 90,
    }
