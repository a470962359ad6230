"""Attributes, globals and nonlocals that the functions called by a loop keep from turn to turn."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from .assignments import Assignments
from .emptied import CallEffects, emptied_by_function
from .objects.elements import find_elements, item_of, views
from .objects.iterators import iterator_of
from .objects.named import Named, Resolve, attribute_of
from .source_names import Function, changes, counts, declared, name_of, writes
from .sources import Source, Sources

_DEPTH_MAX = 4  # of functions that call each other
_VISITS_MAX = 200
# Classes derived from theirs (modules, schedulers, datasets, metrics) have a place of their own for their state.
_TRAINING = ("accelerate", "ignite", "keras", "lightning", "pytorch_lightning", "transformers")
_ARRAYS = ("jax", "tensorflow", "torch", "torchdata", "torchmetrics")
_FRAMEWORKS = (*_TRAINING, *_ARRAYS, "tranlogs", "tranlogs_keras", "tranlogs_torch")


@dataclass(slots=True)
class ObjectState:
    """Use of an object's attributes by the methods that a loop calls.

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


@dataclass(frozen=True, slots=True)
class SharedVariable:
    """A variable outside of a function that carries it from call to call.

    Attributes:
        value: what it is now.
        within: the name of the function.
        begins_with: what it begins with, as the source has it; None if that is not simple. "..." if it has no name outside.
    """

    value: Any
    within: str
    begins_with: str | None


class CalledCode:
    """Looks at the code of the script that loops call.

    Args:
        sources: the sources of the script.
        is_kept: returns True for an object that comes back after a crash.

    Attributes:
        objects: by `id`, the objects whose methods are called.
        variables: globals and nonlocals that called functions carry from call to call.
        iterators: objects from which `next` takes a value, by `id`.
        saved: names of the loop, whose values called code stores in an object that comes back.
        effects: what calls do to containers.
    """

    def __init__(self, sources: Sources, is_kept: Callable[[Any], bool]) -> None:
        self._sources, self._is_kept = sources, is_kept
        self._visited = set[tuple[int, int]]()
        self.objects: dict[int, ObjectState] = {}
        self.variables: dict[str, SharedVariable] = {}
        self.iterators: dict[int, Named] = {}
        self.saved: set[str] = set()
        self.effects: dict[int, CallEffects] = {}
        self._through_library = set[int]()  # objects whose methods a library calls, by `id`

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
        elements = find_elements(nodes, lambda node: self._look_up(node, resolve))
        for call in (part for node in nodes for part in ast.walk(node) if isinstance(part, ast.Call)):
            given = [*call.args, *(keyword.value for keyword in call.keywords)]
            if any(assignments.is_measured(value) for value in given):
                continue  # it keeps times
            for view in views(call, elements, resolve):
                self._add_iterator(call, view)
                for function, owner in self._called(call.func, view):
                    self._enter(function, owner, call, view, depth)

    def visit_methods(self, owner: Named, methods: Sequence[str]) -> None:
        """Look at methods of an object that a library calls for the loop: those of a dataset."""
        self._through_library.add(id(owner.value))
        for method in methods:
            function = method_of(owner.value, method)
            if function is not None:
                call = ast.Call(ast.Name(method, ast.Load()), [], [])
                self._enter(function, owner, call, lambda name: None, 0)

    def is_through_library(self, value: Any) -> bool:
        """Return True for an object whose methods a library calls."""
        return id(value) in self._through_library

    def _add_iterator(self, call: ast.Call, resolve: Resolve) -> None:
        node = iterator_of(call)
        named = None if node is None else self._look_up(node, resolve)
        if named is not None:
            self.iterators.setdefault(id(named.value), named)

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
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            held = self._look_up(node.value, resolve)
            return None if held is None else item_of(held, node.slice.value)
        name = name_of(node)
        root = None if name is None else resolve(name.partition(".")[0])
        return None if name is None or (root is not None and self._is_kept(root.value)) else resolve(name)

    def _enter(self, function: FunctionType, owner: Named | None, call: ast.Call, resolve: Resolve, depth: int) -> None:
        if owner is not None and self._is_kept(owner.value):
            return
        scope = self._sources.scope_of_function(function)
        if scope is None or isinstance(scope, ast.Module):
            return
        bound = _bind(scope.args, owner, call, resolve)
        inside = _resolver(function, bound)
        key = id(function.__code__), id(None if owner is None else owner.value)
        if key not in self._visited and len(self._visited) < _VISITS_MAX:
            self._visited.add(key)
            self._look_at(scope, owner, bound, inside, depth)
        self.effects[id(call)] = self._effects_of(scope, inside)

    def _effects_of(self, scope: Function, inside: Resolve) -> CallEffects:
        """Return what a function does to containers, by the names that the loop has for them."""

        def translated(names: Iterable[str]) -> frozenset[str]:
            roots = [(inside(name.partition(".")[0]), name.partition(".")) for name in names]
            return frozenset(named.name + dot + attribute for named, (_, dot, attribute) in roots if named is not None)

        touched = translated({name for node in scope.body for name in (*writes(node), *changes(node))})
        calls = [self.effects[id(part)] for part in ast.walk(scope) if id(part) in self.effects]
        inner = frozenset[str]().union(*(one.touched for one in calls))
        return CallEffects(translated(emptied_by_function(scope)) - inner, touched | inner)

    def _look_at(self, scope: Function, owner: Named | None, bound: dict[str, Named], inside: Resolve, depth: int) -> None:
        """Look at a function that is called: what it does to its object and to variables outside of it, and what it calls."""
        source = self._sources.source_of(scope)
        for name, owners in source.assignments.copies.items():
            root, _, attribute = name.partition(".")
            if root in bound and any(self._is_kept(found.value) for one in owners if (found := inside(one)) is not None):
                self.saved.add(f"{bound[root].name}.{attribute}" if attribute else bound[root].name)
        written = {name for node in scope.body for name in (*writes(node), *changes(node))}
        if owner is not None and self.is_through_library(owner.value):  # no caches, and nothing that is made when asked for
            written = {name for node in scope.body for name in counts(node)}
            self._add_attributes(owner, f"{next(iter(bound))}.", written, source)
        elif owner is not None and not _is_of_framework(owner.value):
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

    def _add_variables(self, scope: Function, written: set[str], source: Source, inside: Resolve) -> None:
        """Add what a function carries from call to call in variables outside of it."""
        shared = declared(scope, ast.Global) | declared(scope, ast.Nonlocal)
        for name in sorted(shared & written & source.flow.taken):
            found = inside(name)
            others = [inside(one) for one in source.assignments.relatives(name, scope.lineno)]
            if found is None or source.assignments.is_time(name) or any(one and self._is_kept(one.value) for one in others):
                continue
            begins_with = self._begin_of(name, scope, is_local=name in declared(scope, ast.Nonlocal))
            self.variables.setdefault(name, SharedVariable(found.value, scope.name, begins_with))

    def _begin_of(self, name: str, scope: Function, *, is_local: bool) -> str | None:
        """Return what a variable outside of a function begins with; see `SharedVariable`."""
        around = self._sources.scopes_around(scope)
        for outer in around[:-1] if is_local else around[-1:]:
            begins_with = self._sources.source_of(outer).assignments.begins_with(name, scope.lineno)
            if begins_with is not None:
                return begins_with
        return "..." if is_local else None

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
