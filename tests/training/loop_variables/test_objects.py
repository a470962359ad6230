"""Objects in containers, behind a library and made anew; iterators; and containers that each turn leaves empty."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tranlogs.training.loop_variables import (
    LibraryObject,
    LoopVariables,
    UnkeptIterator,
    UnkeptObject,
    UnkeptVariable,
    describe_unkept,
)

KEPT = SimpleNamespace(best=1.0)
MEMORY = SimpleNamespace(rewards=list[int](), seen=list[int](), rest=list[int]())


class Looking:
    """Looks for variables at the boundary of a loop."""

    def __init__(self, *others: LibraryObject) -> None:
        self.variables = LoopVariables(lambda value: False, lambda value: value is KEPT, lambda: others)
        self.found: list[Any] | None = None

    def turns(self, count: int = 3) -> Iterator[int]:
        """Yield turns; what is found is that of the last boundary."""
        for number in range(count):
            yield number
            self.found = self.variables.find()


class Stop:
    """A counter."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, value: float = 0.0) -> bool:
        self.n += 1
        return self.n > 9


class Agent:
    """Rewards of an episode, which its end empties, and those of all episodes."""

    def __init__(self) -> None:
        self.rewards, self.all = list[int](), list[int]()

    def act(self, number: int) -> None:
        """Add a reward."""
        self.rewards.append(number)
        self.all.append(number)

    def finish(self) -> int:
        """End the episode."""
        total = sum(self.rewards)
        del self.rewards[:]
        return total


def in_containers(look: Looking) -> None:
    one, named, pairs, single = [Stop()], {"a": Stop()}, (Stop(), Stop()), [Stop()]
    for number in look.turns():
        [print(end="") for stop in one if stop()]
        for stop in named.values():
            stop(number)
        for _, stop in enumerate(pairs):
            stop()
        single[0](number)


def iterators(look: Looking) -> None:
    def numbers() -> Iterator[int]:
        number = 0
        while True:
            yield number
            number += 1

    def batches(loader: Any) -> Iterator[int]:
        seen = 0
        while True:
            yield id(loader)
            seen += 1

    def stateless() -> Iterator[float]:
        while True:
            yield KEPT.best

    counter, own, of_loader, drawn = itertools.count(1), numbers(), batches(SimpleNamespace()), stateless()
    of_kept = batches(KEPT)
    made = itertools.count()
    for _ in look.turns():
        next(counter), next(own), next(drawn), next(of_loader), next(of_kept)
        made = itertools.count()
        next(made)


def emptied(look: Looking) -> None:
    def finish(rest: list[int]) -> None:
        del MEMORY.rewards[:]
        rest.clear()

    losses, parts, window, rest, agent = [], {}, deque(maxlen=3), [], Agent()
    for number in look.turns():
        for _ in range(2):
            losses.append(number)
            parts[number] = 1
            MEMORY.rewards.append(number)
        window.append(number)
        rest.append(number)
        agent.act(number)
        print(sum(losses), end="")
        losses, window = [], deque(maxlen=3)
        with open("/dev/null"):
            parts.clear()
        agent.finish()
        finish(rest)


def not_emptied(look: Looking) -> None:
    def finish(items: list[int]) -> None:
        if len(items) > 9:
            return
        items.clear()

    some, later, again, rest, full, skipped = [], [], [], [], [1], []
    for number in look.turns():
        some.append(number)
        later.append(number)
        again.append(number)
        rest.append(number)
        full.append(number)
        if number == 1:
            some.clear()
        later = []
        later.append(number)
        del again[1:]
        full.clear()
        finish(rest)
    KEPT.names = [one.name for one in look.found or ()]  # no assert here: with pytest it looks at the variables of the function
    for number in look.turns():
        skipped.append(number)
        if number == 7:
            continue
        skipped.clear()


def made_anew(look: Looking) -> None:
    for _ in range(2):
        stop = Stop()
        for number in look.turns():
            stop(number)


def made_in_a_function(look: Looking) -> None:
    def train() -> None:
        stop = Stop()
        for number in look.turns():
            stop(number)

    for _ in range(2):
        train()


def asked_for(look: Looking) -> None:
    thing = SimpleNamespace()
    for _ in look.turns():
        thing.seen = getattr(thing, "seen", 0) + 1


