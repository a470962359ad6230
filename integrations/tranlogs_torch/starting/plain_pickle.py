"""A machine for pickles that runs nothing of them: plain values, and named records of classes that were allowed.

It walks the opcodes (`pickletools.genops` only reads them) with a stack of its own. A class is never looked up: its name stands
for a `Record`, of which the pickle may set the state, or for a value that was given for it. The machine calls, imports and
looks up nothing else, so a pickle can make it hold plain values or be refused, and no more. Keys are strings, numbers and
records: hashing a tuple that is nested deeply enough would end the process.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
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

    def run(self, data: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(data):
            name = opcode.name
            if name == "STOP":
                value = self._stack.pop()
                if self._stack:
                    raise Refused("it holds more than one value")
                return value
            self._do(name, argument)
        raise Refused("it does not end")

    def _do(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in ("PROTO", "FRAME"):
            return
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
            stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[name]())
        elif name in _TUPLES:
            stack.append(tuple([stack.pop() for _ in range(_TUPLES[name])][::-1]))
        elif name == "TUPLE":
            stack.append(tuple(self._to_mark()))
        elif name in ("APPEND", "APPENDS"):
            self._append([stack.pop()] if name == "APPEND" else self._to_mark())
        elif name in ("SETITEM", "SETITEMS"):
            self._set([stack.pop(), stack.pop()][::-1] if name == "SETITEM" else self._to_mark())
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        else:
            self._do_object(name, argument)

    def _do_object(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name == "GLOBAL":
            stack.append(self._named(argument.replace(" ", ".", 1)))
        elif name == "STACK_GLOBAL":
            member, module = stack.pop(), stack.pop()
            stack.append(self._named(f"{module}.{member}"))
        elif name in ("NEWOBJ", "REDUCE"):
            arguments, made = stack.pop(), stack.pop()
            if not isinstance(made, _Global) or type(arguments) is not tuple:
                raise Refused("it calls something that is no class of it")
            if any(map(_is_internal, arguments)):
                raise Refused(f"it makes a {made.name} of something that is no plain value")
            stack.append(Record(made.name) if made.make is None else made.make(*arguments))
        elif name == "BUILD":
            state = stack.pop()
            if not isinstance(stack[-1], Record):
                raise Refused("it sets the state of something that is no record")
            stack[-1].state = state
        else:
            raise Refused(f"it uses {name}, which such a pickle does not need")

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


def _is_internal(value: Any) -> bool:
    return value is _MARK or isinstance(value, (Record, _Global))
