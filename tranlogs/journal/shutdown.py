"""The end of the process that writes a journal: the log is sealed, synced, and shipped as far as the time allows.

The process ends by a signal (SIGTERM, SIGUSR1), or with the torchrun process that started it. Each journal of the process has a
`ShutdownHandler`; they are called participants here.

A thread watches, because Python runs its signal handlers in the main thread only, which may wait in a collective forever. The
interpreter's handler in C writes the number of each signal into the pipe of `signal.set_wakeup_fd` at once.

* If no other handler is installed, all participants shut down. Then the process dies by the same signal, as it would without
  TranLogs, so the exit status names the signal. It dies after the longest grace period, even if a participant hangs.
* If the program has a handler of its own (installed before or after TranLogs), that handler is called and decides. The
  participants only seal their logs.
* An ignored signal stays ignored, and a signal with a handler in C is left to that handler. If a journal is opened in another
  thread than the main one, signals are left alone.
* A forked child gets the handlers that were installed before, and nothing of this module.

Under torchrun (TORCHELASTIC_RUN_ID), the parent is torchrun's agent, or the process that it forks from. Workers of an agent
that was killed would continue to train as orphans, so they shut down, too.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Literal, NoReturn

from ..base.errors import LogUnavailable, TranLogsError, UsageError, error_text
from ..base.threads import start_thread
from .journal import Journal

_log = logging.getLogger("tranlogs")

OnSignal = Literal["seal"]
Ship = Callable[[int, float], None]  # waits until a step is in the store, for a number of seconds at most

GRACE_SECONDS = 20.0  # Kubernetes, Slurm and torchrun all wait for 30 s by default before they kill
GRACE_SECONDS_MAX = 86400.0
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_MARK = 128  # added to a signal's number by the handler in Python: such a byte is not forwarded
_STOP = 0
_PARENT_POLL_MS = 1000  # if the kernel cannot report the end of a process


class ShutdownHandler:
    """Saves one journal when its process ends. Make it when the journal is opened, and close it after the journal.

    Args:
        ship: waits until a step is in the store, for a number of seconds at most.
        on_signal: "seal", or None to leave signals alone.
        grace_seconds: the time from the signal to the end of the process.

    Raises:
        UsageError: a setting is wrong.
    """

    def __init__(self, journal: Journal, ship: Ship, on_signal: OnSignal | None, grace_seconds: float) -> None:
        self.grace_seconds = check_shutdown_settings(on_signal, grace_seconds)
        self.handles_signals = on_signal is not None
        self._journal, self._ship = journal, ship
        watch(self)
        atexit.register(self._at_exit)

    def close(self) -> None:
        """Stop watching, because the journal is closed and nothing is left to save."""
        atexit.unregister(self._at_exit)
        forget(self)

    def _at_exit(self) -> None:
        """Close and ship the journal of a script that an exception ended."""
        self._journal.close()
        self._ship(self._journal.committed, self.grace_seconds)
        self.close()

    def seal(self) -> None:
        """Seal and sync the journal. Another handler decides what the signal means, and training may continue."""
        self._journal.seal(self.grace_seconds)

    def shut_down(self, reason: str, end: float) -> None:
        """Seal, sync and ship the journal, because the process ends at `end` (monotonic seconds) at the latest."""
        journal = self._journal
        try:
            is_sealed = journal.shut_down(end - time.monotonic())
        except (TranLogsError, OSError) as error:
            _log.warning(
                "%s: %s: the log could not be synced (%s); steps up to %d survive the process",
                journal.paths.folder,
                reason,
                error_text(error),
                journal.committed,
            )
            return
        if (suspension := journal.log.suspension) is not None:
            _log.warning(
                "%s: %s: the process ends while logging is suspended (%s): what was trained since it was is lost",
                journal.paths.folder,
                reason,
                suspension.why,
            )
        else:
            _log.warning(
                "%s: %s: steps up to %d are safe (the log is %s), and the process ends",
                journal.paths.folder,
                reason,
                journal.committed,
                "sealed and synced" if is_sealed else "synced, but not sealed",
            )
        self._ship(journal.committed, end - time.monotonic())


def check_shutdown_settings(on_signal: object, grace_seconds: float) -> float:
    """Return `grace_seconds` as a float.

    Raises:
        UsageError: one of the two settings is wrong.
    """
    if on_signal not in ("seal", None):
        raise UsageError(f'on_signal must be "seal" (seal and sync the log, then end) or None, got {on_signal!r}')
    is_number = isinstance(grace_seconds, (int, float)) and not isinstance(grace_seconds, bool)
    if not is_number or not 0 < grace_seconds <= GRACE_SECONDS_MAX:
        raise UsageError(
            "grace_seconds must be the number of seconds from the signal to the end of the process, such as 20, and at most "
            f"{GRACE_SECONDS_MAX:g}; got {grace_seconds!r}"
        )
    return float(grace_seconds)


def watch(participant: ShutdownHandler) -> None:
    """Call `participant` from now on when a signal asks the process to end."""
    global _watch
    with _lock:
        if _watch is None:
            try:
                _watch = _Watch()
            except (LogUnavailable, OSError) as error:
                _log.warning("signals are not watched (%s): a pre-empted process loses what is not synced yet", error)
                return
        _watch.add(participant)


def forget(participant: ShutdownHandler) -> None:
    """Undo `watch`."""
    global _watch
    with _lock:
        if _watch is not None and _watch.remove(participant):
            _watch = None


class _Watch:
    """The signal handlers, the pipe and the thread that watches. An instance exists while there are participants."""

    def __init__(self) -> None:
        self._participants: list[ShutdownHandler] = []
        self._before: dict[int, Any] = {}  # the handlers that were replaced, by signal
        self._wakeup_before = -1
        self._source, self._target = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._parent = _Parent() if os.environ.get("TORCHELASTIC_RUN_ID") else None
        self._thread = start_thread("tranlogs-signals", self._run)

    def add(self, participant: ShutdownHandler) -> None:
        """Add a participant; install the handlers if it is the first one that handles signals."""
        self._participants = [*self._participants, participant]
        if participant.handles_signals and not self._before:
            if threading.current_thread() is threading.main_thread():
                self._install()
            else:
                _log.info("signals are left alone, because the run was opened in another thread than the main one")

    def remove(self, participant: ShutdownHandler) -> bool:
        """Remove a participant. If it was the last one, remove the handlers, end the thread and return True."""
        self._participants = [one for one in self._participants if one is not participant]
        if self._participants or (self._before and threading.current_thread() is not threading.main_thread()):
            return False
        self.restore()
        self._write(_STOP)
        self._thread.join()
        return True

    # Handlers.

    def _install(self) -> None:
        for number in SIGNALS:
            before = signal.getsignal(number)
            if before not in (None, signal.SIG_IGN) and not _is_handled_in_c(number, before):
                self._before[number] = before
                signal.signal(number, self._handle)
        if self._before:
            self._wakeup_before = signal.set_wakeup_fd(self._target, warn_on_full_buffer=False)

    def restore(self) -> None:
        """Install the handlers that were there before, unless the program has installed others since."""
        if not self._before:
            return
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, before)
        now = signal.set_wakeup_fd(-1)
        with suppress(ValueError, OSError):  # the descriptor was closed meanwhile
            signal.set_wakeup_fd(now if now != self._target else self._wakeup_before)
        self._before = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal in the main thread, which may be blocked and not call this."""
        self._write(_MARK + number)  # The program may have replaced the wake-up pipe.
        before = self._before.get(number)
        if callable(before):
            before(number, frame)

    def _write(self, byte: int) -> None:
        with suppress(OSError):  # The pipe is full, so the thread wakes up anyway.
            os.write(self._target, bytes([byte]))

    def abandon(self) -> None:
        """Restore the handlers in a forked child, which has none of the threads."""
        self.restore()
        self._close()

    def _close(self) -> None:
        os.close(self._source)
        os.close(self._target)
        if self._parent is not None:
            self._parent.close()

    # The thread.

    def _run(self) -> None:
        events = select.poll()
        events.register(self._source, select.POLLIN)
        if self._parent is not None and self._parent.fd >= 0:
            events.register(self._parent.fd, select.POLLIN)
        while True:
            events.poll(None if self._parent is None or self._parent.fd >= 0 else _PARENT_POLL_MS)
            if self._parent is not None and self._parent.is_gone():
                self._end(signal.SIGTERM, f"torchrun's process {self._parent.pid}, which started this one, is gone")
            for byte in self._read():
                if byte == _STOP:
                    self._close()  # In this thread, because an interrupted `join` does not return whether it has ended.
                    return
                self._handle_byte(byte)

    def _read(self) -> bytes:
        try:
            return os.read(self._source, 4096)
        except BlockingIOError:
            return b""

    def _handle_byte(self, byte: int) -> None:
        if byte < _MARK and self._wakeup_before >= 0:
            with suppress(OSError):
                os.write(self._wakeup_before, bytes([byte]))
        number = byte % _MARK
        if number not in self._before:
            return
        if signal.getsignal(number) == self._handle and self._before[number] == signal.SIG_DFL:
            self._end(number, signal.Signals(number).name)
        for participant in self._participants:
            _start(f"tranlogs-{signal.Signals(number).name}", participant.seal)

    def _end(self, number: int, reason: str) -> NoReturn:
        end = time.monotonic() + max((one.grace_seconds for one in self._participants), default=0.0)
        threads = [_start("tranlogs-shutdown", one.shut_down, reason, end) for one in self._participants]
        for thread in threads:
            if thread is not None:
                thread.join(max(0.0, end - time.monotonic()))
        _die_by(number)


