"""`optimizer.remember(...)`: attributes of a loop come back after a crash; what cannot is refused, or named."""

from __future__ import annotations

import copy
import math
import random
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.lab import Attempt, flatten, prove_exact
from tests.torch.nets import seed
from tranlogs.base.errors import UnencodableState, UsageError
from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.offline.run import OfflineRun

Step = namedtuple("Step", ["seen", "reward"])


class Environment:
    """An environment with a state of its own, as simulators have it."""

    def __init__(self) -> None:
        self.place, self.seen, self.chance = 0.0, deque([0.0] * 3, maxlen=3), np.random.default_rng(5)

    def step(self, push: float) -> float:
        self.place = 0.9 * self.place + push + float(self.chance.normal())
        self.seen.append(self.place)
        return sum(self.seen)

    def get_state(self) -> tuple[Any, ...]:
        return self.place, self.seen, self.chance

    def set_state(self, state: tuple[Any, ...]) -> None:
        self.place, self.seen, self.chance = state


def logged(run: Path, model: nn.Module | None = None) -> tuple[LoggedOptimizer, nn.Module]:
    seed()
    model = model or nn.Linear(3, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return LoggedOptimizer(inner, run, model, durability="process", checkpoint_every=3, segment_bytes=1 << 20), model


def train(optimizer: LoggedOptimizer, model: nn.Module, until: int, body: Callable[[int], Any] = lambda turn: None) -> None:
    for turn in optimizer.steps(until, stateless=True):
        model(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        body(turn)
    optimizer.close()


def q_values() -> list[float]:
    return [0.0, 0.0]


def after_crash(run: Path, make: Callable[[], dict[str, Any]], change: Callable[[Any], Any] | None = None) -> Any:
    """Return the namespace of a second process, in which the attributes have been given anew."""
    optimizer, model = logged(run)
    state = optimizer.remember(**make())
    optimizer.recover()
    train(optimizer, model, 2, (lambda turn: change(state) if turn == 1 else None) if change else lambda turn: None)
    optimizer, model = logged(run)
    state = optimizer.remember(**make())
    report = optimizer.recover()
    optimizer.close()
    assert (report.step, report.exact, report.notes) == (2, True, ())
    return state


VALUES: dict[str, Callable[[], Any]] = {
    "numbers": lambda: [3, -1 << 80, 0.1, math.inf, 1j, True, None],
    "nan": lambda: math.nan,
    "text": lambda: ["naïve", b"\x00\xff", bytearray(b"ab"), np.str_("x"), np.array(["a", "bc"]), np.datetime64("2026-01-01")],
    "numpy": lambda: [
        np.float32(1.5),
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.zeros(()),
    ],
    "tensors": lambda: [
        torch.arange(4).reshape(2, 2).t(),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, requires_grad=True),
        torch.eye(3).to_sparse(),
        torch.float16,
        torch.Size([2]),
    ],
    "containers": lambda: {
        "list": [1, [2, (3, [4])]],
        "keys": {1: "a", (2, "b"): [5], None: 0.5},
        "deque": deque([1, 2, 3], maxlen=3),
        "sets": [{3, 1, 2}, frozenset("ab")],
        "counts": Counter("abca"),
        "ordered": OrderedDict(b=1, a=2),
        "by word": defaultdict(list, a=[1]),
        "steps": deque([Step(torch.ones(2), 0.5), Step(torch.zeros(2), 1.5)]),
        "range": range(3, 9, 2),
    },
    "function of a defaultdict": lambda: defaultdict(q_values, a=[1.0, 2.0]),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_was_assigned_in_the_loop_comes_back(name: str, tmp_path: Path) -> None:
    """The second process gives the attribute another value of the kind, or None."""
    value = VALUES[name]()
    first = VALUES[name]() if name.startswith("function") else None
    found = after_crash(tmp_path / "run", lambda: {"x": copy.copy(first)}, lambda state: setattr(state, "x", value))
    if name.startswith("function"):  # that function is known by the place at which it was given
        value.default_factory = found.x.default_factory = q_values
    assert flatten(found.x) == flatten(value)
    assert type(found.x) is type(value)


def test_a_tensor_keeps_dtype_strides_and_requires_grad_and_its_memory_is_its_own(tmp_path: Path) -> None:
    data = torch.arange(12.0).reshape(3, 4)

    def change(state: Any) -> None:
        state.batch, state.hidden = torch.full((2, 4), 7.0), torch.ones(2, dtype=torch.float64, requires_grad=True)

    state = after_crash(tmp_path / "run", lambda: {"batch": data[:2], "hidden": None}, change)
    assert (state.hidden.dtype, state.hidden.requires_grad, state.hidden.is_leaf) == (torch.float64, True, True)
    assert state.batch.tolist() == [[7.0] * 4] * 2
    assert torch.equal(data, torch.arange(12.0).reshape(3, 4)), "the given tensor is a view of the data, which stay as they are"


def test_generators_go_on_where_they_were(tmp_path: Path) -> None:
    def make() -> dict[str, Any]:
        return {
            "torch": torch.Generator().manual_seed(1),
            "numpy": np.random.default_rng(1),
            "philox": np.random.Generator(np.random.Philox(3)),
            "old": np.random.RandomState(1),
            "python": random.Random(1),
        }

    def draw(state: Any) -> list[Any]:
        found = [torch.rand(2, generator=state.torch).tolist(), state.numpy.normal(size=2).tolist(), state.philox.random()]
        return [*found, state.old.rand(3).tolist(), state.python.gauss(0, 1)]

    right = SimpleNamespace(**make())
    draw(right)
    state = after_crash(tmp_path / "run", make, draw)
    assert draw(state) == draw(right)


def test_what_was_one_object_is_one_object_again_and_what_refers_to_it_goes_on_with_it(tmp_path: Path) -> None:
    memory, chance, empty = deque([0], maxlen=4), np.random.default_rng(1), list[int]()

    def change(state: Any) -> None:
        state.memory.append(1)
        state.first = [torch.ones(2)]
        state.second = {"same": state.first, "tensor": state.first[0]}  # an attribute that the loop adds
        state.pair = (state.first, [state.second])
        state.a, state.b = [1], [2]

    first = {"memory": memory, "chance": chance, "first": [], "pair": None, "a": empty, "b": empty}
    state = after_crash(tmp_path / "run", lambda: first, change)
    assert (state.memory is memory, state.chance is chance, list(memory)) == (True, True, [0, 1])
    assert state.second["same"] is state.first
    assert state.second["tensor"] is state.first[0]
    assert state.pair[0] is state.first
    assert state.pair[1][0] is state.second
    assert (state.a, state.b) == ([1], [2]), "they were given as one object, and the loop made them two"


def test_objects_with_a_state_take_it_wherever_they_are(tmp_path: Path) -> None:
    kept: list[Environment] = []

    def make() -> dict[str, Any]:
        kept[:] = [Environment(), Environment()]
        return {"environments": [*kept], "net": nn.Linear(2, 1), "turn": 0}

    def change(state: Any) -> None:
        state.environments.reverse()
        state.best = state.environments[0]
        state.best.step(0.5)
        nn.init.constant_(state.net.weight, 3.0)

    state = after_crash(tmp_path / "run", make, change)
    right = Environment()
    right.step(0.5)
    assert state.environments == [kept[1], kept[0]]
    assert state.best is kept[1]
    assert flatten(kept[1].get_state()[:2]) == flatten(right.get_state()[:2])
    assert kept[1].step(0.0) == right.step(0.0)
    assert kept[0].place == 0.0
    assert state.net.weight.tolist() == [[3.0, 3.0]]


def test_remember_may_be_called_in_several_places_and_behind_recover(tmp_path: Path) -> None:
    for place in ("first", "second"):
        optimizer, model = logged(tmp_path / "run")
        state = optimizer.remember(a=1)
        optimizer.recover()
        assert optimizer.remember(b=Environment(), c=0) is state
        if place == "first":
            train(optimizer, model, 2, lambda turn, state=state: (state.b.step(1.0), setattr(state, "c", turn)))
    assert (state.c, len({*state.b.seen})) == (1, 3)
    with pytest.raises(UsageError, match=r"remember\(a=\.\.\.\): it is remembered already"):
        optimizer.remember(a=2)
    optimizer.close()


def test_a_killed_loop_ends_with_the_bits_of_the_uninterrupted_one(tmp_path: Path) -> None:
    """A batch fetched ahead, a hidden state, an environment, a generator, a replay memory, and a best loss with its weights."""

    def script(attempt: Attempt) -> None:
        seed()
        model = nn.RNN(3, 4, batch_first=True)
        optimizer = attempt.wrap(torch.optim.Adam(model.parameters(), lr=0.05), model)
        values: dict[str, Any] = {"batch": torch.randn(2, 1, 3), "hidden": torch.zeros(1, 2, 4), "environment": Environment()}
        values |= {"curve": [i / 3 for i in range(2045)]}  # its third block begins within the run
        values |= {"best": math.inf, "weights": {}, "memory": deque(maxlen=5), "chance": random.Random(4), "lowest": None}
        state = optimizer.remember(**values)
        attempt.start(optimizer)
        for turn in optimizer.steps(14, stateless=True):
            attempt.tick()
            found, state.hidden = model(state.batch, state.hidden.detach())
            push = state.environment.step(found.mean().item())
            state.memory.append(Step(found.detach()[:, 0], push))
            loss = (found - state.chance.choice(state.memory).reward).square().mean()
            state.batch = torch.randn(2, 1, 3) + push
            optimizer.zero_grad()
            loss.backward()
            attempt.tick()
            optimizer.step()
            state.curve.append(loss.item())
            if loss.item() < state.best:
                state.best, state.weights = loss.item(), copy.deepcopy(model.state_dict())
                state.lowest = turn
        things = {name: value for name, value in vars(state).items() if name not in ("environment", "chance")}
        attempt.keep(model=model, optimizer=optimizer, place=state.environment.place, drawn=state.chance.random(), **things)
        optimizer.close()

    prove_exact(script, tmp_path / "run", [9, 5, 6])


def test_the_recipe_of_the_documentation_brings_an_environment_of_gymnasium_back(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "pytorch.md").read_text()
    recipe = page[page.index("class Resumable") :].partition("```")[0]
    names: dict[str, Any] = {"gymnasium": gymnasium}
    exec(recipe, names)

    def script(attempt: Attempt) -> None:
        seed()
        model = nn.Linear(4, 2)
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=0.05), model)
        state = optimizer.remember(
            environment=names["Resumable"](gymnasium.make("CartPole-v1", max_episode_steps=7)), seen=None
        )
        state.seen, _ = state.environment.reset(seed=3)
        attempt.start(optimizer)
        for _ in optimizer.steps(16, stateless=True):
            found = model(torch.from_numpy(state.seen))
            action = int(torch.distributions.Categorical(logits=found).sample())
            state.seen, reward, is_over, is_late, _ = state.environment.step(action)
            optimizer.zero_grad()
            (found[action] * reward).backward()
            attempt.tick()
            optimizer.step()
            if is_over or is_late:
                state.seen, _ = state.environment.reset()
        attempt.keep(model=model, seen=state.seen, environment=state.environment.get_state()["state"])
        optimizer.close()

    prove_exact(script, tmp_path / "run", [4, 9])


