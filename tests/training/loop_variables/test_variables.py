"""Variables of running loops: found in the frames of the script, and never in the way of its training."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tranlogs.training import LoopState
from tranlogs.training.loop_variables import LoopVariables, UnkeptObject, UnkeptVariable

KEPT = SimpleNamespace(best=1.0)
CALLS = 0


class Value:
    """A value of a framework."""


class Looking:
    """Looks for variables at the boundary of a loop."""

    def __init__(self) -> None:
        self.variables = LoopVariables(lambda value: isinstance(value, Value), lambda value: value is KEPT)
        self.found: list[UnkeptObject | UnkeptVariable] | None = None

    def turns(self, count: int = 3) -> Iterator[int]:
        """Yield turns; what is found is that of the last boundary."""
        for number in range(count):
            yield number
            self.found = self.variables.find()

    @property
    def names(self) -> list[str] | None:
        """The names that were found."""
        return None if self.found is None else [one.name for one in self.found]


def plain_values(look: Looking) -> None:
    best, bad, losses, hidden = float("inf"), 0, [], Value()
    for number in look.turns():
        loss = 0.5 * number
        bad = 0 if loss < best else bad + 1
        best = min(best, loss)
        losses.append(loss)
        hidden = Value() if hidden else None


def test_plain_values_are_named_with_what_they_begin_with() -> None:
    look = Looking()
    plain_values(look)
    assert look.found == [
        UnkeptVariable("best", 'float("inf")'),
        UnkeptVariable("bad", "0"),
        UnkeptVariable("losses", "[]"),
        UnkeptVariable("hidden"),
    ]


def kept_values(look: Looking) -> None:
    state = LoopState(None, print).namespace  # type: ignore[arg-type]
    kept, thing, objects, data = KEPT, object(), [], iter(range(9))
    best, copied = KEPT.best, 0
    for _ in look.turns():
        best = max(best, kept.best)
        kept.best += 1.0
        thing = object() if thing else None or object()
        objects.append(thing)
        copied += next(data)
        state.copied = copied


def test_objects_and_what_the_run_keeps_are_not_named() -> None:
    look = Looking()
    kept_values(look)
    assert look.names == []


def nested_loops(look: Looking) -> None:
    def train(epoch: int) -> float:
        total = 0.0
        for number in look.turns():
            total += number
        return total + epoch

    outcomes = []
    for _ in range(2):
        look.variables.note_start()
        best, text = 0.0, ""
        for epoch in range(2):
            best = max(best, train(epoch))
            text += "."
        outcomes.append(best)


def test_the_loops_of_all_frames_are_looked_at_but_those_around_the_run() -> None:
    look = Looking()
    nested_loops(look)
    assert look.names == ["best", "text", "total"]


class Trainer:
    """An object with a loop."""

    def __init__(self) -> None:
        self.best, self.last, self.parts, self.model = 0.0, 0.0, {"a": np.zeros(2)}, object()

    def run(self, look: Looking) -> None:
        """Iterate."""
        for number in look.turns():
            self.last = float(number)
            self.best = max(self.best, self.last)
            self.parts["b"] = self.parts["a"] + 1
            self.model = self.model or object()


def test_attributes_of_the_object_whose_method_iterates() -> None:
    look = Looking()
    Trainer().run(look)
    assert look.names == ["self.best", "self.parts"]


def test_a_variable_of_the_module() -> None:
    def train(look: Looking) -> None:
        global CALLS
        for _ in look.turns():
            CALLS += 1

    look = Looking()
    train(look)
    assert look.names == ["CALLS"]


def values_that_die(look: Looking) -> list[Any]:
    seen, total = [], 0.0
    for number in look.turns():
        value = Value()
        seen.append(weakref.ref(value))
        total += number
    del value
    return [one() for one in seen]


def test_no_value_is_kept_alive() -> None:
    look = Looking()
    assert values_that_die(look) == [None] * 3
    assert look.names == ["total"]


def looking_at_itself(look: Looking) -> Any:
    total = 0.0
    settings = locals()
    for number in look.turns():
        total += number
    return settings


def test_a_function_that_looks_at_its_own_variables_is_left_alone() -> None:
    look = Looking()
    assert looking_at_itself(look)["total"] == 0.0
    assert look.names in ([], ["total"])  # newer Pythons give each `locals()` a copy of its own


@pytest.mark.parametrize(
    "source",
    [
        "n = 0\nfor _ in look.turns():\n    n += 1\n",
        "def train():\n    n = 0\n    for _ in look.turns():\n        n += 1\ntrain()\n",
        "list(look.turns())",
        "(lambda: [_ for _ in look.turns()])()",
    ],
)
def test_code_without_a_source_names_nothing(source: str) -> None:
    look = Looking()
    exec(compile(source, "<made up>", "exec"), {"look": look})
    assert not look.found


def test_a_file_that_was_changed_since_is_not_read(tmp_path: Path) -> None:
    look, file = Looking(), tmp_path / "script.py"
    file.write_text("n = 0\nfor _ in look.turns():\n    n += 1\n")
    code = compile(file.read_text(), str(file), "exec")
    os.utime(file, (1, 1))
    exec(code, {"look": look})
    assert look.names == ["n"]
    os.utime(file)
    exec(code, {"look": look})
    assert look.names == []


def test_no_error_reaches_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Looking()
    monkeypatch.setattr("tranlogs.training.loop_variables.carried_variables.enclosing_loops", lambda scope, line: 1 / 0)
    look.variables.note_start()
    assert sum(look.turns()) == 3
    assert look.names is None


class Large(list[int]):
    """A list that cannot be copied as a whole."""

    def __iter__(self) -> Iterator[int]:
        for number, one in enumerate(super().__iter__()):
            assert number < 8, "all items were looked at"
            yield one


def growing(look: Looking) -> None:
    items = Large(range(100))
    for number in look.turns():
        items.append(number)


def test_of_a_container_some_items_are_looked_at() -> None:
    look = Looking()
    growing(look)
    assert look.names == ["items"]
