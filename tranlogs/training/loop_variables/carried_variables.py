"""Variables that the running loop of a script carries, and that the run does not keep."""

from __future__ import annotations

import ast
import logging
import sys
from collections import deque
from collections.abc import Callable, Sequence
from inspect import CO_OPTIMIZED
from itertools import islice
from numbers import Number
from types import CodeType, FrameType
from typing import Any

import numpy as np

from ..loop_state import Remembered
from .called_code import CalledCode, ObjectState, method_of
from .descriptions import Unkept, UnkeptIterator, UnkeptNumber, UnkeptObject, UnkeptVariable
from .emptied import emptied_by_turn, touched_by_turn
from .flow import Loop, enclosing_loops
from .objects.iterators import kind_of_iterator
from .objects.library_objects import LibraryObject
from .objects.named import Named, Resolve, attribute_of
from .source_names import Scope, writes
from .sources import Source, Sources, frames_of_script
from .turn_numbers import deciding_number

_log = logging.getLogger("tranlogs")

_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, np.ndarray, np.generic)
_CONTAINERS = (list, tuple, set, frozenset, deque)
_ITEMS_MAX = 8  # of a container that are looked at
_LOOKS = frozenset(("locals", "vars", "eval", "exec"))  # functions by which code looks at its own variables
_REFERENCES = 3  # to the variables of a frame: from the frame, from here, and from the function that counts
_MISSING = object()
_EMPTY = frozenset(("[]", "{}", "()", "set()", "list()", "dict()", "deque()"))

Facts = Callable[[Any], bool]