@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants")
def test_what_is_remembered_is_in_an_export_that_loads_without_pickle(tmp_path: Path) -> None:
    values = {name: make() for name, make in VALUES.items() if name != "function of a defaultdict"}
    optimizer, model = logged(tmp_path / "run")
    state = optimizer.remember(
        values=values, chance=np.random.default_rng(1), python=random.Random(1), environment=Environment()
    )
    optimizer.recover()
    train(optimizer, model, 2, lambda turn: setattr(state, "best", 0.5 * turn))
    offline = OfflineRun(tmp_path / "run" / "rank0")
    offline.replay()
    notes = offline.export(tmp_path / "state.pt")
    found = torch.load(tmp_path / "state.pt", weights_only=True)["tracked"]["remember(...)"]
    assert found["values"]["best"] == 0.5
    assert torch.equal(found["values"]["values"]["tensors"][0], values["tensors"][0])
    assert found["objects"]["environment"][1][0] == 0.0, "the place of the environment"
    assert notes == ["tracked object 'remember(...)' contains numpy arrays, which become tensors in the file"]


def test_the_namespace_has_the_faces_of_a_plain_one(tmp_path: Path) -> None:
    optimizer, _ = logged(tmp_path / "run")
    state = optimizer.remember(best=0.5)
    state.best += 1
    assert repr(state) == "Remembered(best=1.5)"
    assert vars(copy.deepcopy(state)) == {"best": 1.5}
    assert not hasattr(state, "other")
    with pytest.raises(AttributeError, match="'other' is not remembered; give it to remember"):
        _ = state.other
    with pytest.raises(UsageError, match=r"state\.best is remembered and cannot be deleted"):
        del state.best
    optimizer.close()


