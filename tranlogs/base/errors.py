"""All errors of TranLogs, grouped by their cause.

    TranLogsError
    ├── UsageError                 the call or a setting is wrong; nothing was changed
    │   ├── RunInUse               another live process writes this run
    │   ├── StateMismatch          the model or the optimizer does not fit the run
    │   ├── UnencodableState       a tracked object holds a value that cannot be stored safely
    │   ├── NotRecovered           the run holds steps, and training began without `recover()`
    │   ├── NotARun                the folder is not a run of TranLogs
    │   ├── StoreRefused           the store's address or its settings are wrong; a retry would not help
    │   └── CannotRead             this process lacks file handles, memory or permissions; the file may be intact
    ├── DataError                  bytes on disk differ from those that were written
    │   ├── CorruptRecord          a record in the middle of the log is damaged
    │   │   └── MissingShard       another rank's gradient shard of a record is missing or damaged
    │   ├── CorruptCheckpoint      a file of a checkpoint is missing or differs from the manifest
    │   ├── CorruptCatalog         the catalog is missing or damaged
    │   ├── CorruptObject          an object in a store is missing or differs from what was sent
    │   └── UnknownFormat          the file has a format version that this TranLogs does not read
    ├── RecoveryError              there is no intact checkpoint, or the requested step is not covered
    ├── LogUnavailable             the log cannot be written now (disk full, I/O error)
    │   ├── RunLost                another process writes the run, or its folder was moved or deleted
    │   └── CatalogUnavailable     the catalog cannot be used now; it is not damaged
    └── StoreUnavailable           a store does not answer correctly now; a retry may help

A message names the place (file, step, tensor, setting) and the next action.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

__all__ = [
    "SUSPENDING_ERRORS",
    "CannotRead",
    "CatalogUnavailable",
    "CorruptCatalog",
    "CorruptCheckpoint",
    "CorruptObject",
    "CorruptRecord",
    "DataError",
    "LogUnavailable",
    "MissingShard",
    "NotARun",
    "NotRecovered",
    "RecoveryError",
    "RunInUse",
    "RunLost",
    "StateMismatch",
    "StoreRefused",
    "StoreUnavailable",
    "TranLogsError",
    "UnencodableState",
    "UnknownFormat",
    "UsageError",
]


_OF_LMDB = (errno.EIO, errno.EFBIG)  # LMDB's errors for a file that is too large: the former if a part of a write was done
_LIMIT = "the limit on the size of a file (ulimit -f)"


class TranLogsError(Exception):
    """Base class of all errors of TranLogs."""


def error_text(error: BaseException | None) -> str:
    """Return the message of an error, or the name of its class if it has no message."""
    if isinstance(error, MemoryError) and not str(error):
        return "memory is used up"
    text = str(error) or type(error).__name__
    limit = file_size_limit(error)
    if limit is None or _LIMIT in text:
        return text
    for number in _OF_LMDB:
        text = text.replace(f": {os.strerror(number)}", "")
    return f"{text}: {_LIMIT} for this process is {limit:,} bytes"


def file_size_limit(error: BaseException | None) -> int | None:
    """Return the limit on the size of a file, if an error or one of its causes comes from it; else None.

    LMDB does not always tell a file that is too large from a failing disk.
    """
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    while error is not None and limit != resource.RLIM_INFINITY:
        is_of_lmdb = type(error).__module__ == "lmdb" and any(os.strerror(number) in str(error) for number in _OF_LMDB)
        if is_of_lmdb or (isinstance(error, OSError) and error.errno == errno.EFBIG):
            return limit
        error = error.__cause__
    return None


class UsageError(TranLogsError):
    """The call or a setting is wrong. Nothing was changed."""


class RunInUse(UsageError):
    """Another live process writes this run."""

    def __init__(self, run: Path, host: str, pid: int, since: float | None = None, *, is_this_process: bool = False) -> None:
        self.run, self.host, self.pid, self.since = run, host, pid, since
        if is_this_process:
            super().__init__(
                f"{run}: this process writes this run already. Call close() on the object that opened the run first (in a "
                "notebook: before the cell runs again)"
            )
            return
        who = f"process {pid} on host {host}" if pid else "a process that is not known (its owner.json is missing)"
        if pid == os.getpid() and host == os.uname().nodename:
            who += " (in another container)"
        when = "" if since is None else f", since {datetime.fromtimestamp(since):%Y-%m-%d %H:%M:%S}"
        super().__init__(f"{run}: {who} writes this run{when}. Stop that process, or use another run folder")


class StateMismatch(UsageError):
    """The model or the optimizer does not fit the run. `differences` holds one sentence for each difference."""

    def __init__(self, run: object, differences: Sequence[str], *, is_untouched: bool = True) -> None:
        self.differences = tuple(differences)
        shown = "\n  - ".join(self.differences[:20])
        more = f"\n  ... and {len(self.differences) - 20} more" if len(self.differences) > 20 else ""
        super().__init__(
            f"{run}: what was built now does not fit what the run recorded "
            f"({'nothing was changed' if is_untouched else 'model and optimizer were being restored: build them anew'}):"
            f"\n  - {shown}{more}\nBuild the same model and optimizer as before, or start a new run folder"
        )


class UnencodableState(UsageError):
    """A tracked object holds a value that cannot be stored without running code at load time."""

    def __init__(self, path: str, value: object, reason: str | None = None) -> None:
        self.path = path
        kind = type(value)
        super().__init__(
            f"{path} {reason}"
            if reason is not None
            else f"{path} is a {kind.__module__}.{kind.__qualname__}, which cannot be stored safely. "
            "Give the object a state_dict() of plain values, arrays and tensors"
        )


class NotRecovered(UsageError):
    """The run holds steps, and training began without a call of `recover()`."""

    def __init__(self, run: Path, step: int) -> None:
        super().__init__(
            f"{run} already holds a run (step {step} or later). Call recover() before the first step to go on from there, "
            "or choose a new run folder to start from nothing"
        )


class NotARun(UsageError):
    """The folder is not a run of TranLogs."""

    def __init__(
        self, path: Path, why: str = "no run is there", remedy: str = "Give the folder that was passed as run=..."
    ) -> None:
        super().__init__(f"{path}: {why}. {remedy}".rstrip())


class StoreRefused(UsageError):
    """A store's address or its settings are wrong, or this process may not use the store. A retry would not help."""

    def __init__(self, url: str, why: str) -> None:
        self.url = url
        super().__init__(f"store {url}: {why}")


