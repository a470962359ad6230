"""Find the variables that a loop carries from one turn to the next, by the flow of values through a function's source.

A variable is carried if a turn may read it before it has written it, and if the loop writes it or changes it in place.
Variables that each turn writes before it reads them (`loss`, `x`, `output`) are not. It is assumed that an inner loop makes a
turn at least: what it writes and what is read after it (the last loss of an epoch) is of the same turn of the outer loop.
What is written and read under the same condition (`if is_due: value = f()` and later `if is_due: print(value)`) is not carried.
Meanwhile its name stands with the condition (`Under`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .conditions import Names, always, assume, condition_of, under, without, without_under
from .source_names import FUNCTIONS, Scope, changes, reads, reads_first, targets, writes

Loop = ast.For | ast.AsyncFor | ast.While

_NOTHING: Names = frozenset()
_TRIES = tuple(getattr(ast, name) for name in ("Try", "TryStar") if hasattr(ast, name))
_JUMPS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
_COMPOUND = (ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Match, *_JUMPS, *_TRIES)
_ROUNDS_MAX = 50  # until the sets of a loop grow no more


class Flow:
    """The flow of values through a function or module, for all of its loops.

    Args:
        scope: the function or module.

    Attributes:
        taken: the variables that it may read before it writes them.
    """

    def __init__(self, scope: Scope) -> None:
        self._places = _first_places(scope)
        flow = _Blocks()
        self.taken = always(flow.block(scope.body, _NOTHING, _Exits()))
        loops = list(_loops_in(scope))
        self._entries = {_place(loop): flow.entries.get(id(loop), _NOTHING) for loop in loops}
        self._carried = {_place(loop): self._entries[_place(loop)] & _touched(loop) for loop in loops}

    def find_taken(self, loop: Loop) -> Names:
        """Return the names that a turn of a loop may read before it writes them."""
        return self._entries[_place(loop)]

    def find_carrier(self, name: str, loops: Sequence[Loop]) -> Loop:
        """Return the first of some loops that carries a variable, or else the first of them."""
        return next((loop for loop in loops if name in self._carried[_place(loop)]), loops[0])

    def is_carried(self, name: str, loop: Loop) -> bool:
        """Return True if a loop carries a variable."""
        return name in self._carried[_place(loop)]

    def find_carried(self, loops: Sequence[Loop]) -> list[str]:
        """Return the names of the variables that loops carry, in the order of the source."""
        found = {name for loop in loops for name in self._carried[_place(loop)]}
        return sorted(found, key=lambda name: (self._places.get(name, (0, 0)), name))


def _place(loop: Loop) -> tuple[int, int]:
    return loop.lineno, loop.col_offset


def _touched(loop: Loop) -> set[str]:
    """Return the variables that a loop writes or changes in place."""
    found = {name for statement in loop.body for name in (*writes(statement), *changes(statement))}
    return found | writes(loop.test) if isinstance(loop, ast.While) else found


def enclosing_loops(scope: Scope, line: int) -> list[Loop]:
    """Return the loops of a function or module that run while a line of it does, the outermost first."""
    found: list[Loop] = []
    for loop in _loops_in(scope):
        last = loop.body[-1].end_lineno
        if last is not None and loop.lineno <= line <= last:
            found.append(loop)
    return found


def _loops_in(node: ast.AST) -> Iterator[Loop]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(child, (ast.For, ast.AsyncFor, ast.While)):
            yield child
        yield from _loops_in(child)


def _first_places(scope: Scope) -> dict[str, tuple[int, int]]:
    """Return the line and column where each name stands first."""
    found: dict[str, tuple[int, int]] = {}
    for node in ast.walk(scope):
        if isinstance(node, (ast.Name, ast.Attribute)):
            place = node.lineno, node.col_offset
            for name in targets(node):
                found[name] = min(place, found.get(name, place))
    return found


@dataclass(frozen=True, slots=True)
class _Exits:
    """The variables that are read after the places to which a block may jump."""

    on_break: Names = _NOTHING
    on_continue: Names = _NOTHING


class _Blocks:
    """Variables that are read later, backwards through a block.

    Attributes:
        entries: by loop, the variables that a turn may take from the turn before it.
    """

    def __init__(self) -> None:
        self.entries: dict[int, Names] = {}
        self._simple: dict[int, tuple[set[str], set[str], set[str]]] = {}  # what a statement reads, writes and changes

    def block(self, statements: Sequence[ast.stmt], after: Names, exits: _Exits) -> Names:
        """Return the variables that may be read from the begin of some statements on, given those that are read after them."""
        for statement in reversed(statements):
            after = self._statement(statement, after, exits)
        return after

    def _statement(self, node: ast.stmt, after: Names, exits: _Exits) -> Names:
        if isinstance(node, ast.If):
            return self._if(node, after, exits)
        if id(node) not in self._simple and not isinstance(node, _COMPOUND):
            self._simple[id(node)] = self._look_at(node)
        if id(node) in self._simple:
            read, written, changed = self._simple[id(node)]
            return without(after, written, changed) | read
        return always(self._compound(node, always(after), exits))

    def _if(self, node: ast.If, after: Names, exits: _Exits) -> Names:
        condition = condition_of(node.test)
        if condition is None:
            either = self.block(node.body, after, exits) | self.block(node.orelse, after, exits)
        else:
            held = self.block(node.body, assume(after, condition), exits)
            touched = {name for part in node.orelse for name in (*writes(part), *changes(part))}
            other = self.block(node.orelse, without_under(after, condition, touched), exits)
            either = other | under(held - other, condition)
        return without(either, writes(node.test), ()) | reads_first(node.test)

    def _compound(self, node: ast.stmt, after: Names, exits: _Exits) -> Names:
        """Pass a statement with blocks, or one that jumps."""
        if isinstance(node, (ast.For, ast.AsyncFor)):
            return self._for(node, after, exits)
        if isinstance(node, ast.While):
            return self._while(node, after, exits)
        if isinstance(node, (ast.With, ast.AsyncWith)):
            inside = always(self.block(node.body, after, exits))
            for item in reversed(node.items):
                written = targets(item.optional_vars) if item.optional_vars is not None else _NOTHING
                inside = (inside - written) | reads(item.context_expr)
            return inside
        if isinstance(node, ast.Match):
            return self._match(node, after, exits)
        if isinstance(node, _TRIES):
            return self._try(node, after, exits)
        if isinstance(node, (ast.Return, ast.Raise)):
            return frozenset(reads(node))
        if isinstance(node, ast.Break):
            return exits.on_break
        return exits.on_continue

    def _look_at(self, node: ast.stmt) -> tuple[set[str], set[str], set[str]]:
        """Return what a statement without blocks reads, what it writes in any case, and what it may change in place."""
        read, written = reads(node), writes(node)
        if isinstance(node, FUNCTIONS):
            written = {node.name}
        elif isinstance(node, ast.AnnAssign) and node.value is None:
            written = set()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            written |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        return read, written, set(changes(node))

    def _for(self, node: ast.For | ast.AsyncFor, after: Names, exits: _Exits) -> Names:
        left = always(self.block(node.orelse, after, exits))
        target, begins = targets(node.target), _NOTHING
        for _ in range(_ROUNDS_MAX):
            asked = left | begins
            now = always(self.block(node.body, asked, _Exits(after, asked))) - target
            if now == begins:
                break
            begins = now
        self.entries[id(node)] = begins
        return begins | reads(node.iter) | (reads(node.target) - target)

    def _while(self, node: ast.While, after: Names, exits: _Exits) -> Names:
        is_endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        left = _NOTHING if is_endless else always(self.block(node.orelse, after, exits))
        begins, test = _NOTHING, frozenset(reads_first(node.test))
        for _ in range(_ROUNDS_MAX):
            asked = test | left | begins
            now = (always(self.block(node.body, asked, _Exits(after, asked))) - writes(node.test)) | test
            if now == begins:
                break
            begins = now
        self.entries[id(node)] = begins
        return begins

    def _try(self, node: ast.stmt, after: Names, exits: _Exits) -> Names:
        """Pass a `try`: each handler may run from its begin on."""
        parts: dict[str, list[ast.stmt]] = {name: getattr(node, name) for name in ("body", "orelse", "finalbody")}
        left = always(self.block(parts["finalbody"], after, exits))
        handled = _NOTHING
        for handler in getattr(node, "handlers", ()):
            handled |= always(self.block(handler.body, left, exits)) - {handler.name} | reads(handler.type)
        return self.block(parts["body"], self.block(parts["orelse"], left, exits), exits) | handled

    def _match(self, node: ast.Match, after: Names, exits: _Exits) -> Names:
        found = (_NOTHING if _is_exhaustive(node) else after) | reads(node.subject)
        for case in node.cases:
            inside = always(self.block(case.body, after, exits)) | reads(case.guard)
            captured = {name for part in ast.walk(case.pattern) if (name := getattr(part, "name", None))}
            found |= inside - captured
        return found


def _is_exhaustive(node: ast.Match) -> bool:
    """Return True if one of the cases always fits: the last one, `case _`."""
    last = node.cases[-1]
    return last.guard is None and isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None