# What cannot be stored is refused, and what does not come back is named.


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
    "array": (lambda: np.empty((65 << 20) // 8), r"state\.x is too much"),
    "many": (lambda: [["a"] * 50_000, ["a"] * 50_001], r"state\.x\[1\]\[\d+\] is too much: .* 100,000 in number"),
    "another kind in a long list": (
        lambda: [0.5] * 100_001 + [1, 0.5],
        r"state\.x\[100001\] is an int in a list of 100,003 float numbers",
    ),
    "objects in an array": (lambda: np.array([object()]), r"state\.x is an array of object"),
    "no order": (lambda: {1, "a"}, r"state\.x is a set of items that have no order"),
    "key": (lambda: {torch.float16: 1, object(): 2}, r"state\.x\.keys\(\)\[1\] is an object"),
    "deep": (lambda: [[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]], r"is nested deeper than 16 containers"),
    "view of a class": (lambda: np.ma.array([1, 2]), r"state\.x is a numpy\.ma.*MaskedArray, which only pickle"),
}


def test_what_cannot_be_stored_is_refused_by_its_path_when_it_is_given_and_when_it_is_assigned(tmp_path: Path) -> None:
    optimizer, model = logged(tmp_path / "run")
    for make, text in REFUSED.values():
        with pytest.raises(UnencodableState, match=text):
            optimizer.remember(best=0.0, x=make())
    state = optimizer.remember(best=0.0)
    for make, text in REFUSED.values():
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
    optimizer.close()
