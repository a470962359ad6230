"""The source of running code."""

from __future__ import annotations

import ast
import linecache
import os
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from .assignments import Assignments
from .flow import Flow
from .source_names import FUNCTIONS, Function, Scope

_FRAMES_MAX = 200
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
        if not _is_of_library(frame):
            yield frame
        frame = frame.f_back


def _is_of_library(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    file = frame.f_code.co_filename
    return name in _OURS or file.startswith("<frozen") or "site-packages" in file or file.startswith(_OF_LIBRARIES)


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a function or module.

    Attributes:
        scope: its syntax tree.
        flow: the flow of values through it.
        assignments: its assignments.
    """

    scope: Scope
    flow: Flow
    assignments: Assignments


class Sources:
    """The sources of running code. A file is read once."""

    def __init__(self) -> None:
        self._files: dict[str, dict[tuple[str, int], Scope]] = {}  # functions by name and first line
        self._sources: dict[int, Source] = {}

    def scope_of(self, frame: FrameType) -> Scope | None:
        """Return the function or module that a frame runs; None if its source is not known."""
        code = frame.f_code
        if code.co_filename not in self._files:
            self._files[code.co_filename] = _read(frame)
        is_module = code.co_name == "<module>"
        return self._files[code.co_filename].get(("<module>", 0) if is_module else (code.co_name, code.co_firstlineno))

    def source_of(self, scope: Scope) -> Source:
        """Return what is known of a function or module."""
        found = self._sources.get(id(scope))
        if found is None:
            found = self._sources[id(scope)] = Source(scope, Flow(scope), Assignments(scope))
        return found

    def prepare(self) -> None:
        """Look at all functions of the files that were read: where their loops run there is less time."""
        for scopes in self._files.values():
            for scope in scopes.values():
                self.source_of(scope)

    def forget(self) -> None:
        """Keep the files no longer."""
        self._files.clear()
        self._sources.clear()


def _read(frame: FrameType) -> dict[tuple[str, int], Scope]:
    """Return the module and the functions of the file of a frame."""
    file = frame.f_code.co_filename
    lines = linecache.getlines(file, frame.f_globals)
    if not lines or sum(map(len, lines)) > _BYTES_MAX or _has_changed(file):
        return {}
    module = ast.parse("".join(lines))
    functions = [node for node in ast.walk(module) if isinstance(node, FUNCTIONS)]
    return {("<module>", 0): module} | {(node.name, _first_line(node)): node for node in functions}


def _has_changed(file: str) -> bool:
    return os.path.exists(file) and os.path.getmtime(file) > _SINCE


def _first_line(function: Function) -> int:
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
