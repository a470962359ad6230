"""What called functions and methods of the script keep from turn to turn."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tranlogs.training.loop_variables import LoopVariables, UnkeptObject, UnkeptVariable

KEPT = SimpleNamespace(best=1.0)
COUNT, STEPS, SPENT = 0, 0, 0.0


class Kept:
    """A class whose objects come back."""


class Looking:
    """Looks for variables at the boundary of a loop."""

    def __init__(self) -> None:
        self.variables = LoopVariables(lambda value: False, lambda value: value is KEPT or isinstance(value, Kept))
        self.found: list[UnkeptObject | UnkeptVariable] | None = None

    def turns(self, count: int = 3) -> Iterator[int]:
        """Yield turns; what is found is that of the last boundary."""
        for number in range(count):
            yield number
            self.found = self.variables.find()


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Base:
    """A class with a counter."""

    def __init__(self) -> None:
        self.patience, self.best, self.counter, self.is_over, self.curve = 3, 9.0, 0, False, list[float]()

    def count(self) -> None:
        """Count on."""
        self.counter += 1
        self.curve.append(self.counter)


class Stopper(Base):
    """Early stopping, as many scripts have it."""

    @traced
    def __call__(self, loss: float) -> None:
        if loss < self.best:
            self.best = loss
        else:
            self.count()
            self.is_over = self.counter >= self.patience


class Meter:
    """A running mean. It has a state."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.total, self.lock = 0.0, threading.Lock()

    def update(self, value: float) -> None:
        """Add a value."""
        self.last = value
        self.total += self.last

    def mean(self) -> float:
        """Compute."""
        return self.total / 2

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


class KeptMeter(Meter, Kept):
    """One that comes back."""


class Timer:
    """A stopwatch."""

    def __init__(self) -> None:
        self.start, self.spent = time.time(), 0.0

    def lap(self) -> None:
        """Add the time since the last lap."""
        self.spent += time.time() - self.start
        self.start = time.time()


@dataclass(slots=True)
class Count:
    """A number in a slot."""

    number: int = 0
    unset: int = field(init=False)

    def add(self) -> None:
        """Count on."""
        self.number += 1


def class_of_the_script(look: Looking) -> None:
    stopper, parts, count = Stopper(), SimpleNamespace(meter=Meter()), Count()
    for number in look.turns():
        stopper(number)
        parts.meter.update(number)
        count.add()
        if stopper.is_over:
            break


def handed_over(look: Looking) -> None:
    def train(value: float, meter: Meter, *, stop: Stopper) -> None:
        add(meter, value)
        stop.count()

    def add(meter: Meter, value: float) -> None:
        meter.update(value)

    mean, stopper = Meter(), Stopper()
    for number in look.turns():
        train(number, mean, stop=stopper)


def harmless(look: Looking) -> None:
    """Kept, made anew, only read, or measured."""
    kept, old, timer, spent, event = KeptMeter(), Meter(), Timer(), Meter(), threading.Event()
    state = KEPT
    state.meter = Meter()
    alias = state.meter
    for number in look.turns():
        new = Meter()
        new.update(number)
        kept.update(old.mean())
        state.meter.update(number)
        alias.update(number)
        start = time.time()
        timer.lap()
        spent.update(time.time() - start)
        event.set()


def saved(look: Looking) -> None:
    """Stored by a function in what the run keeps."""

    def save(value: int) -> None:
        KEPT.value = value

    total = other = third = 0
    for number in look.turns():
        total += number
        other += number
        third += number
        save(total)
        KEPT.parts = {}
        KEPT.parts["other"] = other
        setattr(KEPT, "third", third)  # noqa: B010


def functions(look: Looking) -> None:
    calls = 0

    def step() -> None:
        global COUNT, STEPS, SPENT
        nonlocal calls
        COUNT += 1
        STEPS = 7
        SPENT += time.time() - SPENT
        calls = calls + 1

    for _ in look.turns():
        step()


class Trainer:
    """An object whose method has the loop."""

    def __init__(self) -> None:
        self.n, self.loss, self.meter, self.saved = 0, 0.0, Meter(), 0

    def step(self, number: int) -> None:
        """Count, and keep a number."""
        self.n += 1
        self.loss = number / self.n
        self.meter.update(self.loss)
        self.saved += 1
        KEPT.saved = self.saved

    def fit(self, look: Looking) -> None:
        """Iterate."""
        for number in look.turns():
            self.step(number)


FOUND: dict[str, tuple[Callable[[Looking], None], list[UnkeptObject | UnkeptVariable]]] = {
    "classes": (
        class_of_the_script,
        [
            UnkeptObject("stopper", "Stopper", ("best", "counter", "curve")),
            UnkeptObject("parts.meter", "Meter", ("total",), has_state=True),
            UnkeptObject("count", "Count", ("number",)),
        ],
    ),
    "objects that are handed over": (
        handed_over,
        [
            UnkeptObject("mean", "Meter", ("total",), has_state=True),
            UnkeptObject("stopper", "Stopper", ("counter", "curve")),
        ],
    ),
    "harmless objects": (harmless, []),
    "variables that a function saves": (saved, []),
    "functions": (functions, [UnkeptVariable("COUNT", "0", "step"), UnkeptVariable("calls", "0", "step")]),
    "methods": (
        lambda look: Trainer().fit(look),
        [UnkeptVariable("self.n"), UnkeptObject("self.meter", "Meter", ("total",), has_state=True)],
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_called_code_keeps(name: str) -> None:
    function, expected = FOUND[name]
    look = Looking()
    function(look)
    assert look.found == expected


class Strange:
    """An object that answers nothing."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __call__(self, value: Any) -> None:
        self(value) if value is None else None


def test_strange_callables_are_passed_over() -> None:
    look, strange = Looking(), Strange()
    calls: list[Any] = [strange, functools.partial(print, end=""), functools.lru_cache(len), int, "x".join]
    one, two, three, four, five = calls
    for _ in look.turns():
        one(1), two(), three("x"), four(), five([])
    assert look.found == []


def test_an_error_in_called_code_hides_no_variable_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(look: Looking) -> None:
        total = 0
        for number in look.turns():
            total += number

    look = Looking()
    monkeypatch.setattr("tranlogs.training.loop_variables.called_code.CalledCode.visit", lambda *_: 1 / 0)
    counted(look)
    assert look.found == [UnkeptVariable("total", "0")]
