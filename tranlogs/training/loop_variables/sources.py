"""The source of running code."""

from __future__ import annotations

import ast
import linecache
import os
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType
from typing import Any

from .assignments import Assignments, find_clocks
from .flow import Flow
from .source_names import FUNCTIONS, Function, Scope

_FRAMES_MAX = 200
_FILES_MAX = 50
_BYTES_MAX = 512 << 10  # of a file, which takes about a second
_OF_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OURS = ("tranlogs", "tranlogs_torch", "tranlogs_keras")
_SINCE = time.time()  # a file that was changed later is not the code that runs


def frames_of_script() -> Iterator[FrameType]:
    """Yield the frames of this thread that run code of the script, the innermost first; those of libraries are left out."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FRAMES_MAX):
        if frame is None:
            return
        if not _is_of_library(frame.f_globals, frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _is_of_library(variables: dict[str, Any], file: str) -> bool:
    name = str(variables.get("__name__", "")).partition(".")[0]
    return name in _OURS or file.startswith("<frozen") or "site-packages" in file or file.startswith(_OF_LIBRARIES)


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a function or module.

    Attributes:
        scope: its syntax tree.
        flow: the flow of values through it.
        assignments: its assignments.
        clocks: names under which its file has imported functions that read a clock.
    """

    scope: Scope
    flow: Flow
    assignments: Assignments
    clocks: frozenset[str]


class Sources:
    """The sources of running code. A file is read once."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._of_files: dict[int, _File] = {}  # by the `id` of a function or module
        self._sources: dict[int, Source] = {}

    def scope_of(self, frame: FrameType) -> Scope | None:
        """Return the function or module that a frame runs; None if its source is not known."""
        return self._scope_of(frame.f_code, frame.f_globals)

    def scope_of_generator(self, frame: FrameType) -> Scope | None:
        """Return the function whose generator has a frame; None if it is of a library, or if its source is not known."""
        return None if _is_of_library(frame.f_globals, frame.f_code.co_filename) else self.scope_of(frame)

    def scopes_around(self, scope: Scope) -> list[Scope]:
        """Return the functions around one, the innermost first, and the module."""
        first, last = _lines_of(scope)
        around = []
        for one in self._of_files[id(scope)].scopes.values():
            begin, end = _lines_of(one)
            if one is not scope and begin <= first and last <= end:
                around.append((end - begin, one))
        return [one for _, one in sorted(around, key=lambda pair: pair[0])]

    def scope_of_function(self, function: FunctionType) -> Scope | None:
        """Return the source of a function; None if it is of a library, or if its source is not known."""
        code = function.__code__
        is_of_library = _is_of_library(function.__globals__, code.co_filename)
        return None if is_of_library else self._scope_of(code, function.__globals__)

    def _scope_of(self, code: CodeType, variables: dict[str, Any]) -> Scope | None:
        file = self._files.get(code.co_filename)
        if file is None:
            if len(self._files) >= _FILES_MAX:
                return None
            file = self._files[code.co_filename] = _read(code.co_filename, variables)
            self._of_files.update((id(scope), file) for scope in file.scopes.values())
        is_module = code.co_name == "<module>"
        return file.scopes.get(("<module>", 0) if is_module else (code.co_name, code.co_firstlineno))

    def source_of(self, scope: Scope) -> Source:
        """Return what is known of a function or module."""
        found = self._sources.get(id(scope))
        if found is None:
            file = self._of_files[id(scope)]
            found = Source(scope, Flow(scope), Assignments(scope, file.lines, file.clocks), file.clocks)
            self._sources[id(scope)] = found
        return found

    def prepare(self) -> None:
        """Look at all functions of the files that were read: where their loops run there is less time."""
        for file in self._files.values():
            for scope in file.scopes.values():
                self.source_of(scope)

    def forget(self) -> None:
        """Keep the files no longer."""
        self._files.clear()
        self._of_files.clear()
        self._sources.clear()


@dataclass(frozen=True, slots=True)
class _File:
    """A source file.

    Attributes:
        lines: its lines.
        scopes: the module and its functions, by name and first line.
        clocks: see `Source`.
    """

    lines: Sequence[str] = ()
    scopes: dict[tuple[str, int], Scope] = field(default_factory=dict)
    clocks: frozenset[str] = frozenset()


def _read(file: str, variables: dict[str, Any]) -> _File:
    """Read a source file, whose module has some variables; what is returned is empty if it cannot be read."""
    lines = linecache.getlines(file, variables)
    if not lines or sum(map(len, lines)) > _BYTES_MAX or _has_changed(file):
        return _File()
    try:
        module = ast.parse("".join(lines))
    except (SyntaxError, ValueError):  # a cell of a notebook
        return _File()
    functions = [node for node in ast.walk(module) if isinstance(node, FUNCTIONS)]
    scopes: dict[tuple[str, int], Scope] = {(node.name, _first_line(node)): node for node in functions}
    return _File(lines, {("<module>", 0): module, **scopes}, find_clocks(module))


def _has_changed(file: str) -> bool:
    return os.path.exists(file) and os.path.getmtime(file) > _SINCE


def _lines_of(scope: Scope) -> tuple[float, float]:
    if isinstance(scope, ast.Module):
        return 0, float("inf")
    return _first_line(scope), scope.end_lineno or scope.lineno


def _first_line(function: Function) -> int:
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
