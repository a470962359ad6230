"""Ends the process that writes a run, so that this one can go on with it: an orphan, or a job that hangs.

Only the process that holds the lock is ended. The kernel says which one it is; then a handle on it is opened, and the kernel
is asked again. If the answer is the same, the handle is on the holder, or on one that has ended since: never on another
process that was given its number.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
from contextlib import suppress
from pathlib import Path

from ...base.errors import RunInUse, UsageError
from .writer_lock import OwnerLock, lock_holder

_log = logging.getLogger("tranlogs")

VARIABLE = "TRANLOGS_TAKE_OVER"
_KILL_SECONDS = 30.0  # for the kernel to take down a process with much memory
_ATTEMPTS = 3  # whoever else wants the run may be faster


def is_takeover_wanted(take_over: bool | None) -> bool:
    """What the setting says, or else the environment: for the job that is started anew by a script that nobody edits.

    A worker that torchrun starts again never takes over: whoever has the run by then, took it from this very job.

    Raises:
        UsageError: the variable is something else than 0 or 1.
    """
    if take_over is None:
        value = os.environ.get(VARIABLE, "").strip().lower()
        if value not in ("", "0", "1", "no", "yes", "false", "true"):
            raise UsageError(f"{VARIABLE}={value}: use 1 or 0")
        take_over = value in ("1", "yes", "true")
    return take_over and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") in ("", "0")


def take_lock(folder: Path, grace_seconds: float | None) -> OwnerLock:
    """The journal's lock.

    Args:
        folder: of the journal.
        grace_seconds: seconds that a process which holds it is given to end by SIGTERM, before SIGKILL; None leaves it alone.

    Raises:
        RunInUse: another process holds it, and goes on to.
    """
    for _ in range(_ATTEMPTS if grace_seconds is not None else 0):
        try:
            return OwnerLock(folder)
        except RunInUse as error:
            if error.pid == os.getpid() and error.host == socket.gethostname():
                raise
            assert grace_seconds is not None
            end_lock_holder(folder, grace_seconds)
    return OwnerLock(folder)


def end_former_ranks(run: Path, world: int, grace_seconds: float) -> None:
    """End the processes that hold journals of ranks which the run has no more, now that `world` processes train it.

    Raises:
        UsageError: one of them cannot be ended from here.
    """
    for folder in sorted(run.glob("rank*")):
        number = folder.name.removeprefix("rank")
        if number.isdigit() and int(number) >= world:
            end_lock_holder(folder, grace_seconds)


def end_lock_holder(folder: Path, grace_seconds: float) -> None:
    """End the process that holds a journal's lock, and wait for its end. Nothing is done if nobody does.

    Raises:
        UsageError: it cannot be ended from here.
    """
    pid = lock_holder(folder)
    if pid is None:
        return
    if pid == 0:
        raise UsageError(
            f"{folder}: the process that writes it cannot be seen from here (it runs in another container): stop it there"
        )
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError as error:
        raise UsageError(f"{folder}: process {pid} writes it, and cannot be ended from here ({error}): stop it") from None
    try:
        if lock_holder(folder) != pid:
            return
        _log.warning(
            "%s: process %d writes it, and is ended (take_over): it has %g s to seal its log", folder, pid, grace_seconds
        )
        _end(handle, pid, folder, grace_seconds)
    finally:
        os.close(handle)


def _end(handle: int, pid: int, folder: Path, grace_seconds: float) -> None:
    for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, _KILL_SECONDS)):
        try:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
        except PermissionError:
            raise UsageError(f"{folder}: process {pid} writes it and belongs to another user: let that one stop it") from None
        if select.select([handle], [], [], seconds)[0]:
            return
        _log.warning("%s: process %d did not end by %s within %g s", folder, pid, number.name, seconds)
    raise UsageError(f"{folder}: process {pid} writes it, and does not even end by SIGKILL: look after the disk")
