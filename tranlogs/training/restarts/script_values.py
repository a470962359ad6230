"""The plain values that a script holds, and where: its frames, the globals of its modules, attributes of its objects.

An object is the script's if its class is, or if it is a plain namespace. Attributes that a library's base class reads or sets
are the library's. What only a library holds (callbacks, data sets) is given by the integration.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import is_
from types import FrameType, FunctionType, MemberDescriptorType, ModuleType, SimpleNamespace
from typing import Any, Literal, NamedTuple

from .plain_values import ATOMS, Look, ReadArray
from .script_frames import (
    Loops,
    is_of_script,
    is_opening,
    loops_around,
    names_read_later,
    names_set_anew,
    names_set_by_innermost,
    names_set_by_turn,
    names_set_unread,
    read_locals,
    script_frames,
    script_modules,
)

_DEPTH_MAX = 5  # of objects within each other
_ITEMS_MAX = 64  # of a container that are looked at for objects
_PLACES_MAX = 10_000  # that one look goes to
_NAMESPACES = (SimpleNamespace, argparse.Namespace)
_PARTS = ("_modules", "_layers")  # of a module of PyTorch, and of a layer of Keras
_CONTAINERS = (list, tuple, deque, dict)
_PLAIN = (*ATOMS, str, bytes)
_STEP = re.compile(r"[.\[<]")  # in a key, from a place to one in it
_Inside = tuple["Place", Any, int, bool]  # as the first fields of a `_Visit`
_ITEM_BYTES = 8  # of an array, that count as an item of a container
VERSION = b"version"  # with which the digest of a module begins


def _nothing() -> Iterable[Any]:
    return ()


@dataclass(frozen=True, slots=True)
class Framework:
    """What an integration knows of values.

    Attributes:
        read_array: see `Look`; None for a tensor that the run keeps.
        read_version: returns what changes when one of a module's tensors does that the run does not keep; b"" if the run keeps
            all of them, and None of anything but a module. It holds in this process only.
        kept: returns objects that the run keeps whole, or that it drives: what is remembered, optimizers, trainers.
        tracked: returns the functions that read the states of tracked objects, each with its object.
        remembered: returns the attributes of the loop's namespace.
        others: returns objects that only a library holds, with a name for each.
        variable: which line keeps a variable; see `Restart.code`.
        thing: which line keeps an object.
    """

    read_array: ReadArray
    kept: Callable[[], Iterable[Any]] = _nothing
    tracked: Callable[[], Iterable[tuple[Any, Callable[[], Any]]]] = _nothing
    remembered: Callable[[], Mapping[str, Any]] = dict
    others: Callable[[], Iterable[tuple[str, Any]]] = _nothing
    variable: str = "remember"
    thing: str = "track"
    read_version: Callable[[Any], bytes | None] = lambda value: None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value lies.

    Attributes:
        key: of this place in this run of the script.
        name: as the script writes it: "best", "stopper.count".
        owner: the object that has it as an attribute ("stopper"); "" if it is a variable, or an attribute of a namespace, a
            class, a module of a network, or of the object whose method runs.
        kind: the class of the owner.
        has_state: True if the owner has `state_dict` and `load_state_dict`.
        tracked: id of the tracked object that is the owner, or to which the owner belongs; 0 if there is none.
        is_module: True if the owner is a module of PyTorch.
        is_direct: True if the owner is the tracked object itself.
    """

    key: str
    name: str
    owner: str = ""
    kind: str = ""
    has_state: bool = False
    tracked: int = 0
    is_module: bool = False
    is_direct: bool = False


class _Visit(NamedTuple):
    """A place that a walk comes to.

    Attributes:
        place: where.
        value: what it holds.
        depth: number of containers and objects around it.
        is_item: True if it is a part of a container, whose digest has it.
        is_in_module: True if it is a part of a module, whose version tells of its tensors.
    """

    place: Place
    value: Any
    depth: int = 0
    is_item: bool = False
    is_in_module: bool = False


