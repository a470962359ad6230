"""Frames of the script, and which of their names the loops around a place set anew in each turn."""

from __future__ import annotations

import dis
import functools
import sys
import sysconfig
from inspect import CO_OPTIMIZED
from types import CodeType, FrameType
from typing import Any

_FRAMES_MAX = 200
_OF_LIBRARIES = ("<frozen", *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_MODULES_MAX = 100
# Modules that are no script's, wherever they lie: a framework may be used from a checkout.
OURS = {"tranlogs", "tranlogs_torch", "tranlogs_keras", "tranlogs_monitor", "torch", "keras", "tensorflow", "jax"}
_LOOKS = frozenset(("locals", "vars", "eval", "exec"))  # functions by which code looks at its own variables
_REFERENCES = 3  # to the variables of a frame: from the frame, from here, and from the function that counts

Loops = frozenset[tuple[CodeType, int]]  # code, and the place where a loop begins


@functools.lru_cache(maxsize=1 << 14)
def is_of_script(module: str) -> bool:
    """Return True for a module that is the script's own: of no library, no framework, and not of TranLogs."""
    found = sys.modules.get(module)
    file = None if found is None else getattr(found, "__dict__", {}).get("__file__")
    return found is not None and not _is_of_library(module, file or "")


def script_modules() -> list[str]:
    """Return the names of the script's modules."""
    return _script_modules(len(sys.modules))


@functools.lru_cache(maxsize=1)
def _script_modules(count: int) -> list[str]:
    return [name for name in list(sys.modules) if is_of_script(name)][-_MODULES_MAX:]


@functools.lru_cache(maxsize=1 << 14)
def _is_of_library(module: str, file: str) -> bool:
    parts = module.split(".")
    return (
        (not file and module != "__main__")
        or file.startswith(_OF_LIBRARIES)
        or "site-packages" in file
        or any(".".join(parts[: end + 1]) in OURS for end in range(len(parts)))
    )


def script_frames() -> list[FrameType]:
    """Return the frames of this thread that run code of the script, the outermost first."""
    frame, found = sys._getframe(1), list[FrameType]()
    for _ in range(_FRAMES_MAX):
        if not _is_of_library(str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename):
            found.append(frame)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return found[::-1]


def read_locals(frame: FrameType) -> dict[str, Any]:
    """Return a copy of the variables of a function's frame; of a module's, its globals. The frame keeps nothing alive by it."""
    is_copy = bool(frame.f_code.co_flags & CO_OPTIMIZED) and sys.version_info < (3, 13)
    if is_copy and _looks_at_itself(frame.f_code):
        return {}  # reading the variables of the frame would change what the script holds of `locals()`
    values = frame.f_locals
    found = dict(values)
    if is_copy and sys.getrefcount(values) <= _REFERENCES:
        values.clear()
    return found


@functools.lru_cache(maxsize=200)
def _looks_at_itself(code: CodeType) -> bool:
    return any(one.opname in ("LOAD_GLOBAL", "LOAD_NAME") and one.argval in _LOOKS for one in _instructions(code))


def loops_around(frames: list[FrameType]) -> Loops:
    """Return the loops in whose body the frames are. A loop that asks for its first item is not in its body yet."""
    return frozenset(
        (frame.f_code, start)
        for frame in frames
        for start, _ in _loops_at(frame.f_code, frame.f_lasti)
        if start < frame.f_lasti
    )


def is_opening(frame: FrameType) -> bool:
    """Return True if a loop in a frame asks for its first item."""
    return any(start >= frame.f_lasti for start, _ in _loops_at(frame.f_code, frame.f_lasti))


def names_set_anew(frame: FrameType, outside: Loops) -> set[str]:
    """Return the names that each turn of a loop at a place in a frame sets before it reads them.

    Args:
        frame: of the script.
        outside: loops that do not count: the run began in their body.
    """
    found = set[str]()
    for start, end in _loops_at(frame.f_code, frame.f_lasti):
        if (frame.f_code, start) not in outside:
            found |= _set_first(frame.f_code, start, end)
    return found


def names_set_by_turn(frame: FrameType, outside: Loops, variables: set[str] | None) -> set[str]:
    """Return the names that the running turn of a loop around a place in a frame has set, up to this place.

    What is computed from the number of the next batch (`epoch.batch`) is left out: it is right after a crash, too.

    Args:
        frame: of the script.
        outside: loops that do not count: the run began in their body.
        variables: of a function that the turn has called, which has set them all; else None.
    """
    if variables is not None:
        found = variables | _set_first(frame.f_code, 0, frame.f_lasti)
    else:
        around = loops_around([frame]) - outside
        found = {name for code, start in around for name in _set_first(code, start, frame.f_lasti)}
    return found - names_of_position(frame.f_code)


@functools.lru_cache(maxsize=50)
def names_of_position(code: CodeType) -> frozenset[str]:
    """Return the names that code sets to something that it computes from an attribute `batch`."""
    found, is_read = set[str](), False
    for name, is_store in (access for _, names in _accesses(code) for access in names):
        found |= {name} if is_store and is_read else set()
        is_read = not is_store and (is_read or name.endswith(".batch"))
    return frozenset(found)


def names_set_by_innermost(frame: FrameType) -> frozenset[str]:
    """Return the names that each turn of the innermost loop around a place in a frame sets before it reads them."""
    loops = _loops_at(frame.f_code, frame.f_lasti)
    return _set_first(frame.f_code, *min(loops, key=lambda loop: loop[1])) if loops else frozenset()


def names_read_later(frame: FrameType) -> frozenset[str]:
    """Return the names that a function reads behind the innermost loop around a place in it, before it sets them."""
    return _read_after(frame.f_code, min((end for _, end in _loops_at(frame.f_code, frame.f_lasti)), default=frame.f_lasti))


@functools.lru_cache(maxsize=50)
def _read_after(code: CodeType, end: int) -> frozenset[str]:
    names = [access for one, names in _accesses(code) if one.offset > end for access in names]
    return frozenset(name for name, is_store in names if not is_store) - _set_first(code, end + 1, len(code.co_code))


def names_set_unread(code: CodeType | None) -> set[str]:
    """Return the names of attributes that a method sets and does not read."""
    found: dict[str, set[str]] = {"STORE_ATTR": set(), "LOAD_ATTR": set()}
    for one in _instructions(code) if code is not None else ():
        found.setdefault(one.opname, set()).add(str(one.argval))
    return found["STORE_ATTR"] - found["LOAD_ATTR"]


@functools.lru_cache(maxsize=200)
def _instructions(code: CodeType) -> list[dis.Instruction]:
    return list(dis.get_instructions(code))


def _is_jump(one: dis.Instruction) -> bool:
    return one.opcode in (*dis.hasjrel, *dis.hasjabs) and "SETUP" not in one.opname and "NO_INTERRUPT" not in one.opname


def _loops_at(code: CodeType, at: int) -> list[tuple[int, int]]:
    """Return first and last place of each loop that has a place in its body: where a jump leads back over it."""
    found, heads = dict[int, int](), _heads(code)
    for one in _instructions(code):
        if _is_jump(one) and one.argval <= at <= one.offset:
            start = heads.get(one.argval, one.argval)
            found[start] = max(one.offset, found.get(start, 0))
    return list(found.items())


@functools.lru_cache(maxsize=200)
def _heads(code: CodeType) -> dict[int, int]:
    """Return the place of the instruction to which each EXTENDED_ARG belongs: a jump leads to the latter."""
    found, prefixes = dict[int, int](), list[int]()
    for one in _instructions(code):
        if one.opname == "EXTENDED_ARG":
            prefixes.append(one.offset)
        else:
            found |= dict.fromkeys(prefixes, one.offset)
            prefixes.clear()
    return found


@functools.lru_cache(maxsize=200)
def _set_first(code: CodeType, start: int, end: int) -> frozenset[str]:
    """Return the names that a stretch of code sets on every way before it reads them. A loop in it has a turn.

    Attributes of variables count, too ("self.epoch"), as far as the stretch itself reads and sets them.
    """
    known, found, skipped_until = set[str](), set[str](), 0
    for one, names in _accesses(code):
        if not start <= one.offset <= end:
            continue
        if _is_jump(one) and one.opname != "FOR_ITER" and one.offset < one.argval <= end:
            skipped_until = max(skipped_until, one.argval)
        for name, is_store in names:
            if name not in known and is_store and one.offset >= skipped_until:
                found.add(name)
            known.add(name)
    return frozenset(found)


@functools.lru_cache(maxsize=50)
def _accesses(code: CodeType) -> list[tuple[dis.Instruction, list[tuple[str, bool]]]]:
    """Return the instructions, each with the variables, and attributes of variables, that it reads, or sets (True)."""
    found, read = list[tuple[dis.Instruction, list[tuple[str, bool]]]](), ""  # `read`: the variable that was read last
    for one in _instructions(code):
        names = list[tuple[str, bool]]()
        if one.opname in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"):
            names = [(f"{read}.{one.argval}", one.opname == "STORE_ATTR")] if read else []
        elif any(part in one.opname for part in ("_FAST", "_NAME", "_GLOBAL", "_DEREF")):
            kinds = [part for part in one.opname.split("_") if part in ("LOAD", "STORE", "DELETE")]
            given = one.argval if isinstance(one.argval, tuple) else (one.argval,)
            names = [(name, kind != "LOAD") for name, kind in zip(given, kinds, strict=False) if isinstance(name, str)]
        if one.opname not in ("COPY", "DUP_TOP", "CACHE"):
            read = names[-1][0] if names and not names[-1][1] and "ATTR" not in one.opname else ""
        found.append((one, names))
    return found
