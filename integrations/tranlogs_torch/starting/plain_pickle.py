"""A machine for pickles that runs nothing of them: plain values, and named records of classes that were allowed.

It walks the opcodes (`pickletools.genops` only reads them) with a stack of its own. A class is never looked up: its name stands
for a `Record`, of which the pickle may set the state, or for a value that was given for it. The machine calls, imports and
looks up nothing else, so a pickle can make it hold plain values or be refused, and no more. Keys are strings, numbers and
records: hashing a tuple that is nested deeply enough would end the process.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = frozenset(["BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
                     "SHORT_BINBYTES", "BINBYTES"])  # fmt: skip
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


class Refused(ValueError):
    """The pickle holds what is not taken, or is damaged; the text says what."""


class Record:
    """What stands for an instance of an allowed class: `state` is what the pickle set."""

    __slots__ = ("name", "state")

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: Any = None

    def __getattr__(self, name: str) -> Any:
        if isinstance(self.state, dict) and name in self.state:
            return self.state[name]
        raise AttributeError(name)


class _Global:
    """A name that was allowed: a class of records, or what makes a value of plain arguments."""

    __slots__ = ("make", "name")

    def __init__(self, name: str, make: Callable[..., Any] | None) -> None:
        self.name, self.make = name, make


def read_pickle(data: bytes, records: frozenset[str], values: Mapping[str, Any],
                makers: Mapping[str, Callable[..., Any]]) -> Any:  # fmt: skip
    """The value of a pickle.

    Args:
        data: the pickle.
        records: names ("module.Class") of which instances become `Record`s.
        values: names that stand for a value.
        makers: names that are called, with plain arguments, by functions of ours.

    Raises:
        Refused: it names something else, uses what such a pickle does not need, or is damaged.
    """
    try:
        return _Machine(records, values, makers).run(data)
    except Refused:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, MemoryError) as error:
        raise Refused(f"it is damaged, or no pickle of this kind ({type(error).__name__}: {error})") from None


class _Machine:
    def __init__(self, records: frozenset[str], values: Mapping[str, Any], makers: Mapping[str, Callable[..., Any]]) -> None:
        self._records, self._values, self._makers = records, values, makers
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        push, memo = self._stack.append, self._memo
        self._does: dict[str, Callable[[Any], None]] = {
            **dict.fromkeys(_VALUES, push), **{name: partial(_push, push, value) for name, value in _CONSTANTS.items()},
            **{name: partial(self._tuple, count) for name, count in _TUPLES.items()},
            "PROTO": _nothing, "FRAME": _nothing, "MARK": partial(_push, push, _MARK),
            "EMPTY_DICT": lambda _: push({}), "EMPTY_LIST": lambda _: push([]), "EMPTY_TUPLE": lambda _: push(()),
            "TUPLE": lambda _: push(tuple(self._to_mark())), "MEMOIZE": self._memoize,
            "BINPUT": self._put, "LONG_BINPUT": self._put,
            "BINGET": lambda argument: push(memo[argument]), "LONG_BINGET": lambda argument: push(memo[argument]),
            "APPEND": lambda _: self._append([self._stack.pop()]), "APPENDS": lambda _: self._append(self._to_mark()),
            "SETITEM": lambda _: self._set([self._stack.pop(), self._stack.pop()][::-1]),
            "SETITEMS": lambda _: self._set(self._to_mark()),
            "GLOBAL": lambda argument: push(self._named(argument.replace(" ", ".", 1))), "STACK_GLOBAL": self._stack_global,
            "NEWOBJ": self._make, "REDUCE": self._make, "BUILD": self._build,
        }  # fmt: skip

    def run(self, data: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(data):
            name = opcode.name
            if name == "STOP":
                value = self._stack.pop()
                if self._stack:
                    raise Refused("it holds more than one value")
                return value
            if name not in self._does:
                raise Refused(f"it uses {name}, which such a pickle does not need")
            self._does[name](argument)
        raise Refused("it does not end")

    def _memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _put(self, argument: Any) -> None:
        self._memo[argument] = self._stack[-1]

    def _tuple(self, count: int, _: Any) -> None:
        items = tuple(self._stack[-count:])
        if len(items) < count:
            raise Refused("it is damaged: a tuple of nothing")
        self._stack[-count:] = [items]

    def _stack_global(self, _: Any) -> None:
        member, module = self._stack.pop(), self._stack.pop()
        self._stack.append(self._named(f"{module}.{member}"))

    def _make(self, _: Any) -> None:
        arguments, made = self._stack.pop(), self._stack.pop()
        if not isinstance(made, _Global) or type(arguments) is not tuple:
            raise Refused("it calls something that is no class of it")
        if any(map(_is_internal, arguments)):
            raise Refused(f"it makes a {made.name} of something that is no plain value")
        self._stack.append(Record(made.name) if made.make is None else made.make(*arguments))

    def _build(self, _: Any) -> None:
        state = self._stack.pop()
        if not isinstance(self._stack[-1], Record):
            raise Refused("it sets the state of something that is no record")
        self._stack[-1].state = state

    def _named(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        if name in self._records or name in self._makers:
            return _Global(name, self._makers.get(name))
        raise Refused(f"it names {name}, which such a pickle does not need")

    def _to_mark(self) -> list[Any]:
        items = []
        while (item := self._stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def _append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise Refused("it appends to something that is no list")
        target += items

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise Refused("it sets items of something that is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, (str, int, Record)):
                raise Refused(f"a key is a {type(key).__name__}")
            target[key] = value


def _nothing(_: Any) -> None:
    """What says nothing of the value."""


def _push(push: Callable[[Any], None], value: Any, _: Any) -> None:
    push(value)


def _is_internal(value: Any) -> bool:
    return value is _MARK or isinstance(value, (Record, _Global))