@dataclass(slots=True)
class _Walk:
    """One walk over the values, and what it has seen.

    Attributes:
        wanted: digests of the places to look at, by key; None for all.
        entered: keys of the places in which an earlier walk has found values; None for all. A value that has another name since
            is then compared under the name that it had.
        kept: ids of objects that are not looked at.
    """

    framework: Framework
    look: Look
    wanted: Mapping[str, Any] | None
    entered: Container[str] | None
    kept: set[int]
    imported: dict[str, dict[str, Any]] = field(default_factory=dict)  # see `ScriptValues`
    running: set[int] = field(default_factory=set)  # objects whose methods run
    tracked: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    looked_into: set[str] = field(default_factory=set)

    def choose(self, module: str, content: dict[str, Any]) -> dict[str, Any]:
        """Return the globals to look at of a module whose code does not run: a project may have thousands of them.

        Plain ones are copied, and compared by the identity of what they hold. A function without a state has no values.
        """
        copies, chosen = self.imported.setdefault(module, {}), dict[str, Any]()
        for name, value in content.items():
            if self.wanted is not None:
                key = f"{module}:{name}"
                if key in self.wanted or self.entered is None or key in self.entered:
                    chosen[name] = value
            elif type(value) in _PLAIN_TYPES:
                copies[name] = value
            elif _is_short_and_plain(value):
                copies[name] = value.copy()
                self.seen.add(id(value))
            elif not (isinstance(value, FunctionType) and _is_stateless(value)):
                chosen[name] = value
        return chosen

    def values(self, scopes: list[tuple[str, dict[str, Any]]], *, has_others: bool) -> list[tuple[Place, Any, bytes]]:
        """Return the values, each with its place and its digest: those of variables before those within objects.

        Digests of short values are taken first, since the look becomes brief where it has read much.
        """
        self.kept |= {id(one) for one in self.framework.kept() if one is not None}
        self.tracked = {id(one) for one, _ in self.framework.tracked()}
        found = [(Place(f"kept:{name}", f"state.{name}"), value) for name, value in self.framework.remembered().items()]
        others = self.framework.others() if has_others else ()
        variables = [
            (Place(prefix + name, name), value)
            for prefix, scope in scopes
            for name, value in scope.items()
            if not name.startswith("__") and name != "_" and not isinstance(value, ModuleType)
        ]
        waiting = deque(_Visit(place, value) for place, value in variables)
        waiting.extend(_Visit(Place(f"other:{name}", name), value) for name, value in others)
        versions = list[tuple[Place, Any, bytes]]()
        for _ in range(_PLACES_MAX):
            if not waiting:
                break
            visit = waiting.popleft()
            place, value = visit.place, visit.value
            if id(value) in self.kept or (
                isinstance(value, (list, tuple)) and any(id(one) in self.kept for one in value[:_ITEMS_MAX])
            ):
                continue
            if not visit.is_item and not isinstance(value, (FunctionType, type)):
                found.append((place, value))
            if id(value) in self.seen or visit.depth >= _DEPTH_MAX:
                continue
            version = None if visit.is_in_module or place.tracked else self.framework.read_version(value)
            if version:
                kind = type(value).__name__
                tracked = id(value) if id(value) in self.tracked else 0
                named = replace(place, owner=place.name, kind=kind, has_state=True, tracked=tracked)
                versions.append((named, value, VERSION + version))
            if self.entered is None or place.key in self.entered:
                inside = self._inside(place, value, visit.depth + 1)
                waiting += [_Visit(*one, visit.is_in_module or version is not None) for one in inside]
        wanted = [one for one in found if self.wanted is None or one[0].key in self.wanted]
        order = sorted(range(len(wanted)), key=lambda at: _length(wanted[at][1]))
        known = self.wanted or {}
        digests = {at: self.look.digest(wanted[at][1], known.get(wanted[at][0].key)) for at in order}
        plain = [(place, value, digest) for at, (place, value) in enumerate(wanted) if (digest := digests[at]) is not None]
        values = plain + [one for one in versions if self.wanted is None or one[0].key in self.wanted]
        self.looked_into = {place.key[: step.start()] for place, _, _ in values for step in _STEP.finditer(place.key)}
        return values

    def _inside(self, place: Place, value: Any, depth: int) -> Iterator[_Inside]:
        """Yield what lies in a container or an object."""
        if isinstance(value, _CONTAINERS):
            self.seen.add(id(value))
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in list(islice(pairs, _ITEMS_MAX)):
                if not isinstance(item, _PLAIN):
                    name = f"[{key!r}]"
                    yield Place(f"{place.key}{name}", f"{place.name}{name}", tracked=place.tracked), item, depth, True
            return
        if isinstance(value, FunctionType):
            if is_of_script(value.__module__ or ""):
                self.seen.add(id(value))
                cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
                inside = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)} | _defaults_of(value)
                yield from _attributes(inside, depth, lambda name: Place(f"{place.key}<{name}>", name))
                yield from _attributes(vars(value), depth, lambda name: _below(place, name))
            return
        content = _attributes_of(value)
        parts = [part for name in _PARTS for part in _parts(content.get(name))]
        if not _is_own(value) and not parts:
            return
        self.seen.add(id(value))
        tracked = id(value) if id(value) in self.tracked else place.tracked
        kind = value if isinstance(value, type) else type(value)
        is_module = "_modules" in content
        is_variable = not tracked and (
            isinstance(value, (type, *_NAMESPACES)) or is_module or bool(parts) or id(value) in self.running
        )
        has_state = hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")

        def inner(name: str) -> Place:
            if is_variable:
                return _below(place, name)
            below = _below(place, name)
            is_direct = tracked == id(value)
            return Place(below.key, below.name, place.name, kind.__name__, has_state, tracked, is_module, is_direct)

        if _is_own(value):
            ignored = _library_names(kind)
            yield from _attributes({name: one for name, one in content.items() if name not in ignored}, depth, inner)
        for name, part in parts:
            yield _below(place, name), part, depth - 1, False


