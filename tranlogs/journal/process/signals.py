"""The end of this process is announced: by a signal (SIGTERM, SIGUSR1), or by the end of the torchrun that started it.

A thread sees it, since Python runs its signal handlers in the main thread only, which may sit in a collective for ever. The
interpreter's own handler, in C, writes the number of each signal into the pipe of `signal.set_wakeup_fd` at once.

* Where nobody else handles the signal, all parties part and then the process dies by that very signal, as it would have
  without us: the exit status says so. It dies when the longest grace is over, whatever hangs.
* Where somebody does (before us, or after us), that handler decides, and is called; the parties only secure what there is.
* What is ignored stays ignored, and what a handler in C handles is left to it. Where a journal is opened in another thread than
  the main one, signals are left alone.
* A forked child has the handlers that were there before us, and nothing of this.

Under torchrun (TORCHELASTIC_RUN_ID) the parent is torchrun's agent, or the process that it forks from. Workers of an agent that
was killed would train on, as orphans: they part, too.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn, Protocol

from ...base.errors import LogUnavailable
from ...base.threads import start_thread

_log = logging.getLogger("tranlogs")

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_MARK = 128  # added to a signal's number by the handler in Python: not to be forwarded
_STOP = 0
_PARENT_POLL_MS = 1000  # where the kernel cannot tell of a process's end


class Party(Protocol):
    """What is to be saved."""

    grace_seconds: float
    heeds_signals: bool

    def secure(self) -> None:
        """Make safe what there is; the process goes on. In a thread of its own."""

    def part(self, why: str, end: float) -> None:
        """Save what there is; the process ends at `end` (monotonic seconds) at the latest. In a thread of its own."""


def watch(party: Party) -> None:
    """Tell `party` of the process's end, from now on."""
    global _watch
    with _lock:
        if _watch is None:
            try:
                _watch = _Watch()
            except (LogUnavailable, OSError) as error:
                _log.warning("signals are not watched (%s): a pre-empted process loses what is not synced yet", error)
                return
        _watch.add(party)


def forget(party: Party) -> None:
    """The inverse of `watch`."""
    global _watch
    with _lock:
        if _watch is not None and _watch.remove(party):
            _watch = None


class _Watch:
    """Handlers, pipe and thread; there as long as there are parties."""

    def __init__(self) -> None:
        self._parties: list[Party] = []
        self._before: dict[int, Any] = {}  # handlers that ours stand in for
        self._wakeup_before = -1
        self._source, self._target = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._parent = _Parent() if os.environ.get("TORCHELASTIC_RUN_ID") else None
        self._thread = start_thread("tranlogs-signals", self._run)

    def add(self, party: Party) -> None:
        self._parties = [*self._parties, party]
        if party.heeds_signals and not self._before:
            if threading.current_thread() is threading.main_thread():
                self._install()
            else:
                _log.info("signals are left alone: the run is opened in another thread than the main one")

    def remove(self, party: Party) -> bool:
        """Whether that was the last one, and nothing of this is left."""
        self._parties = [one for one in self._parties if one is not party]
        if self._parties or (self._before and threading.current_thread() is not threading.main_thread()):
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
        """Handlers as they were, unless somebody has put others there since."""
        if not self._before:
            return
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, before)
        now = signal.set_wakeup_fd(-1)
        with suppress(ValueError, OSError):  # closed meanwhile
            signal.set_wakeup_fd(now if now != self._target else self._wakeup_before)
        self._before = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """In the main thread, if and when it comes to that."""
        self._write(_MARK + number)  # somebody may have put another pipe in place of ours
        before = self._before.get(number)
        if callable(before):
            before(number, frame)

    def _write(self, byte: int) -> None:
        with suppress(OSError):  # full, so that the thread is going to wake up
            os.write(self._target, bytes([byte]))

    def abandon(self) -> None:
        """In a forked child, which has none of the threads: handlers as they were."""
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
                    self._close()  # here: after an interrupted `join` the other thread cannot know that this one has ended
                    return
                self._saw(byte)

    def _read(self) -> bytes:
        try:
            return os.read(self._source, 4096)
        except BlockingIOError:
            return b""

    def _saw(self, byte: int) -> None:
        if byte < _MARK and self._wakeup_before >= 0:
            with suppress(OSError):
                os.write(self._wakeup_before, bytes([byte]))
        number = byte % _MARK
        if number not in self._before:
            return
        if signal.getsignal(number) == self._handle and self._before[number] == signal.SIG_DFL:
            self._end(number, signal.Signals(number).name)
        for party in self._parties:
            _start(f"tranlogs-{signal.Signals(number).name}", party.secure)

    def _end(self, number: int, why: str) -> NoReturn:
        end = time.monotonic() + max((party.grace_seconds for party in self._parties), default=0.0)
        threads = [_start("tranlogs-part", party.part, why, end) for party in self._parties]
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
        return os.getppid() != self.pid

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def _start(name: str, work: Any, *args: Any) -> threading.Thread | None:
    """A thread; where there is none to be had, the work is done here."""
    try:
        return start_thread(name, work, *args)
    except LogUnavailable:
        work(*args)
        return None


def _is_handled_in_c(number: int, known: Any) -> bool:
    """Whether a handler is set that Python does not know of (`faulthandler.register`): it cannot be called from here."""
    get_handler = ctypes.pythonapi.PyOS_getsig
    get_handler.argtypes, get_handler.restype = (ctypes.c_int,), ctypes.c_void_p
    return known == signal.SIG_DFL and get_handler(number) is not None


def _die_by(number: int) -> NoReturn:
    """By the signal's own action; `signal.signal` would be for the main thread only."""
    set_handler = ctypes.pythonapi.PyOS_setsig
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    set_handler(number, None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    time.sleep(1.0)  # the first process of a container is not killed by signals
    os._exit(128 + number)


# Forks: between `fork` and the child's first line a signal to it would go into the parent's pipe.

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
