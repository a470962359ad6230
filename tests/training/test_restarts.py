"""What starts over at each start: which values of a script are named, and the digests that tell."""

from __future__ import annotations

import importlib
import itertools
import math
import random
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranlogs.training import Framework, LiveReport, Restarts
from tranlogs.training.restarts.plain_values import LOOK_ITEMS_MAX, Look, write_first

FRAMEWORK = Framework(lambda value: None)


class Loop:
    """A run with nothing but boundaries."""

    def __init__(
        self, run: Path, framework: Framework = FRAMEWORK, recorded: Any = None, number: int = 0, is_logged: bool = True
    ) -> None:
        self.report = LiveReport(run)
        self._restarts, self._number, self._is_logged = Restarts(self.report, framework), number, is_logged
        self._restarts.note_start()
        self._restarts.resume(recorded)

    def turns(self, count: int = 4) -> Iterator[int]:
        """Yield turns, with a boundary after each."""
        self._restarts.open(self._number, is_logged=self._is_logged)
        for turn in range(count):
            yield turn
            if turn == count - 1:
                self._restarts.note_end(of_loop=True)
            self._restarts.look()
        assert not count or turn + 1 == count, "the name is read behind the loop"
        self._restarts.leave()

    def close(self) -> None:
        self._restarts.close()

    @property
    def named(self) -> list[str]:
        report = self.report.current
        return [] if report is None else [one.name for one in report.restarts]

    @property
    def recorded(self) -> Any:
        return None if self._restarts.recorded is None else self._restarts.recorded.value

    @property
    def unset(self) -> str:
        return self._restarts.unset


def counted(loop: Loop) -> None:
    n, best = 0, math.inf
    for turn in loop.turns():
        n = n + 1 + len(loop.named)
        if -turn < best:
            best = -turn


def set_by_a_long_body(loop: Loop) -> None:
    """A jump back over many instructions leads to a prefix of the instruction that asks for the next item."""
    before, body = ("\n".join(f"{space}name_{n} = {value}" for n in range(400)) for space, value in ((" ", 0), ("  ", "turn")))
    namespace: dict[str, Any] = {}
    exec(f"def script(loop):\n{before}\n for turn in loop.turns():\n{body}\n", namespace)
    namespace["script"](loop)


def set_by_an_outer_loop(loop: Loop) -> None:
    for _ in range(2):
        total = 0
        for turn in loop.turns():
            total += turn


def of_a_function_that_an_outer_loop_calls(loop: Loop) -> None:
    def train(loop: Loop) -> int:
        total = 0
        for turn in loop.turns():
            total += turn
        return total

    for _ in range(2):
        train(loop)


def set_on_some_ways(loop: Loop) -> None:
    at = -1
    for turn in loop.turns():
        if turn % 2:
            at = turn
    print(at)


SCENARIOS: dict[Callable[[Loop], None], list[str]] = {
    counted: ["n", "best"],
    set_by_a_long_body: [],
    set_by_an_outer_loop: [],
    of_a_function_that_an_outer_loop_calls: [],
    set_on_some_ways: ["at"],
}


@pytest.mark.parametrize("script", SCENARIOS, ids=lambda script: script.__name__)
def test_what_existed_before_the_loop_and_has_changed_is_named(script: Callable[[Loop], None], tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    script(loop)
    assert sorted(loop.named) == sorted(SCENARIOS[script])


def test_a_project_of_many_modules_costs_a_look_nothing_and_what_changes_in_them_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"number_{n} = {n}.5\ntext_{n} = 'a'\nitems_{n} = [1, 2]\nnames_{n} = {{'a': 1}}" for n in range(25)]
    lines += [f"def function_{n}(a, b=1):\n    return a + b" for n in range(50)]
    for number in range(90):
        (tmp_path / f"project_{number}.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    modules = [importlib.import_module(f"project_{number}") for number in range(90)]
    digests = Counter[int]()
    digest, loop = Look.digest, Loop(tmp_path / "run")
    monkeypatch.setattr(Look, "digest", lambda *given: digests.update([len(done)]) or digest(*given))
    done = list[int]()
    for turn in loop.turns():
        done.append(turn)
        modules[7].number_3 += 1
        modules[40].items_3.append(3)
        modules[80].names_3["b"] = 1
        modules[80].names_4 = {"a": 1}  # another object with the same content
    loop.close()
    for module in modules:
        del sys.modules[module.__name__]
    assert {name for name in loop.named if "_" in name} == {"number_3", "items_3", "names_3"}
    assert max(digests.values()) < 1500, "of 9,000 values of the modules, and those of the tests"


def test_what_is_recorded_is_said_at_once_and_not_again(tmp_path: Path) -> None:
    first = Loop(tmp_path)
    counted(first)
    second = Loop(tmp_path, recorded=first.recorded)
    assert second.named == ["n", "best"]
    counted(second)
    assert second.named == ["n", "best"]
    kept = Loop(tmp_path, Framework(lambda value: None, remembered=lambda: {"n": 0}), first.recorded)
    assert kept.named == ["best"]
    assert first.unset == "the loop body did not run, so `turn` is unset"


def second_loop(loop: Loop, score: float) -> Loop:
    scores = [score]
    for _ in loop.turns():
        print(scores)
    return loop


def test_code_between_loops_that_gives_another_value_is_named(tmp_path: Path) -> None:
    first = second_loop(Loop(tmp_path, number=1), 1.0)
    assert first.named == []
    assert second_loop(Loop(tmp_path, recorded=first.recorded, number=1), 1.0).named == []
    assert second_loop(Loop(tmp_path, recorded=first.recorded, number=1), 2.0).named == ["score", "scores"]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4) | st.tuples(inner),
    max_leaves=8,
)


