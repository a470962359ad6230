"""The source of running code."""

from __future__ import annotations

import ast
import linecache
import os
import sys
import sysconfig
import time
from collections.abc import Iterator
from types import CodeType, FrameType

from .names import Scope

_FRAMES_MAX = 200
_BYTES_MAX = 2 << 20
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


def read_scope(frame: FrameType) -> Scope | None:
    """Return the source of the function or module that a frame runs; None if it is not known."""
    code = frame.f_code
    lines = linecache.getlines(code.co_filename, frame.f_globals)
    if not lines or sum(map(len, lines)) > _BYTES_MAX or _has_changed(code.co_filename):
        return None
    module = ast.parse("".join(lines))
    if code.co_name == "<module>":
        return module
    return next((node for node in ast.walk(module) if _is_source(node, code)), None)  # type: ignore[return-value]


def _has_changed(file: str) -> bool:
    return os.path.exists(file) and os.path.getmtime(file) > _SINCE


def _is_source(node: ast.AST, code: CodeType) -> bool:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.name != code.co_name:
        return False
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) == code.co_firstlineno
