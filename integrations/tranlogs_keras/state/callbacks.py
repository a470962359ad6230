"""The state of the other callbacks: the attributes that they have changed since their first `fit` began, and their files.

EarlyStopping's patience spent, ReduceLROnPlateau's best value, ModelCheckpoint's best, the history. What never changes is
their configuration and stays the script's. In a later fit, what an earlier one has changed is state, too: a process that
starts again passes the earlier one over. What cannot be stored (models, files of callbacks other than Keras's) is left out
and named. Files that Keras's own callbacks write come back, so that no line is lost or written twice:

CSVLogger     the boundary holds the content of its table
TensorBoard   its writers are flushed at the boundary, which holds the sizes of this fit's event files; a resume cuts the files
              of former processes to these sizes. Keras opens new files in each process
"""

from __future__ import annotations

import csv
import os
import socket
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from tranlogs.base.notes import Note
from tranlogs.training import NumberLists

from ..backends.backend import Doubt
from .attributes import ChangedAttributes, GivenAttributes, store_lists, unpacked

FILE = "tranlogs.file"  # stands for the file among a callback's attributes
_CONTENT_BYTES_MAX = 4 << 20  # of a table; a larger one is left as it is, and named
_PREFIX = "events.out.tfevents."
_HANDLES = {
    keras.callbacks.CSVLogger: {"csv_file", "writer"},
    keras.callbacks.TensorBoard: {"_writers", "_prev_summary_state", "_summary_module"},
}


_KERAS_OWN = {"_model", "params", "validation_data", "model"}
_SKIPPED = (keras.callbacks.ProgbarLogger,)
_BEFORE_BATCHES = ("on_train_batch_begin", "on_batch_begin")
_AFTER_BATCHES = ("on_train_batch_end", "on_batch_end")
_HOOKS = (*_BEFORE_BATCHES, *_AFTER_BATCHES)


# They have hooks of batches, which write no variable of the model.
_READING = (keras.callbacks.ModelCheckpoint, keras.callbacks.TensorBoard, keras.callbacks.TerminateOnNaN)
_OF_EACH_PROCESS = {
    # Times, and event files with the number of the process in their names.
    keras.callbacks.TensorBoard: (FILE, "_batch_start_time", "_epoch_start_time", "_train_accumulated_time"),
    keras.callbacks.CSVLogger: ("append_header",),  # whether the table was empty as this process opened it
}


State = dict[str, dict[str, Any]]


_given_by_id: dict[int, tuple[weakref.ref[Any], GivenAttributes]] = {}  # a callback need not be hashable