def _digest(value: Any) -> bytes | None:
    return Look(lambda value: None).digest(value)


def _same(a: Any, b: Any, depth: int = 0) -> bool:
    if type(a) is not type(b) or depth > 4:
        return type(a) is type(b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and (depth == 4 or all(_same(a[key], b[key], depth + 1) for key in a))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y, depth + 1) for x, y in zip(a, b, strict=True))
    return repr(a) == repr(b)


@given(PLAIN, PLAIN)
def test_digests_are_equal_if_and_only_if_the_values_are(a: Any, b: Any) -> None:
    if isinstance(a, (list, dict)):
        assert _digest(a) == _digest(a.copy())
    assert _digest(a) is not None
    if _same(a, b):
        assert _digest(a) == _digest(b)
    elif repr(a) != repr(b) and len(repr(a)) + len(repr(b)) < 200 and not _is_deep(a) and not _is_deep(b):
        assert _digest(a) != _digest(b)


def _is_deep(value: Any, depth: int = 0) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return depth >= 3 or any(_is_deep(item, depth + 1) for item in items)


class AllBut:
    """The ids of kept objects that are gone, among them that of anything which is made from now on."""

    def __init__(self, *things: Any) -> None:
        self._ids = set(map(id, things))

    def __contains__(self, one: object) -> bool:
        return one not in self._ids


@pytest.mark.parametrize("step", [1, 4])
def test_the_first_value_of_a_counter_is_a_number(step: int) -> None:
    assert write_first(itertools.count(3, step)) == "3"


def test_an_id_of_an_object_that_is_gone_changes_no_digest() -> None:
    """A tuple that a look makes of a partial function, or of a generator, may lie where a kept object was."""
    function, generator = partial(print, 1, end="x"), random.Random(3)
    value = [function, generator]
    kept = AllBut(function, generator, *function.args, *function.keywords, *function.keywords.values())
    assert Look(lambda _: None, kept).digest(value) == Look(lambda _: None).digest(value)


class Large:
    """An object with much in it."""

    def __init__(self) -> None:
        self.rows, self.served = np.zeros(1 << 16), 0


def of_many_kinds(turns: Iterator[int]) -> list[Any]:
    n, words, unbound, seen = 0, {"a": [0]}, 1, list[Any]()
    del unbound

    def add() -> None:
        nonlocal n, late
        n, late = n + 1, n
        words["a"].append(n)

    late = 0
    for turn in turns:
        add()
        n += turn
        unbound = turn
        seen.append((n, late, [*words["a"]], unbound))
        del unbound
    return seen


def executed(turns: Iterator[int]) -> list[Any]:
    names: dict[str, Any] = {"turns": turns}
    exec("n, seen = 0, []\nfor turn in turns:\n    n += turn\n    seen.append((n, sorted(locals())))", names)
    return names["seen"]  # type: ignore[no-any-return]


def looking(turns: Iterator[int]) -> list[Any]:
    n, seen = 0, list[Any]()
    mine = locals()
    for turn in turns:
        n += turn
        seen.append((n, sorted(mine), mine.get("n")))
    return seen


@pytest.mark.parametrize("script", [of_many_kinds, executed, looking], ids=lambda script: script.__name__)
@pytest.mark.parametrize("is_traced", [False, True])
def test_a_look_changes_no_variable_of_the_script(
    script: Callable[[Iterator[int]], list[Any]], is_traced: bool, tmp_path: Path
) -> None:
    """Also with closures, `exec`, `locals()`, and a debugger that reads the variables at each line."""

    def trace(frame: FrameType, event: str, given: Any) -> Any:
        if frame.f_code is script.__code__:
            found.update(frame.f_locals)
        return trace

    def run(turns: Iterator[int]) -> list[Any]:
        before = sys.gettrace()
        sys.settrace(trace if is_traced else before)
        try:
            return script(turns)
        finally:
            sys.settrace(before)

    found = dict[str, Any]()
    assert run(Loop(tmp_path).turns(11)) == run(iter(range(11)))


@pytest.mark.parametrize("items", [0, LOOK_ITEMS_MAX], ids=["whole", "over"])
def test_a_look_keeps_nothing_of_the_script_alive(items: int, tmp_path: Path) -> None:
    """Also one that has come to what it may read."""
    loop, others, large = Loop(tmp_path), [{number} for number in range(400)], Large()
    more, alive = [[[one] for one in others] for _ in range(items and 40)], weakref.ref(large)
    for turn in loop.turns(4):
        if turn == 3:
            assert alive() is not None
            del large
            assert alive() is None
        else:
            large.served += 1
    assert len(more) in (0, 40)