def _attributes(values: Mapping[str, Any], depth: int, make: Callable[[str], Place]) -> Iterator[_Inside]:
    for name, value in values.items():
        value = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if not name.startswith("__") or isinstance(value, FunctionType):
            yield make(name), value, depth, False


def _length(value: Any) -> int:
    if isinstance(value, (*_CONTAINERS, set, frozenset)):
        return len(value)
    nbytes = getattr(value, "nbytes", 0)  # A module of PyTorch, a mock or a proxy may give anything.
    return nbytes // _ITEM_BYTES if type(nbytes) is int else 0


@dataclass(frozen=True, slots=True)
class ScriptValues:
    """The plain values of a script, at one moment.

    Attributes:
        values: with their places and digests.
        seen: ids of the containers and objects that were looked at.
        looked_into: keys of places in which others with a value lie.
        imported: plain globals of modules whose code does not run, by module and name; of lists and dicts, copies. They have no
            digests: `changed_globals` finds those that hold other objects now.
        names: of the variables of the function that has the loop.
        code: file and first line of that function.
        prefix: with which the keys of its variables begin.
        around: loops of the script around a loop that asks for its first item.
        read_later: names that the function reads behind the loop.
        set_by_turn: names that each turn of the innermost loop around sets before it reads them.
    """

    values: list[tuple[Place, Any, bytes]]
    seen: set[int] = field(default_factory=set)
    looked_into: set[str] = field(default_factory=set)
    imported: dict[str, dict[str, Any]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    code: tuple[str, int] = ("", 0)
    prefix: str = ""
    around: Loops = frozenset()
    read_later: frozenset[str] = frozenset()
    set_by_turn: frozenset[str] = frozenset()


def read_values(
    framework: Framework,
    outside: Loops,
    kept: set[int],
    wanted: Mapping[str, bytes] | None = None,
    entered: Container[str] | None = None,
    *,
    opens: Literal["loop", "pass", ""] = "",
) -> ScriptValues:
    """Return the plain values of the script.

    Args:
        framework: knows what the run keeps.
        outside: loops in whose body the run began, or this loop.
        kept: ids of remembered containers and arrays since the loop was opened; those of now are added.
        wanted: digests of the places to look at, by key; None for all.
        entered: keys of the places into which to look; None for all.
        opens: what opens here. Where a loop opens, names that it sets anew in each turn are left out; if that is not the
            place where it asks for its first item, names that loops around set anew, too. Where a pass over the data opens in
            a loop, only what the running turn of that loop has set is looked at.
    """
    frames, found = script_frames(), list[tuple[Place, Any, bytes]]()
    kept |= {id(one) for one in framework.remembered().values() if not isinstance(one, (*ATOMS, str, bytes))}
    walk = _Walk(framework, Look(framework.read_array, kept), wanted, entered, set(kept))
    if not frames:
        return ScriptValues(found)
    is_first = is_opening(frames[-1])
    scopes, names = list[tuple[str, dict[str, Any]]](), set[str]()
    is_in_turn = False  # of a loop around: a function that it calls sets its variables anew
    left_out = set[str]()  # attributes that the loop sets anew
    for number, frame in enumerate(frames):
        variables = read_locals(frame)
        names = set(variables)
        if frame.f_code.co_argcount and (first := frame.f_code.co_varnames[0]) in variables:
            walk.running.add(id(variables[first]))
        if opens:
            anew = names_set_anew(frame, loops_around([frame]) if is_first else outside)
            if opens == "pass":
                chosen = names_set_by_turn(frame, outside, names if is_in_turn else None)
            else:
                chosen = set[str]() if is_in_turn and not is_first else names
            is_in_turn |= bool(loops_around([frame]) - outside)
            left_out |= {f"{prefix_of(frame, number)}{name}" for name in anew if "." in name}
            attributes = {name: one for name in chosen - anew if "." in name for one in _attribute(variables, name)}
            variables = {name: one for name, one in variables.items() if name in chosen and name not in anew} | attributes
        scopes.insert(0, (prefix_of(frame, number), variables))
    known = {id(frame.f_globals) for frame in frames if frame.f_code.co_name == "<module>"}
    of_frames = [str(frame.f_globals.get("__name__")) for frame in reversed(frames)]
    for module in dict.fromkeys([*of_frames, *script_modules()]):  # the nearest first: what is looked at is bounded
        content = vars(sys.modules[module]) if module in sys.modules and opens != "pass" else {}
        if id(content) not in known:  # the main module has two names
            known.add(id(content))
            scopes.append((f"{module}:", dict(content) if module in of_frames else walk.choose(module, dict(content))))
    if opens != "pass" or is_first:
        found += [one for one in walk.values(scopes, has_others=opens != "pass") if one[0].key not in left_out]
    code, around = frames[-1].f_code, loops_around(frames) if is_first else frozenset()
    at, prefix = (code.co_filename, code.co_firstlineno), prefix_of(frames[-1], len(frames) - 1)
    later, by_turn = names_read_later(frames[-1]), names_set_by_innermost(frames[-1])
    return ScriptValues(found, walk.seen, walk.looked_into, walk.imported, names, at, prefix, around, later, by_turn)


def changed_globals(imported: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[Place, Any]]:
    """Yield the former values of globals that hold other objects now, with their places."""
    for module, former in imported.items():
        content = vars(sys.modules[module]) if module in sys.modules else {}
        for name, value in former.items():
            now = content.get(name, value)
            if now is not value and not _holds_the_same(now, value):
                yield Place(f"{module}:{name}", name), value


_PLAIN_TYPES = frozenset(_PLAIN)


def _is_short_and_plain(value: Any) -> bool:
    if type(value) is dict:
        return len(value) <= _ITEMS_MAX and _PLAIN_TYPES.issuperset(map(type, value.values()))
    return type(value) is list and len(value) <= _ITEMS_MAX and _PLAIN_TYPES.issuperset(map(type, value))


def _holds_the_same(value: Any, former: Any) -> bool:
    if type(value) is not type(former) or type(value) not in (list, dict) or len(value) != len(former):
        return False
    same = all(map(is_, value, former))
    return same and (type(value) is list or all(map(is_, value.values(), former.values())))


def _is_stateless(function: FunctionType) -> bool:
    return not (function.__closure__ or function.__dict__ or _defaults_of(function))


def prefix_of(frame: FrameType, number: int) -> str:
    """Return what the keys of a frame's variables begin with."""
    return f"{frame.f_globals.get('__name__') if frame.f_code.co_name == '<module>' else number}:"


def _below(place: Place, name: str) -> Place:
    return Place(f"{place.key}.{name}", f"{place.name}.{name}", tracked=place.tracked)


def _attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, also those that have slots in classes of the script."""
    slots = _slots_of(type(value))  # type: ignore[arg-type]  # mypy takes the hash of a class for that of its instances
    in_slots = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {**getattr(value, "__dict__", {}), **in_slots}


def _defaults_of(function: FunctionType) -> dict[str, Any]:
    """Return the defaults of a function's arguments that a call may change, by the names of the arguments."""
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    found = dict(zip(names, values, strict=False)) | (function.__kwdefaults__ or {})
    return {name: value for name, value in found.items() if not isinstance(value, (*ATOMS, str, bytes))}


def _is_own(value: Any) -> bool:
    """Return True for an object, or class, of the script's own."""
    if isinstance(value, type):
        return _is_own_class(value)
    kind = type(value)
    has_attributes = hasattr(value, "__dict__") or bool(_slots_of(kind))  # type: ignore[arg-type]
    return kind in _NAMESPACES or (has_attributes and _is_own_class(kind))


@functools.lru_cache(maxsize=500)
def _slots_of(kind: type) -> tuple[str, ...]:
    return tuple(
        name
        for base in kind.__mro__
        if base is not object and is_of_script(base.__module__)
        for name, one in vars(base).items()
        if isinstance(one, MemberDescriptorType)
    )


def _is_own_class(kind: type) -> bool:
    return is_of_script(kind.__module__) and not isinstance(getattr(kind, "__members__", None), Mapping)


def _attribute(variables: dict[str, Any], name: str) -> list[Any]:
    """Return the attribute of a variable, "self.total", if there is one."""
    variable, _, attribute = name.partition(".")
    found = _attributes_of(variables.get(variable))
    return [found[attribute]] if attribute in found else []


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _parts(found: Any) -> list[tuple[str, Any]]:
    if isinstance(found, dict):
        return [(str(name), part) for name, part in found.items() if part is not None]
    return [(getattr(part, "name", str(number)), part) for number, part in enumerate(found)] if isinstance(found, list) else []


@functools.lru_cache(maxsize=500)
def _library_names(kind: type) -> frozenset[str]:
    """Return the names of attributes that library classes which a class stands on read or set, or `set_epoch` sets anew.

    A loop calls `set_epoch` of a data set or sampler in each epoch, as PyTorch's documentation says.
    """
    found = set(names_set_unread(getattr(getattr(kind, "set_epoch", None), "__code__", None)))
    for base in kind.__mro__:
        if base is not object and not is_of_script(base.__module__):
            for value in vars(base).values():
                value = getattr(value, "__func__", getattr(value, "fget", value))
                found |= set(getattr(getattr(value, "__code__", None), "co_names", ()))
    return frozenset(found)