def closure(look: Looking) -> None:
    def make(start: int) -> tuple[Callable[[], int], Callable[[], int]]:
        n, m = 5, start

        def count() -> int:
            nonlocal n
            n += 1
            return n

        def other() -> int:
            nonlocal m
            m += 1
            return m

        return count, other

    first, second = make(3)
    for _ in look.turns():
        first(), second()


STOP = ("Stop", ("n",))
FOUND: dict[str, tuple[Callable[[Looking], None], list[Any]]] = {
    "in containers": (
        in_containers,
        [
            UnkeptObject("one[0]", *STOP),
            UnkeptObject("named['a']", *STOP),
            UnkeptObject("pairs[0]", *STOP),
            UnkeptObject("pairs[1]", *STOP),
            UnkeptObject("single[0]", *STOP),
        ],
    ),
    "iterators": (iterators, [UnkeptIterator("counter", "itertools.count"), UnkeptIterator("own", "generator")]),
    "emptied": (emptied, [UnkeptObject("agent", "Agent", ("all",))]),
    "not emptied": (not_emptied, [UnkeptVariable("skipped", "[]")]),
    "made anew": (made_anew, [UnkeptObject("stop", *STOP, is_made_anew=True)]),
    "made in a function": (made_in_a_function, [UnkeptObject("stop", *STOP, is_made_anew=True)]),
    "an attribute that is asked for": (asked_for, [UnkeptVariable("thing.seen", "0")]),
    "closures": (closure, [UnkeptVariable("n", "5", "count"), UnkeptVariable("m", "...", "other")]),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_a_loop_reaches(name: str) -> None:
    function, expected = FOUND[name]
    look = Looking()
    function(look)
    assert look.found == expected


def test_what_is_not_empty_at_the_end_of_each_turn_is_named() -> None:
    not_emptied(Looking())
    assert KEPT.names == ["some", "later", "again", "rest", "full"]


class Data:
    """A dataset that counts, caches, and opens what it needs when it is asked."""

    def __init__(self) -> None:
        self.served, self.kept, self.cache, self.rows = 0, 0, dict[int, int](), None

    def __getitem__(self, index: int) -> int:
        self.served += 1
        self._count()
        self.rows = self.rows or 7
        if index not in self.cache:
            self.cache[index] = index
        return self.cache[index]

    def _count(self) -> None:
        self.kept = self.kept + 1


def test_a_dataset_behind_a_loader_is_named_without_its_caches() -> None:
    def train(look: Looking, loader: Any) -> None:
        for number in look.turns():
            loader.dataset[number]

    data = Data()
    loader = SimpleNamespace(dataset=data)
    methods = ("__getitem__", "__iter__")
    look = Looking(LibraryObject(data, methods, loader, ".dataset", "loader1", frozenset(["kept"])))
    train(look, loader)
    assert look.found == [UnkeptObject("loader.dataset", "Data", ("served",))]
    assert LibraryObject(data, methods, loader, ".dataset", "loader1").name_in({"a": data, "b": loader}) == "a"
    assert LibraryObject(data, methods, loader, ".dataset", "loader1").name_in({}) == "loader1.dataset"


def test_the_lines_of_what_no_plain_line_cures() -> None:
    made = [UnkeptObject("meter", "Meter", ("n",), has_state=True, is_made_anew=True)]
    assert describe_unkept(made) == (
        "meter (Meter) starts over at each start: an outer loop makes it anew, and its methods change n. To keep it: make "
        "meter once, with optimizer.track(meter=meter) before recover(), and let the outer loop reset it: a new one is not "
        "what is tracked"
    )
    assert describe_unkept([UnkeptIterator("counter", "itertools.count")]).endswith(
        "To keep it: count in place of next(counter): state = optimizer.remember(counter=0) before recover(), and "
        "state.counter += 1 in the loop"
    )
    assert describe_unkept([UnkeptObject("stops['a b']", "Stop", ("n",), has_state=True)]).endswith(
        "optimizer.track(stops_a_b=stops['a b']) before recover()"
    )
    assert describe_unkept([UnkeptVariable("n", "0", "f")]).endswith(
        "state = optimizer.remember(n=0) before recover(), and state.n in place of n in f()"
    )
    assert describe_unkept([UnkeptVariable("n", "...", "f")]).endswith(
        "remember(n=...) before recover(), with the first value for ..., and state.n in place of n in f()"
    )
