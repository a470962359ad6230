"""Take over a run: end the process that writes it (an orphan, or a job that hangs), so that this process can continue it.

Only the process that holds the lock is ended. The kernel names this process; then a handle on it is opened, and the
kernel is asked again. If the answer is the same, the handle is on the holder, or on a process that has ended since, and never
on another process that was given the same number.
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
_KILL_SECONDS = 30.0  # the time that the kernel may need to end a process with much memory
_ATTEMPTS = 3  # Another process may take the lock first.


def is_takeover_wanted(take_over: bool | None) -> bool:
    """Return the setting, or the environment variable if the setting is None.

    The variable serves jobs whose script cannot be edited. A worker that torchrun restarts never takes over: a process that
    holds the lock by then took it over from this job.

    Raises:
        UsageError: the variable is neither 0 nor 1.
    """
    if take_over is None:
        value = os.environ.get(VARIABLE, "").strip().lower()
        if value not in ("", "0", "1", "no", "yes", "false", "true"):
            raise UsageError(f"{VARIABLE} must be 1 or 0, got {value!r}")
        take_over = value in ("1", "yes", "true")
    return take_over and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") in ("", "0")


def take_lock(folder: Path, grace_seconds: float | None) -> OwnerLock:
    """Take a journal's lock.

    Args:
        folder: the journal's folder.
        grace_seconds: the time between SIGTERM and SIGKILL for a process that holds the lock; None leaves that process alone.

    Raises:
        RunInUse: another process holds the lock.
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
    """End the processes that write journals of ranks beyond `world`, the number of processes that train the run now.

    Raises:
        UsageError: a process cannot be ended from here.
    """
    for folder in sorted(run.glob("rank*")):
        number = folder.name.removeprefix("rank")
        if number.isdigit() and int(number) >= world:
            end_lock_holder(folder, grace_seconds)


def end_lock_holder(folder: Path, grace_seconds: float) -> None:
    """End the process that holds a journal's lock, if there is one, and wait for its end.

    Raises:
        UsageError: the process cannot be ended from here.
    """
    pid = lock_holder(folder)
    if pid is None:
        return
    if pid == 0:
        raise UsageError(
            f"{folder}: a process in another container writes this run and cannot be ended from here: stop it there"
        )
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError as error:
        raise UsageError(f"{folder}: process {pid} writes this run and cannot be ended from here ({error}): stop it") from None
    try:
        if lock_holder(folder) != pid:
            return
        _log.warning(
            "%s: ending process %d, which writes this run (take_over): it has %g s to seal its log", folder, pid, grace_seconds
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
            raise UsageError(
                f"{folder}: process {pid} writes this run and belongs to another user: ask that user to stop it"
            ) from None
        if select.select([handle], [], [], seconds)[0]:
            return
        _log.warning("%s: process %d did not end by %s within %g s", folder, pid, number.name, seconds)
    raise UsageError(f"{folder}: process {pid} writes this run and did not end by SIGKILL: check the disk")
