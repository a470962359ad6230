"""The source of scripts, looked at once a process: hundreds of runs of the tests are called by the same few files.

A run reads the files of the script that trains, which takes a fifth of a second for a long file of tests. The result depends on
the text of a file alone. Tests of `tranlogs.training.loop_variables` that write their scripts anew have other texts each time.
"""

from __future__ import annotations

import linecache
from functools import partial
from types import FunctionType, ModuleType
from typing import Any
from unittest import mock

from tranlogs.training.loop_variables import LoopVariables, sources

_FILES_MAX = 30  # a syntax tree takes megabytes

_files: dict[str, Any] = {}
_known: dict[int, sources.Source] = {}  # by the `id` of a function or module, which its source keeps alive


def keep_sources() -> None:
    """Keep what is known of each source file for all runs of this process and of the processes that it forks."""
    mock.patch.object(sources, "_read", partial(_read_once, sources._read)).start()
    mock.patch.object(sources.Sources, "source_of", _look_once(sources.Sources.source_of)).start()


def look_at_callers() -> None:
    """Look at the files of the functions that are running, so that a process which is forked later need not."""
    LoopVariables(lambda value: False, lambda value: False).note_start()


def look_at(*modules: ModuleType) -> None:
    """Look at the files of modules, so that a process which is forked later need not."""
    read = sources.Sources()
    for module in modules:
        functions = [value for value in vars(module).values() if isinstance(value, FunctionType)]
        found = [read.scope_of_function(function) for function in functions if function.__module__ == module.__name__]
        assert any(found), f"no function of {module.__name__} has a source that can be read"
    read.prepare()


def _read_once(read: Any, file: str, variables: dict[str, Any]) -> Any:
    known = _files.get(file)
    if known is not None and known.lines == linecache.getlines(file, variables) and not sources._has_changed(file):
        return known
    if len(_files) >= _FILES_MAX:
        _files.clear()
        _known.clear()
    _files[file] = read(file, variables)
    return _files[file]


def _look_once(look: Any) -> Any:
    def source_of(self: sources.Sources, scope: Any) -> sources.Source:
        found: sources.Source | None = _known.get(id(scope))
        if found is None:
            found = _known[id(scope)] = look(self, scope)
        return found

    return source_of
