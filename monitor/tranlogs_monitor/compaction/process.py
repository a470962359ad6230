"""A process that makes one derived checkpoint.

    python -m tranlogs_monitor.compaction.process PARENT FOLDER CHECKPOINT [CLASS ...]

It replays the sealed log onto a checkpoint with the run's framework and writes what comes of it beside the published
ones; the monitor publishes it. It yields to training in everything but memory, which it needs for a second state: if that runs
out, the kernel is told to take this process first. It ends when the monitor does.

Prints a line of JSON: `shadow` (what it made), `refused` (why none can be made) or `nothing` (no sealed log is left to redo).
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_PROCESS, _IOPRIO_IDLE = 1, 3 << 13


def main() -> None:
    """See the module. Imports come after the priority is set: the threads that they start have it, too."""
    parent, folder, checkpoint, *optimizers = sys.argv[1:]
    _end_with(int(parent))
    _yield_to_training()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # frameworks print
    from tranlogs.base.errors import TranLogsError

    try:
        told = compact(Path(folder), checkpoint, optimizers)
    except TranLogsError as error:
        told = {"refused": str(error)}
    out.write(json.dumps(told) + "\n")
    out.flush()


def compact(folder: Path, checkpoint: str, optimizers: list[str]) -> dict[str, Any]:
    """Make a shadow checkpoint of a journal from the one named; gives what is printed.

    Raises:
        TranLogsError: none can be made that is known to be the same as the trainer's own.
        OSError: the disk is full or fails.
    """
    from dataclasses import asdict

    from tranlogs.base.clock import SystemClock
    from tranlogs.cli.frameworks import offline_of
    from tranlogs.journal import JournalPaths
    from tranlogs.recovery.derived_checkpoint import plan_derived_checkpoint, write_derived_checkpoint

    target = plan_derived_checkpoint(folder, checkpoint)
    if target is None:
        return {"nothing": True}
    elsewhere = [device for device in target.about["environment"].get("devices", ()) if device.lower() != "cpu"]
    if elsewhere:
        return {"refused": f"its state lies on {', '.join(elsewhere)}: steps can be redone on the trainer's own device only"}
    offline = offline_of(JournalPaths(folder), optimizers)
    report = offline.replay(sequence=target.position.sequence, checkpoint=checkpoint)
    if report.exact is not True:
        return {"refused": "; ".join(report.notes) or "the redone steps could not be compared with the run"}
    return {"shadow": asdict(write_derived_checkpoint(folder, target, offline.snapshot(target.position), SystemClock()))}


def _end_with(parent: int) -> None:
    """Die when the monitor does, however that comes about."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was faster
        os._exit(1)


def _yield_to_training() -> None:
    """The lowest priority for processor and disk, and the first to go if memory runs out."""
    os.nice(19)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:  # elsewhere the disk's priority follows the processor's
        ctypes.CDLL(None, use_errno=True).syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE)
    with suppress(OSError):  # no /proc
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    main()