class CannotRead(UsageError):
    """A file or folder cannot be read because the process lacks file handles, memory or permissions. It may be intact."""

    _REMEDY = {
        errno.EMFILE: "raise `ulimit -n`",
        errno.ENFILE: "close files of other programs on this machine",
        errno.ENOMEM: "free memory, or raise `ulimit -v`",
        errno.EAGAIN: "wait a moment",
        errno.EACCES: "give this process permission to read it",
        errno.EPERM: "give this process permission to read it",
    }

    def __init__(self, path: object, error: OSError) -> None:
        self.path = path
        remedy = self._REMEDY.get(error.errno or 0, "check the disk")
        super().__init__(
            f"{path}: it cannot be read ({error.strerror}), and may be intact. Nothing was changed: {remedy}, and try again"
        )

    @classmethod
    def raise_for(cls, path: object, error: OSError) -> None:
        """Raise CannotRead if the process lacks a resource. Return for an error of the disk, which counts as damage."""
        if error.errno in cls._REMEDY:
            raise cls(path, error) from error


class DataError(TranLogsError):
    """Bytes on disk differ from those that were written. `path` names the file."""

    def __init__(self, path: object, message: str) -> None:
        self.path = path
        super().__init__(f"{path}: {message}")


class CorruptRecord(DataError):
    """A record is damaged. `step` and `tensor` name the place, if they are known."""

    def __init__(self, path: object, why: str, *, step: int | None = None, tensor: str | None = None) -> None:
        self.step, self.tensor, self.why = step, tensor, why
        where = (f"step {step}: " if step is not None else "") + (f"tensor {tensor}: " if tensor else "")
        super().__init__(path, f"{where}{why}. Run `tranlogs verify` on the run")


class MissingShard(CorruptRecord):
    """A record is divided over several ranks, and the gradient shard of `rank` cannot be read."""

    def __init__(self, path: object, rank: int, why: str, *, step: int) -> None:
        self.rank = rank
        super().__init__(path, f"gradient shard of rank {rank}: {why}", step=step)


class CorruptCheckpoint(DataError):
    """A file of a checkpoint is missing or differs from its manifest."""

    def __init__(self, path: object, why: str, *, tensor: str | None = None) -> None:
        self.tensor, self.why = tensor, why
        super().__init__(path, (f"tensor {tensor}: " if tensor else "") + f"{why}. Recovery uses an older checkpoint")


class CorruptCatalog(DataError):
    """The catalog is missing or damaged. `tranlogs verify RUN --repair` rebuilds it from the segments and checkpoints."""

    def __init__(self, path: object, why: str) -> None:
        self.why = why
        super().__init__(path, f"{why}. `tranlogs verify RUN --repair` rebuilds the catalog from segments and checkpoints")


class CorruptObject(DataError):
    """An object in a store is missing, too short, or differs from what was sent. `path` is its name in the store."""

    def __init__(self, name: str, why: str) -> None:
        self.why = why
        super().__init__(name, why)


class UnknownFormat(DataError):
    """A file has a format version that this TranLogs does not read."""

    def __init__(self, path: object, version: object, known: int) -> None:
        self.version = version
        advice = "upgrade TranLogs"
        if isinstance(version, int) and version < known:
            advice = (
                "that version was never released and is no longer read. Continue with the TranLogs that wrote the run, or "
                "write its state there (`tranlogs replay RUN --out FILE`) and start a new run from the file in another folder"
            )
        self.why = f"it is in format version {version}, and this TranLogs reads version {known}: {advice}"
        super().__init__(path, self.why)


class RecoveryError(TranLogsError):
    """There is no intact checkpoint, or the log and the checkpoints do not cover the requested step."""


class LogUnavailable(TranLogsError):
    """The log cannot be written now. The journal suspends logging, and training continues."""


class RunLost(LogUnavailable):
    """This process can no longer write the run: another process does, or the folder or a file of it was moved or deleted.

    Attributes:
        resumes_when: what has to happen so that logging resumes; "" if nothing can.
        loss: what a crash now would lose, as the end of a sentence; "" for the steps since the newest committed one.
    """

    def __init__(self, why: str, resumes_when: str, *, loss: str = "") -> None:
        self.resumes_when, self.loss = resumes_when, loss
        super().__init__(why)


class CatalogUnavailable(LogUnavailable):
    """The catalog cannot be used now: LMDB has no reader slot or lock for this process, or rights are missing."""

    def __init__(self, path: object, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"{path}: {why}")


class StoreUnavailable(TranLogsError):
    """A store does not answer, or gives an unexpected answer. The outcome of the request is unknown; a retry may help."""

    def __init__(self, url: str, why: str) -> None:
        self.url, self.why = url, why
        super().__init__(f"store {url}: {why}")


# Errors that suspend logging and let training continue. UnencodableState: a tracked object has changed since it was registered.
SUSPENDING_ERRORS = (LogUnavailable, CorruptCatalog, UnencodableState, MemoryError, OSError)
