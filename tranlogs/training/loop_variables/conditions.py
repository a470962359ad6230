"""Names that are read under a condition only.

In a set of names, one that is read where a condition holds stands as a text of its name and the condition. If the condition may
have changed in between, the name stands alone again: it is then read in any case, as far as is known.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import dataclass

from .source_names import reads

Names = frozenset[str]

_BETWEEN = "\0"  # a name and its condition, and the names of which the condition consists
_NAMES = (ast.Name, ast.Attribute, ast.Constant, ast.Load)
_OPERATIONS = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
_SIMPLE = (*_NAMES, *_OPERATIONS)  # what always has the same value, as long as the names have


@dataclass(frozen=True, slots=True)
class Condition:
    """A test that has the same outcome as long as no name of it is written.

    Attributes:
        text: its source.
        names: names that it reads.
    """

    text: str
    names: Names


def condition_of(test: ast.expr) -> Condition | None:
    """Return a test as a condition; None if its outcome depends on more than the names in it."""
    if all(isinstance(node, _SIMPLE) for node in ast.walk(test)):
        return Condition(ast.unparse(test), frozenset(reads(test)))
    return None


def under(names: Names, condition: Condition) -> Names:
    """Return names that are read where a condition holds. Those that stand under another one keep that."""
    end = _BETWEEN.join(("", condition.text, *sorted(condition.names)))
    return frozenset(name if _BETWEEN in name else name + end for name in names)


def always(names: Names) -> Names:
    """Return names without their conditions."""
    return frozenset(name.partition(_BETWEEN)[0] for name in names)


def assume(names: Names, condition: Condition) -> Names:
    """Return names where a condition holds: what stands under it is read."""
    return frozenset(name.partition(_BETWEEN)[0] if _is_under(name, condition) else name for name in names)


def without_under(names: Names, condition: Condition, touched: Collection[str]) -> Names:
    """Return names where a condition does not hold: what stands under it is not read, unless the condition is touched later."""
    if not condition.names.isdisjoint(touched):
        return assume(names, condition)
    return frozenset(name for name in names if not _is_under(name, condition))


def without(names: Names, written: Collection[str], changed: Collection[str]) -> Names:
    """Return the names that are read before a statement that writes some and changes some in place."""
    found = set[str]()
    for text in names:
        name, *condition = text.split(_BETWEEN)
        if name not in written:
            is_touched = any(one in written or one in changed for one in condition[1:])
            found.add(name if is_touched else text)
    return frozenset(found)


def _is_under(name: str, condition: Condition) -> bool:
    return name.split(_BETWEEN)[1:2] == [condition.text]
