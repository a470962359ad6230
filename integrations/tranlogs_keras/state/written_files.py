"""Files that callbacks of Keras write during a fit. A resume brings them back, so that no line is lost or written twice.

CSVLogger     the boundary holds the content of its table
TensorBoard   its writers are flushed at the boundary, which holds the sizes of this fit's event files; a resume cuts the files
              of former processes to these sizes. Keras opens new files in each process
"""

from __future__ import annotations

import csv
import os
import socket
import time
from pathlib import Path
from typing import Any

import keras

FILE = "tranlogs.file"  # stands for the file among a callback's attributes
_CONTENT_BYTES_MAX = 4 << 20  # of a table; a larger one is left as it is, and named
_PREFIX = "events.out.tfevents."
_HANDLES = {
    keras.callbacks.CSVLogger: {"csv_file", "writer"},
    keras.callbacks.TensorBoard: {"_writers", "_prev_summary_state", "_summary_module"},
}


def handles_of(callback: Any) -> set[str]:
    """Return the attributes that hold open files: each process has its own."""
    return next((names for kind, names in _HANDLES.items() if isinstance(callback, kind) and _is_local(callback)), set())


def read_file(callback: Any, before: Any, *, is_due: bool) -> Any:
    """Return what brings a callback's file back; None if the file is too large.

    Args:
        callback: a callback of which `handles_of` names attributes.
        before: what was returned or restored last; None if nothing was.
        is_due: whether the file may have been written to, though the callback writes at the ends of epochs only.
    """
    if isinstance(callback, keras.callbacks.CSVLogger):
        return _read_table(Path(callback.filename)) if is_due else before
    return _read_event_files(callback, before or {}) if is_due or callback.update_freq != "epoch" else before


def restore_file(callback: Any, recorded: Any, *, is_complete: bool) -> None:
    """Bring a callback's file back, after its `on_train_begin` has opened it anew.

    Args:
        callback: the callback.
        recorded: what `read_file` returned at the boundary.
        is_complete: whether nothing is left to train: what follows the record in a table, and event files that the record does
            not have, are then those of a later fit.
    """
    if isinstance(callback, keras.callbacks.CSVLogger):
        if not (is_complete and callback.append):
            _restore_table(callback, recorded)
    elif not is_complete:
        _restore_event_files(Path(callback.log_dir), recorded)


def _is_local(callback: Any) -> bool:
    return "://" not in str(getattr(callback, "filename", None) or getattr(callback, "log_dir", ""))


def _read_table(path: Path) -> bytes | None:
    if not path.exists():
        return b""
    return path.read_bytes() if path.stat().st_size <= _CONTENT_BYTES_MAX else None


def _restore_table(callback: Any, content: bytes) -> None:
    callback.csv_file.close()
    Path(callback.filename).write_bytes(content)
    if callback.append:  # it has found what the file held before it was brought back
        callback.append_header = not content
    # Opened and continued as CSVLogger does, but without a second header.
    callback.csv_file = open(callback.filename, "a")  # noqa: SIM115
    if callback.keys is None:
        return

    class Dialect(csv.excel):
        delimiter = callback.sep

    callback.writer = csv.DictWriter(callback.csv_file, fieldnames=["epoch", *callback.keys], dialect=Dialect)


def _read_event_files(callback: Any, before: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of the event files of this fit, and the processes that wrote them: former ones, and this one."""
    for writer in callback._writers.values():
        writer.flush()
    folder, own = Path(callback.log_dir), _this_process()
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in _event_files(folder) if _process_of(path) == own}
    return {
        "sizes": before.get("sizes", {}) | sizes,
        "processes": list(dict.fromkeys([*before.get("processes", ()), own])),
    }


def _restore_event_files(folder: Path, recorded: dict[str, Any]) -> None:
    """Cut the event files of former processes to what they held at the boundary."""
    for path in _event_files(folder):
        if _process_of(path) not in recorded["processes"] or _is_of_this_process(path):
            continue
        size = recorded["sizes"].get(str(path.relative_to(folder)))
        if size is None:  # made after the boundary
            path.unlink()
        elif path.stat().st_size > size:
            os.truncate(path, size)


def _event_files(folder: Path) -> list[Path]:
    return [path for name in ("train", "validation") for path in (folder / name).glob(f"{_PREFIX}*")]


def _process_of(path: Path) -> str:
    """Return the process that wrote an event file: its name ends in `SECONDS.HOST.PID.NUMBER.v2`."""
    return path.name.removeprefix(_PREFIX).partition(".")[2].rsplit(".", 2)[0]


def _this_process() -> str:
    return f"{socket.gethostname()}.{os.getpid()}"


def _is_of_this_process(path: Path) -> bool:
    """Return True for a file that this process has made; a former one on this machine may have had the same number."""
    seconds = path.name.removeprefix(_PREFIX).partition(".")[0]
    return _process_of(path) == _this_process() and seconds.isdigit() and int(seconds) >= int(_start_of_this_process())


def _start_of_this_process() -> float:
    """Return the time at which this process began, from proc_pid_stat(5)."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
