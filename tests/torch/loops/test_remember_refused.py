"""`optimizer.remember(...)` and `track(...)`: what cannot be stored is refused, and what does not come back is named."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.loops.remembering import Environment, logged, train
from tranlogs.base.errors import UnencodableState

Step = namedtuple("Step", ["seen", "reward"])


def contains_itself() -> Any:
    found: dict[str, Any] = {"a": [1]}
    found["a"].append((found["a"],))
    return found


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "function": (lambda: [0, Step(lambda: 1, 2)], r"state\.x\[1\]\.seen is a function"),
    "object": (lambda: {"k": [object()]}, r"state\.x\['k'\]\[0\] is an object, which only pickle could store\. Give it"),
    "class": (lambda: (Environment,), r"state\.x\[0\] is a type, which only pickle"),
    "itself": (contains_itself, r"state\.x\['a'\]\[1\]\[0\] contains itself"),
    "iterator": (lambda: iter([1]), r"state\.x is a list_iterator, whose position cannot be stored\. Take batches from"),
    "loader": (lambda: torch.utils.data.DataLoader([1]), r"state\.x is a DataLoader\. Track it"),
    "parameter": (
        lambda: [nn.Parameter(torch.ones(1))],
        r"state\.x\[0\] is a Parameter\. Parameters are recovered with their module",
    ),
    "bytes": (lambda: [torch.empty(1 << 22), torch.empty((60 << 20) // 4)], r"state\.x\[1\] is too much: .* 64 MiB"),
    "array": (lambda: np.empty((65 << 20) // 8), r"state\.x is too much"),
    "numbers": (lambda: [[0.5] * (4 << 20), [1] * (5 << 20)], r"state\.x\[1\] is too much: .* 64 MiB"),
    "many": (lambda: [["a"] * 50_000, ["a"] * 50_001], r"state\.x\[1\]\[\d+\] is too much: .* 100,000 in number"),
    "objects in an array": (lambda: np.array([object()]), r"state\.x is an array of object"),
    "no order": (lambda: {1, "a"}, r"state\.x is a set of items that have no order"),
    "key": (lambda: {torch.float16: 1, object(): 2}, r"state\.x\.keys\(\)\[1\] is an object"),
    "deep": (lambda: [[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]], r"is nested deeper than 16 containers"),
    "view of a class": (lambda: np.ma.array([1, 2]), r"state\.x is a numpy\.ma.*MaskedArray, which only pickle"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_stored_is_refused_by_its_path_when_it_is_given_and_when_it_is_assigned(
    name: str, tmp_path: Path
) -> None:
    make, text = REFUSED[name]
    optimizer, model = logged(tmp_path / "run")
    with pytest.raises(UnencodableState, match=text):
        optimizer.remember(best=0.0, x=make())
    state = optimizer.remember(best=0.0)
    with pytest.raises(UnencodableState, match=text):
        state.x = make()
    assert vars(state) == {"best": 0.0}
    optimizer.recover()
    train(optimizer, model, 2)
    assert optimizer.report.exact is True


def test_the_state_of_an_object_is_looked_through_as_well(tmp_path: Path) -> None:
    class Bad(Environment):
        def get_state(self) -> Any:
            return {"place": [1, lambda: 2]}

    optimizer, _ = logged(tmp_path / "run")
    with pytest.raises(UnencodableState, match=r"state\.e\[0\]\.get_state\(\)\['place'\]\[1\] is a function"):
        optimizer.remember(e=[Bad()])
    state = optimizer.remember(e=None)
    with pytest.raises(
        UnencodableState, match=r"state\.e is a .*Environment that was not given to remember\(\.\.\.\)\. .*get_state"
    ):
        state.e = Environment()
    optimizer.close()


def test_what_a_container_takes_up_in_place_is_named_at_the_boundary_and_after_a_crash(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "state.found[1] is a function"

    def body(turn: int) -> None:
        state.count = turn
        if turn == 1:
            state.found.append(lambda: 1)

    for until, words in ((3, text), (5, text)):
        optimizer, model = logged(tmp_path / "run")
        state = optimizer.remember(found=[0], count=-1)
        optimizer.recover()
        train(optimizer, model, until, body)
        assert optimizer.report.exact is None
        assert any(words in note for note in optimizer.report.notes)
    assert state.count == 4
    assert caplog.text.count("It is remembered no longer") == 2, "once a process"


def test_what_the_script_remembers_otherwise_than_the_run_is_named(tmp_path: Path) -> None:
    optimizer, model = logged(tmp_path / "run")
    optimizer.remember(a=1, environment=Environment())
    optimizer.recover()
    train(optimizer, model, 2)
    optimizer, model = logged(tmp_path / "run")
    state = optimizer.remember(b=2)
    report = optimizer.recover()
    optimizer.close()
    assert report.exact is None
    notes = " ".join(report.notes)
    assert "state.b is remembered now, but the run has no value of it" in notes
    assert "state.a was given to remember(...) before, and is not now" in notes
    assert "state.environment holds the object 'environment', which the script has not given to remember(...)" in notes
    assert (state.a, state.b) == (1, 2)


def test_what_cannot_be_made_again_is_named_and_the_rest_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The namedtuple of the first attribute is gone; the second one refers to a part of it, the others to each other."""

    def body(turn: int) -> None:
        state.a = [[turn], Step(turn, [turn]), [turn]]
        state.b = [state.a[2]]
        state.c = [[turn]]
        state.d = (state.c[0],)

    for part in ("first", "second"):
        if part == "second":
            monkeypatch.delitem(globals(), "Step")
        optimizer, model = logged(tmp_path / "run")
        state = optimizer.remember(a=0, b=0, c=0, d=0)
        report = optimizer.recover()
        if part == "first":
            train(optimizer, model, 2, body)
    optimizer.close()
    assert (state.a, state.b, state.c, state.d) == (0, 0, [[1]], ([1],))
    assert state.d[0] is state.c[0]
    assert report.exact is None
    notes = " ".join(report.notes)
    step = f"{__name__}.Step('seen', 'reward')"
    assert f"state.a holds a {step}, and the script has no such namedtuple" in notes
    assert "state.b refers to a value that cannot be made again" in notes


class Tracked:
    def __init__(self, content: Any) -> None:
        self.content = content

    def state_dict(self) -> Any:
        return {"content": self.content}

    def load_state_dict(self, state: Any) -> None:
        self.content = state["content"]


def test_track_refuses_what_contains_itself_and_what_is_huge_by_its_path(tmp_path: Path) -> None:
    optimizer, _ = logged(tmp_path / "run")
    with pytest.raises(UnencodableState, match=r"track\['t'\]\['content'\]\['a'\]\[1\]\[0\] contains itself"):
        optimizer.track(t=Tracked(contains_itself()))
    with pytest.raises(
        UnencodableState, match=r"track\['t'\] holds 1\.5 GiB \(of them 1\.0 GiB in track\['t'\]\['content'\]\[1\]\)"
    ):
        optimizer.track(t=Tracked([torch.empty(1 << 27), torch.empty(1 << 28)]))
    with pytest.raises(
        UnencodableState, match=r"track\['t'\]\['content'\]\[0\] is a builtins\.function, which cannot be stored"
    ):
        optimizer.track(t=Tracked([lambda: 1]))
    optimizer.close()
