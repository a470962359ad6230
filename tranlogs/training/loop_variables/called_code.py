"""What the functions and methods of the script that a loop calls keep from turn to turn: attributes, globals and nonlocals."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FunctionType, MemberDescriptorType
from typing import Any

from .assignments import Assignments
from .source_names import changes, declared, name_of, writes
from .sources import Source, Sources

_DEPTH_MAX = 4  # of functions that call each other
_VISITS_MAX = 200
# Classes derived from theirs (modules, schedulers, datasets, metrics) have a place of their own for their state.
_TRAINING = ("accelerate", "ignite", "keras", "lightning", "pytorch_lightning", "transformers")
_ARRAYS = ("jax", "tensorflow", "torch", "torchdata", "torchmetrics")
_FRAMEWORKS = (*_TRAINING, *_ARRAYS, "tranlogs", "tranlogs_keras", "tranlogs_torch")


@dataclass(frozen=True, slots=True)
class Named:
    """A value, with the name that the loop has for it."""

    name: str
    value: Any


Resolve = Callable[[str], Named | None]


@dataclass(slots=True)
class ObjectState:
    """What methods that a loop calls do with the attributes of an object.

    Attributes:
        named: the object.
        changed: attributes that they write or change in place.
        taken: attributes that they read before they write them.
        times: attributes that hold measured times.
    """

    named: Named
    changed: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    times: set[str] = field(default_factory=set)


class CalledCode:
    """Looks at the code of the script that loops call.

    Args:
        sources: the sources of the script.
        is_kept: returns True for an object that comes back after a crash.

    Attributes:
        objects: by `id`, the objects whose methods are called.
        variables: globals and nonlocals that called functions carry from call to call.
        saved: names of the loop, whose values called code stores in an object that comes back.
    """

    def __init__(self, sources: Sources, is_kept: Callable[[Any], bool]) -> None:
        self._sources, self._is_kept = sources, is_kept
        self._visited = set[tuple[int, int]]()
        self.objects: dict[int, ObjectState] = {}
        self.variables: dict[str, Any] = {}
        self.saved: set[str] = set()

    def visit(self, nodes: Sequence[ast.AST], assignments: Assignments, resolve: Resolve, depth: int = 0) -> None:
        """Look at the functions and methods that pieces of code call.

        Args:
            nodes: the pieces.
            assignments: those of the function that they are from.
            resolve: returns the value of a variable ("x") or of an attribute of one ("x.y"); None if it is not known.
            depth: number of calls around them.
        """
        if depth >= _DEPTH_MAX:
            return
        for call in (part for node in nodes for part in ast.walk(node) if isinstance(part, ast.Call)):
            given = [*call.args, *(keyword.value for keyword in call.keywords)]
            if any(assignments.is_measured(value) for value in given):
                continue  # it keeps times
            for function, owner in self._called(call.func, resolve):
                self._enter(function, owner, call, resolve, depth)

    def _called(self, node: ast.expr, resolve: Resolve) -> Iterator[tuple[FunctionType, Named | None]]:
        """Yield the function that is called, with the object whose method it is."""
        called = self._look_up(node, resolve)
        if called is not None and (function := _unwrap(called.value)) is not None:
            yield function, None
        elif called is not None and (function := method_of(called.value, "__call__")) is not None:
            yield function, called
        elif isinstance(node, ast.Attribute):
            owner = self._look_up(node.value, resolve)
            function = None if owner is None else method_of(owner.value, node.attr)
            if function is not None:
                yield function, owner

    def _look_up(self, node: ast.expr, resolve: Resolve) -> Named | None:
        """Return what an expression names; None if it is not known, or a part of what comes back."""
        name = name_of(node)
        root = None if name is None else resolve(name.partition(".")[0])
        return None if name is None or (root is not None and self._is_kept(root.value)) else resolve(name)

    def _enter(self, function: FunctionType, owner: Named | None, call: ast.Call, resolve: Resolve, depth: int) -> None:
        key = id(function.__code__), id(None if owner is None else owner.value)
        if key in self._visited or len(self._visited) >= _VISITS_MAX or (owner is not None and self._is_kept(owner.value)):
            return
        scope = self._sources.scope_of_function(function)
        if scope is None or isinstance(scope, ast.Module):
            return
        self._visited.add(key)
        source = self._sources.source_of(scope)
        bound = _bind(scope.args, owner, call, resolve)
        inside = _resolver(function, bound)
        for name, owners in source.assignments.copies.items():
            root, _, attribute = name.partition(".")
            if root in bound and any(self._is_kept(found.value) for one in owners if (found := inside(one)) is not None):
                self.saved.add(f"{bound[root].name}.{attribute}" if attribute else bound[root].name)
        written = {name for node in scope.body for name in (*writes(node), *changes(node))}
        if owner is not None and not _is_of_framework(owner.value):
            self._add_attributes(owner, f"{next(iter(bound))}.", written, source)
        self._add_variables(scope, written, source, inside)
        self.visit(scope.body, source.assignments, inside, depth + 1)

    def _add_attributes(self, owner: Named, prefix: str, written: set[str], source: Source) -> None:
        """Add what a method does with the attributes of its object."""
        state = self.objects.get(id(owner.value))
        if state is None:
            state = self.objects[id(owner.value)] = ObjectState(owner)
        state.changed |= {name[len(prefix) :] for name in written if name.startswith(prefix)}
        state.taken |= {name[len(prefix) :] for name in source.flow.taken if name.startswith(prefix)}
        assignments = self._assignments_of_class(type(owner.value))
        state.times |= {name for name in state.changed if assignments.is_time(f"{prefix}{name}")}

    def _add_variables(
        self, scope: ast.FunctionDef | ast.AsyncFunctionDef, written: set[str], source: Source, inside: Resolve
    ) -> None:
        """Add what a function carries from call to call in variables outside of it."""
        shared = declared(scope, ast.Global) | declared(scope, ast.Nonlocal)
        for name in sorted(shared & written & source.flow.taken):
            found = inside(name)
            others = [inside(one) for one in source.assignments.relatives(name, scope.lineno)]
            if found is None or source.assignments.is_time(name) or any(one and self._is_kept(one.value) for one in others):
                continue
            self.variables.setdefault(name, found.value)

    def _assignments_of_class(self, kind: type) -> Assignments:
        """Return the assignments of all methods of a class, as if they were one function."""
        body: list[ast.stmt] = []
        clocks = frozenset[str]()
        for base in kind.__mro__:
            for member in vars(base).values():
                function = _unwrap(member)
                scope = None if function is None else self._sources.scope_of_function(function)
                if scope is not None:
                    body += scope.body
                    clocks |= self._sources.source_of(scope).clocks
        return Assignments(ast.Module(body, []), clocks=clocks)


def method_of(value: Any, name: str) -> FunctionType | None:
    """Return the function of a method, by the class of an object; None if there is none in Python."""
    for base in type(value).__mro__:
        if name in vars(base):
            return _unwrap(vars(base)[name])
    return None


def _unwrap(value: Any) -> FunctionType | None:
    """Return the function that a decorated one stands for; None for what is no function."""
    if type(value) is not FunctionType:
        return None
    found = inspect.unwrap(value)
    return found if isinstance(found, FunctionType) else None


def _is_of_framework(value: Any) -> bool:
    return any(str(base.__module__).partition(".")[0] in _FRAMEWORKS for base in type(value).__mro__)


def _bind(arguments: ast.arguments, owner: Named | None, call: ast.Call, resolve: Resolve) -> dict[str, Named]:
    """Return what the parameters of a called function stand for, as far as they are names of the caller."""
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    found = dict[str, Named]()
    if owner is not None:
        found[names.pop(0) if names else ""] = owner
    given: list[tuple[str | None, ast.expr]] = []
    if not any(isinstance(value, ast.Starred) for value in call.args):
        given += zip(names, call.args, strict=False)
    given += [(keyword.arg, keyword.value) for keyword in call.keywords]
    for parameter, value in given:
        name = name_of(value)
        if parameter is not None and name is not None and (named := resolve(name)) is not None:
            found[parameter] = named
    return found


def _resolver(function: FunctionType, bound: dict[str, Named]) -> Resolve:
    """Return what looks up names in a function that is not running."""
    code = function.__code__
    inner = {*code.co_varnames, *code.co_cellvars}
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=False))

    def resolve(name: str) -> Named | None:
        root = name.partition(".")[0]
        if root in bound:
            return attribute_of(bound[root], name)
        if root in cells:
            try:
                return attribute_of(Named(root, cells[root].cell_contents), name)
            except ValueError:  # it has no value yet
                return None
        if root in inner or root not in function.__globals__:
            return None
        return attribute_of(Named(root, function.__globals__[root]), name)

    return resolve


def attribute_of(named: Named, path: str) -> Named | None:
    """Return the attribute that a path such as "x.y" names, without calling code of the script; for "x" the object itself."""
    attribute = path.partition(".")[2]
    if not attribute:
        return named
    values = getattr(named.value, "__dict__", None) if _has_plain_dict(named.value) else None
    if values is not None and attribute in values:
        return Named(f"{named.name}.{attribute}", values[attribute])
    for base in type(named.value).__mro__:
        if isinstance(slot := vars(base).get(attribute), MemberDescriptorType):
            try:
                return Named(f"{named.name}.{attribute}", slot.__get__(named.value))
            except AttributeError:  # it has no value yet
                return None
    return None


def _has_plain_dict(value: Any) -> bool:
    return any("__dict__" in vars(base) for base in type(value).__mro__)