class LoopVariables:
    """Finds the variables of the loops that are running, by the source of the script.

    Args:
        is_value: returns True for a value of the framework that a variable may hold, such as a tensor that is no parameter.
        is_kept: returns True for an object that comes back after a crash, or gives what does: what is tracked, the optimizer.
        find_others: returns the objects whose methods a library calls for the loop.
    """

    def __init__(
        self, is_value: Facts, is_kept: Facts, find_others: Callable[[], Sequence[LibraryObject]] = lambda: ()
    ) -> None:
        self._is_value, self._is_kept, self._find_others = is_value, is_kept, find_others
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

    def find(self) -> list[Unkept] | None:
        """Return the variables and objects, of the outermost loop first; None if no loop of the script runs here."""
        try:
            return self._find()
        except Exception:  # as above
            _log.debug("the variables of the loop are not known", exc_info=True)
            return None
        finally:
            self._sources.forget()

    def _find(self) -> list[Unkept] | None:
        found: list[Unkept] = []
        called = CalledCode(self._sources, self._gives_kept)
        running = set[int]()  # objects whose methods are running, by `id`
        anew, emptied, filled, held = set[str](), set[str](), set[str](), dict[str, Any]()
        is_any = False
        for frame in reversed(list(frames_of_script())):
            running |= {id(value) for value in [_running_object(frame)] if value is not None}
            scope = self._sources.scope_of(frame)
            loops = [] if scope is None else enclosing_loops(scope, frame.f_lineno)
            loops = [loop for loop in loops if (frame.f_code, loop.lineno) not in self._outside]
            if scope is not None and loops:
                anew |= _made_anew(scope, loops, is_in_loop=is_any)
                is_any = True
                values = _read(frame, {node.id for node in ast.walk(scope) if isinstance(node, ast.Name)})
                held |= values
                found += self._find_in(values, self._sources.source_of(scope), loops, called)
                for loop in loops:
                    left = emptied_by_turn(loop, called.effects)
                    emptied |= left
                    filled |= touched_by_turn(loop, called.effects) - left
        self._visit_others(held, called)
        found += self._find_called(called, emptied - filled, anew, running)
        found = [one for one in found if one.name not in called.saved]
        unique = dict[str, Unkept]()
        for one in found:
            unique.setdefault(one.name, one)
        return list(unique.values()) if is_any else None

    def _find_called(self, called: CalledCode, emptied: set[str], anew: set[str], running: set[int]) -> list[Unkept]:
        """Return what called code carries from call to call.

        Args:
            called: the code.
            emptied: containers that each loop leaves empty.
            anew: names that an outer loop writes in each turn.
            running: objects whose methods have the loops, by `id`.
        """
        variables = [(name, one) for name, one in called.variables.items() if self._is_plain(one.value)]
        found: list[Unkept] = [UnkeptVariable(name, one.begins_with, one.within) for name, one in variables]
        for state in called.objects.values():
            found += self._describe(state, called, emptied, anew, is_running=id(state.named.value) in running)
        kinds = [
            (named.name, kind_of_iterator(named.value, self._sources, self._is_plain)) for named in called.iterators.values()
        ]
        return found + [UnkeptIterator(name, kind) for name, kind in kinds if kind]

    def _find_in(self, values: dict[str, Any], source: Source, loops: Sequence[Loop], called: CalledCode) -> list[Unkept]:
        assignments, line = source.assignments, loops[0].lineno
        self._visit_called(source, loops, values, called)
        emptied = [(loop, emptied_by_turn(loop, called.effects)) for loop in loops]

        def is_carried(name: str) -> bool:
            """Return True if one of the loops carries a variable, and does not leave it empty as it was before the loop."""
            is_empty = assignments.begins_with(name, line) in (None, *_EMPTY)
            return any(source.flow.is_carried(name, loop) and not (is_empty and name in names) for loop, names in emptied)

        carried = source.flow.find_carried(loops)
        names = [name for name in carried if not assignments.is_time(name) and is_carried(name)]
        variables = [
            UnkeptVariable(name, assignments.begins_with(name, source.flow.find_carrier(name, loops).lineno))
            for name in names
            if self._is_unkept(name, values) and not self._has_kept_relative(source, name, line, values)
        ]
        return [*variables, *self._find_numbers(values, loops)]

    def _find_numbers(self, values: dict[str, Any], loops: Sequence[Loop]) -> list[UnkeptNumber]:
        """Return the numbers of turns that start over. If that fails, the variables of the loops are found all the same."""

        def is_data(name: str) -> bool:
            """Return True for what the run keeps the place in, or what gives it: a tracked loader, an epoch, the optimizer."""
            root = name.partition(".")[0]
            found = attribute_of(Named(root, values[root]), name) if root in values else None
            value = found.value if found is not None else None
            return value is not None and any(map(self._is_kept, (value, getattr(value, "iterable", None))))  # of tqdm

        try:
            return [UnkeptNumber(number) for loop in loops if (number := deciding_number(loop, is_data)) is not None]
        except Exception:  # as above
            _log.debug("the numbers of turns are not known", exc_info=True)
            return []

    def _visit_called(self, source: Source, loops: Sequence[Loop], values: dict[str, Any], called: CalledCode) -> None:
        """Look at the code that loops call. If that fails, the variables of the loops themselves are found all the same."""
        try:
            for loop in loops:
                nodes = [*loop.body, loop.test] if isinstance(loop, ast.While) else loop.body
                called.visit(nodes, source.assignments, self._resolver(source, loop, values))
        except Exception:  # as above
            _log.debug("the code that the loop calls is not known", exc_info=True)

    def _visit_others(self, held: dict[str, Any], called: CalledCode) -> None:
        """Look at objects whose methods a library calls."""
        try:
            for one in self._find_others():
                called.visit_methods(Named(one.name_in(held), one.value), one.methods)
                called.saved |= {f"{one.name_in(held)}.{attribute}" for attribute in one.kept}
        except Exception:  # as above
            _log.debug("the code that a library calls is not known", exc_info=True)

    def _has_kept_relative(self, source: Source, name: str, line: int, values: dict[str, Any]) -> bool:
        """Return True if a variable begins with what the run keeps, or is copied into it."""
        return any(self._gives_kept(values.get(one, _MISSING)) for one in source.assignments.relatives(name, line))

    def _resolver(self, source: Source, loop: Loop, values: dict[str, Any]) -> Resolve:
        """Return what looks up the names of a running function that a turn of a loop has from before."""
        taken = source.flow.find_taken(loop)

        def resolve(name: str) -> Named | None:
            root = name.partition(".")[0]
            if root not in taken or root not in values:
                return None
            named = Named(root, values[root])
            is_kept = any(self._has_kept_relative(source, one, loop.lineno, values) for one in {root, name})
            return None if is_kept and not self._gives_kept(named.value) else attribute_of(named, name)

        return resolve

    def _describe(
        self, state: ObjectState, called: CalledCode, emptied: set[str], anew: set[str], *, is_running: bool
    ) -> list[Unkept]:
        """Return an object whose methods are called, or the attributes of one in whose method the loop is."""
        name, value = state.named.name, state.named.value
        if self._gives_kept(value):
            return []
        names = []
        for attribute in sorted(state.changed & state.taken - state.times):
            found = attribute_of(state.named, f".{attribute}")
            if found is None or found.name in called.saved or found.name in emptied or not self._is_plain(found.value):
                continue
            if not called.is_through_library(value) or isinstance(found.value, Number):
                names.append(attribute)
        order = list(getattr(value, "__dict__", ()))
        names.sort(key=lambda attribute: order.index(attribute) if attribute in order else len(order))
        if is_running:
            return [UnkeptVariable(f"{name}.{attribute}") for attribute in names]
        has_state = all(method_of(value, method) is not None for method in ("state_dict", "load_state_dict"))
        is_anew = name in anew or name.partition(".")[0] in anew
        return [UnkeptObject(name, type(value).__name__, tuple(names), has_state, is_anew)] if names else []

    def _gives_kept(self, value: Any) -> bool:
        return value is not _MISSING and (isinstance(value, Remembered) or self._is_kept(value))

    def _is_unkept(self, name: str, values: dict[str, Any]) -> bool:
        root, _, attribute = name.partition(".")
        value = values.get(root, _MISSING)
        if value is _MISSING or self._gives_kept(value):
            return False
        if attribute:
            found = attribute_of(Named(root, value), name)
            value = _MISSING if found is None else found.value
        return value is not _MISSING and not self._gives_kept(value) and self._is_plain(value)

    def _is_plain(self, value: Any, depth: int = 3) -> bool:
        if isinstance(value, _PLAIN) or self._is_value(value):
            return True
        if isinstance(value, dict):
            items = [*islice(value, _ITEMS_MAX), *islice(value.values(), _ITEMS_MAX)]
        elif isinstance(value, _CONTAINERS):
            items = list(islice(value, _ITEMS_MAX))
        else:
            return False
        return depth > 0 and all(self._is_plain(item, depth - 1) for item in items)


def _made_anew(scope: Scope, loops: Sequence[Loop], *, is_in_loop: bool) -> set[str]:
    """Return the names that loops write in each turn, and, of a function that an outer loop calls, all that it writes."""
    is_function = is_in_loop and not isinstance(scope, ast.Module)
    body = [*(scope.body if is_function else ()), *(part for loop in loops for part in loop.body)]
    return {name for part in body for name in writes(part)}


def _running_object(frame: FrameType) -> Any:
    """Return the object whose method a frame runs; None if it runs a function."""
    code = frame.f_code
    if not code.co_argcount:
        return None
    first = code.co_varnames[0]
    value = _read(frame, {first}).get(first)
    function = method_of(value, code.co_name)
    return value if function is not None and function.__code__ is code else None


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