class CallbackStates:
    """The attributes of the other callbacks of a fit that have changed since their first one, as a boundary records them.

    They are looked at before their `on_train_begin` is called.

    Attributes:
        names: under which a boundary may hold their states.
    """

    def __init__(self, callbacks: Sequence[Any], doubt: Doubt) -> None:
        self._named, self._doubt, self._number_lists = _named(callbacks), doubt, NumberLists()
        self.names = list(self._named)
        self._changed = {name: self._find_changed(name, callback) for name, callback in self._named.items()}
        self._batchwise = {name: callback for name, callback in self._named.items() if _has_hook(callback, *_HOOKS)}
        self._states: State = {}  # as of the last look
        self._files: dict[str, Any] = {}  # what brings back the files of callbacks, as of the last look
        self._lost: set[str] = set()  # attributes that have changed and cannot be stored ("MyCallback.model")

    def _find_changed(self, name: str, callback: Any) -> ChangedAttributes:
        """Return the changes since what the script has given a callback, which is read before its first fit."""
        known, key = _given_by_id.get(id(callback)), id(callback)
        if known is None or known[0]() is not callback:
            known = weakref.ref(callback, lambda _: _given_by_id.pop(key, None)), GivenAttributes.of(self._read(callback))
            _given_by_id[key] = known
        return ChangedAttributes(callback, known[1], lambda attribute: self._lose(f"{name}.{attribute}"))

    @property
    def write_before_batches(self) -> bool:
        """True if a callback may write variables between a boundary and the step after it."""
        return any(_has_hook(callback, *_BEFORE_BATCHES) for callback in self._writing())

    @property
    def write_after_batches(self) -> bool:
        """True if a callback may write variables between a step and the boundary after it."""
        return any(_has_hook(callback, *_AFTER_BATCHES) for callback in self._writing())

    def _writing(self) -> list[Any]:
        return [callback for callback in self._named.values() if type(callback) not in _READING]

    @property
    def of_each_process(self) -> set[str]:
        """The attributes that differ between two processes which do the same, as "NAME.ATTRIBUTE"."""
        return {
            f"{name}.{attribute}"
            for name, callback in self._named.items()
            for kind, attributes in _OF_EACH_PROCESS.items()
            if isinstance(callback, kind)
            for attribute in attributes
        }

    def read(self, *, is_end: bool = True) -> State:
        """Return the state of the callbacks: the same object as before for each callback that has not changed.

        At the end of an epoch or a fit (`is_end`) all of them have had their turn. Within an epoch only those that
        have hooks of batches may have changed; if one of them is not Keras's own, it may have changed others. The
        first look, and the first one after `write`, is at all of them.
        """
        looks_at_all = is_end or any(type(callback) not in _READING for callback in self._batchwise.values())
        for name, callback in self._named.items():
            if looks_at_all or name in self._batchwise or self._changed[name].is_due:
                self._states[name] = self._look(name, callback, is_end=is_end)
        self._number_lists.end_boundary()
        return {name: state for name, state in self._states.items() if state}

    def _read(self, callback: Any) -> dict[str, Any]:
        return {key: store_lists(value, self._number_lists) for key, value in _plain(callback).items()}

    def _look(self, name: str, callback: Any, *, is_end: bool) -> dict[str, Any]:
        """Read a callback's attributes, and its file, that may be others than at the last look."""
        plain, changed = self._read(callback), self._changed[name]
        if handles_of(callback):
            file = self._files[name] = read_file(callback, self._files.get(name), is_due=is_end or changed.is_due)
            if file is None:
                self._lose(f"{name}'s file")
            else:
                plain[FILE] = file
        return changed.read(plain)

    def _lose(self, what: str) -> None:
        if what not in self._lost:
            self._lost.add(what)
            text = f"{what} has changed, and is of a kind that cannot be stored: it is not brought back"
            self._doubt(Note("not-recovered", text), False)

    def write(self, state: State, *, is_complete: bool = False, has_files: bool = True) -> None:
        """Give each callback its recorded state.

        `is_complete`: nothing is left to train. `has_files`: the files of callbacks are brought back, too.
        """
        for name in state.keys() & self._named.keys():
            attributes = dict(state[name])
            if FILE in attributes and has_files:
                self._files[name] = unpacked(attributes[FILE])
                restore_file(self._named[name], self._files[name], is_complete=is_complete)
            attributes.pop(FILE, None)
            self._changed[name].write(attributes)


def _named(callbacks: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for callback in callbacks:
        if isinstance(callback, _SKIPPED):
            continue
        base, count = type(callback).__name__, 1
        name = base
        while name in found:
            count += 1
            name = f"{base}#{count}"
        found[name] = callback
    return found


def _has_hook(callback: Any, *names: str) -> bool:
    """Return True if a callback has methods of these names that Keras's base class does not have."""
    base = keras.callbacks.Callback
    return any(name in vars(callback) or getattr(type(callback), name) is not getattr(base, name) for name in names)


def _plain(callback: Any) -> dict[str, Any]:
    """Attributes that may be state of the callback's own; variables of the model come back with the model."""
    model = vars(callback).get("_model")
    holds_variables = any(isinstance(value, keras.Variable) for value in vars(callback).values())
    of_model = {id(variable) for variable in model.variables} if model is not None and holds_variables else set()
    ignored = _KERAS_OWN | handles_of(callback)
    return {key: value for key, value in vars(callback).items() if key not in ignored and id(value) not in of_model}


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