class _Parent:
    """The process that started this one."""

    def __init__(self) -> None:
        self.pid, self.fd = os.getppid(), -1
        with suppress(OSError):  # an old kernel, or a sandbox
            self.fd = os.pidfd_open(self.pid)

    def is_gone(self) -> bool:
        """Return True if the process has ended."""
        return os.getppid() != self.pid

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def _start(name: str, work: Any, *args: Any) -> threading.Thread | None:
    """Run `work` in a new thread, or in this one if no thread can be started."""
    try:
        return start_thread(name, work, *args)
    except LogUnavailable:
        work(*args)
        return None


def _is_handled_in_c(number: int, known: Any) -> bool:
    """Return True if a handler in C is set, which Python cannot call (`faulthandler.register`)."""
    get_handler = ctypes.pythonapi.PyOS_getsig
    get_handler.argtypes, get_handler.restype = (ctypes.c_int,), ctypes.c_void_p
    return known == signal.SIG_DFL and get_handler(number) is not None


def _die_by(number: int) -> NoReturn:
    """End the process by the default action of a signal. `signal.signal` works in the main thread only and is not used."""
    set_handler = ctypes.pythonapi.PyOS_setsig
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    set_handler(number, None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    time.sleep(1.0)  # Signals do not kill the first process of a container.
    os._exit(128 + number)


# Signals are blocked during a fork: until the child has restored its handlers, a signal to it would go into the parent's pipe.

_lock = threading.Lock()
_watch: _Watch | None = None
_masks = threading.local()


def _before_fork() -> None:
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS) if _watch is not None else None


def _after_fork() -> None:
    before: Sequence[int] | None = getattr(_masks, "before", None)
    if before is not None:
        _masks.before = None
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _after_fork_in_child() -> None:
    global _watch, _lock
    _lock = threading.Lock()
    abandoned, _watch = _watch, None
    if abandoned is not None:
        abandoned.abandon()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
