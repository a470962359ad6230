"""A process that derives one checkpoint.

    python -m tranlogs_monitor.compaction.compaction_process PARENT FOLDER CHECKPOINT [CLASS ...]

The process replays the sealed log onto a checkpoint with the run's framework, and writes the result to the folder of
checkpoints under a temporary name; the monitor publishes it. The process has the lowest priority. It needs memory for a second
copy of the state: if memory runs out, the kernel kills this process first. The process ends when the monitor ends.

It prints one line of JSON: `derived_checkpoint` (the checkpoint that was written), `refused` (why no checkpoint can be derived)
or `nothing` (there is no sealed log to redo).
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
    """Run the process. Modules are imported after the priority is set, so that their threads have the same priority."""
    parent, folder, checkpoint, *optimizers = sys.argv[1:]
    _end_with(int(parent))
    _yield_to_training()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # frameworks print to stdout
    from tranlogs.base.errors import TranLogsError

    try:
        answer = compact(Path(folder), checkpoint, optimizers)
    except TranLogsError as error:
        answer = {"refused": str(error)}
    out.write(json.dumps(answer) + "\n")
    out.flush()


def compact(folder: Path, checkpoint: str, optimizers: list[str]) -> dict[str, Any]:
    """Derive a checkpoint of a journal from an earlier checkpoint; return the answer to print.

    Raises:
        TranLogsError: the result is not known to equal a checkpoint that the trainer would write.
        OSError: the disk is full or fails.
    """
    from dataclasses import asdict

    from tranlogs.base.clock import SystemClock
    from tranlogs.frameworks import open_offline_run
    from tranlogs.journal import JournalPaths
    from tranlogs.recovery.derived_checkpoint import plan_derived_checkpoint, write_derived_checkpoint

    target = plan_derived_checkpoint(folder, checkpoint)
    if target is None:
        return {"nothing": True}
    devices = [device for device in target.about["environment"].get("devices", ()) if device.lower() != "cpu"]
    if devices:
        return {"refused": f"the state is on {', '.join(devices)}, and steps can be redone on that device only"}
    offline = open_offline_run(JournalPaths(folder), optimizers)
    report = offline.replay(sequence=target.position.sequence, checkpoint=checkpoint)
    if report.exact is not True:
        return {"refused": "; ".join(report.notes) or "the redone steps could not be compared with the run's fingerprints"}
    return {
        "derived_checkpoint": asdict(write_derived_checkpoint(folder, target, offline.snapshot(target.position), SystemClock()))
    }


def _end_with(parent: int) -> None:
    """Let the kernel kill this process when the monitor dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the monitor has died already
        os._exit(1)


def _yield_to_training() -> None:
    """Set the lowest priority for processor and disk, and let the kernel kill this process first if memory runs out."""
    os.nice(19)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:  # On other machines, the priority for the disk follows that for the processor.
        ctypes.CDLL(None, use_errno=True).syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE)
    with suppress(OSError):  # no /proc
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    main()
