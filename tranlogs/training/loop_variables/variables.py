"""Variables that the running loop of a script carries, and that the run does not keep."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from types import CodeType, FrameType
from typing import Any

import numpy as np

from ..loop_state import Remembered
from .flow import Loop, enclosing_loops
from .sources import Source, Sources, frames_of_script

_log = logging.getLogger("tranlogs")

_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, np.ndarray, np.generic)
_CONTAINERS = (list, tuple, set, frozenset, deque)
_ITEMS_MAX = 8  # of a container that are looked at
_NAMES_MAX = 8  # in a message
_LOOKS = frozenset(("locals", "vars", "eval", "exec"))  # functions by which code looks at its own variables
_REFERENCES = 3  # to the variables of a frame: from the frame, from here, and from the function that counts
_TO_KEEP = "To keep "
_MISSING = object()

Facts = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class UnkeptVariable:
    """A variable that a loop carries from turn to turn, and that the run does not keep.

    Attributes:
        name: the variable, or the attribute of one ("self.best").
        begins_with: what it begins with, as the source has it; None if that is not simple.
    """

    name: str
    begins_with: str | None = None


class LoopVariables:
    """Finds the variables of the loops that are running, by the source of the script.

    Args:
        is_value: returns True for a value of the framework that a variable may hold, such as a tensor that is no parameter.
        is_kept: returns True for an object that comes back after a crash, or gives what does: what is tracked, the optimizer.
    """

    def __init__(self, is_value: Facts, is_kept: Facts) -> None:
        self._is_value, self._is_kept = is_value, is_kept
        self._sources = Sources()
        self._outside: set[tuple[CodeType, int]] = set()  # loops in whose body the run was recovered

    def note_start(self) -> None:
        """Leave out the loops that are running now: a run begins in their body."""
        try:
            for frame in frames_of_script():
                scope = self._sources.scope_of(frame)
                if scope is not None:
                    loops = enclosing_loops(scope, frame.f_lineno)
                    self._outside.update((frame.f_code, loop.lineno) for loop in loops)
            self._sources.prepare()
        except Exception:  # whatever a script is made of, its training goes on
            _log.debug("the loops around recover() are not known", exc_info=True)

    def find(self) -> list[UnkeptVariable] | None:
        """Return the variables, of the outermost loop first; None if no loop of the script runs here."""
        try:
            return self._find()
        except Exception:  # as above
            _log.debug("the variables of the loop are not known", exc_info=True)
            return None
        finally:
            self._sources.forget()

    def _find(self) -> list[UnkeptVariable] | None:
        found: list[UnkeptVariable] = []
        is_any = False
        for frame in reversed(list(frames_of_script())):
            scope = self._sources.scope_of(frame)
            loops = [] if scope is None else enclosing_loops(scope, frame.f_lineno)
            loops = [loop for loop in loops if (frame.f_code, loop.lineno) not in self._outside]
            if scope is not None and loops:
                is_any = True
                found += self._find_in(frame, self._sources.source_of(scope), loops)
        return list({one.name: one for one in found}.values()) if is_any else None

    def _find_in(self, frame: FrameType, source: Source, loops: Sequence[Loop]) -> list[UnkeptVariable]:
        assignments, line = source.assignments, loops[0].lineno
        names = [name for name in source.flow.find_carried(loops) if not assignments.is_time(name)]
        relatives = {name: assignments.relatives(name, line) for name in names}
        values = _read(frame, {name.partition(".")[0] for name in names}.union(*relatives.values())) if names else {}
        return [
            UnkeptVariable(name, assignments.begins_with(name, line))
            for name in names
            if self._is_unkept(name, values) and not any(self._gives_kept(values.get(one, _MISSING)) for one in relatives[name])
        ]

    def _gives_kept(self, value: Any) -> bool:
        return value is not _MISSING and (isinstance(value, Remembered) or self._is_kept(value))

    def _is_unkept(self, name: str, values: dict[str, Any]) -> bool:
        root, _, attribute = name.partition(".")
        value = values.get(root, _MISSING)
        if value is _MISSING or self._gives_kept(value):
            return False
        if attribute:
            value = getattr(value, "__dict__", {}).get(attribute, _MISSING)
        return value is not _MISSING and not self._gives_kept(value) and self._is_plain(value)

    def _is_plain(self, value: Any, depth: int = 3) -> bool:
        if isinstance(value, _PLAIN) or self._is_value(value):
            return True
        if isinstance(value, dict):
            items = [*list(value)[:_ITEMS_MAX], *list(value.values())[:_ITEMS_MAX]]
        elif isinstance(value, _CONTAINERS):
            items = list(value)[:_ITEMS_MAX]
        else:
            return False
        return depth > 0 and all(self._is_plain(item, depth - 1) for item in items)


def describe_unkept(found: Sequence[UnkeptVariable]) -> str:
    """Return a text on variables that start over at each start, with the line that lets the run keep them."""
    shown = [one.name for one in found[:_NAMES_MAX]]
    if len(found) > _NAMES_MAX:
        shown.append(f"{len(found) - _NAMES_MAX} more")
    names = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    what = "is a variable of the loop that starts" if len(found) == 1 else "are variables of the loop that start"
    it = "it" if len(found) == 1 else "them"
    return f"{names} {what} over at each start, since the run does not keep {it}. {_TO_KEEP}{it}: {_remembering(found)}"


def split_unkept(note: str) -> tuple[str, str] | None:
    """Return what `describe_unkept` says of the variables, and the line that keeps them; None for another text."""
    told, found, line = note.partition(f" {_TO_KEEP}")
    return (told, line.partition(": ")[2]) if found else None


def _remembering(found: Sequence[UnkeptVariable]) -> str:
    """Return the line that lets the run keep variables, and how the loop names them then."""
    names = [one.name.rpartition(".")[2] for one in found[:_NAMES_MAX]]
    given = [f"{name}={one.begins_with or one.name}" for name, one in zip(names, found, strict=False)]
    rest = ", ..." if len(found) > _NAMES_MAX else ""
    return f"state = optimizer.remember({', '.join(given)}{rest}) before recover(), and state.{names[0]} in the loop"


def _read(frame: FrameType, names: set[str]) -> dict[str, Any]:
    """Return the values of variables of a frame, and keep none of the others alive."""
    is_function = bool(frame.f_code.co_flags & CO_OPTIMIZED)
    if is_function and sys.version_info < (3, 13) and _LOOKS.intersection(frame.f_code.co_names):
        return {}  # reading the variables of the frame would change what the script holds of `locals()`
    values = frame.f_locals
    found = {name: values[name] for name in names if name in values}
    if is_function and sys.version_info < (3, 13) and sys.getrefcount(values) <= _REFERENCES:
        values.clear()  # it is a copy, which the frame would hold as long as it runs
    code = frame.f_code
    own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars} if is_function else set[str]()
    return found | {name: frame.f_globals[name] for name in names - own if name in frame.f_globals}
