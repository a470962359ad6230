"""`optimizer.remember(...)`: attributes of a loop that come back after a crash."""

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
from tests.torch.loops.remembering import Environment, logged, train
from tests.torch.nets import seed
from tranlogs.base.errors import UsageError
from tranlogs_torch.offline.run import OfflineRun

Step = namedtuple("Step", ["seen", "reward"])


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


def test_a_function_of_a_defaultdict_makes_the_missing_values_of_the_one_that_came_back(tmp_path: Path) -> None:
    def change(state: Any) -> None:
        state.q["a"][1] += 2.5

    state = after_crash(tmp_path / "run", lambda: {"q": defaultdict(q_values)}, change)
    assert state.q == {"a": [0.0, 2.5]}
    assert state.q["new"] == [0.0, 0.0]


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


def test_what_else_refers_to_a_container_or_a_generator_goes_on_with_it(tmp_path: Path) -> None:
    memory, chance = deque([0], maxlen=4), np.random.default_rng(1)

    def change(state: Any) -> None:
        state.memory.append(1)
        state.drawn = state.chance.random()

    state = after_crash(tmp_path / "run", lambda: {"memory": memory, "chance": chance}, change)
    assert state.memory is memory
    assert state.chance is chance
    assert list(memory) == [0, 1]


def test_what_was_one_object_is_one_object_again(tmp_path: Path) -> None:
    def change(state: Any) -> None:
        state.first = [torch.ones(2)]
        state.second = {"same": state.first, "tensor": state.first[0]}
        state.pair = (state.first, [state.second])

    state = after_crash(tmp_path / "run", lambda: {"first": [], "pair": None}, change)
    assert state.second["same"] is state.first
    assert state.second["tensor"] is state.first[0]
    assert state.pair[0] is state.first
    assert state.pair[1][0] is state.second


def test_what_two_attributes_were_given_as_one_object_is_two_if_the_loop_made_it_two(tmp_path: Path) -> None:
    empty: list[int] = []

    def change(state: Any) -> None:
        state.a, state.b = [1], [2]

    state = after_crash(tmp_path / "run", lambda: {"a": empty, "b": empty}, change)
    assert (state.a, state.b) == ([1], [2])


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


def test_an_attribute_that_the_loop_added_is_there_after_recover(tmp_path: Path) -> None:
    state = after_crash(tmp_path / "run", lambda: {"best": 0.0}, lambda state: setattr(state, "added", [1]))
    assert vars(state) == {"best": 0.0, "added": [1]}


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
        values |= {"best": math.inf, "weights": {}, "memory": deque(maxlen=5), "chance": random.Random(4), "lowest": None}
        state = optimizer.remember(**values)
        attempt.start(optimizer)
        for turn in optimizer.steps(20, stateless=True):
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
            if loss.item() < state.best:
                state.best, state.weights = loss.item(), copy.deepcopy(model.state_dict())
                state.lowest = turn
        things = {name: value for name, value in vars(state).items() if name not in ("environment", "chance")}
        attempt.keep(model=model, optimizer=optimizer, place=state.environment.place, drawn=state.chance.random(), **things)
        optimizer.close()

    prove_exact(script, tmp_path / "run", [9, 2, 14, 5])


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
        for _ in optimizer.steps(30, stateless=True):
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

    prove_exact(script, tmp_path / "run", [4, 9, 5])


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


def test_the_order_in_which_attributes_are_given_does_not_matter(tmp_path: Path) -> None:
    for order in (1, -1):
        optimizer, model = logged(tmp_path / "run")
        first = Environment()
        state = optimizer.remember(**dict([("a", first), ("b", [first]), ("c", [0])][::order]))
        report = optimizer.recover()
        if order == 1:
            train(optimizer, model, 2, lambda turn, state=state: (state.a.step(1.0), state.c.append(turn)))
            right = state.a.get_state()[:2]
    optimizer.close()
    assert (report.exact, state.c, state.b[0] is state.a) == (True, [0, 0, 1], True)
    assert flatten(state.a.get_state()[:2]) == flatten(right)


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


def test_the_number_of_an_epoch_is_a_number(tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader(torch.ones(4, 3))
    optimizer, model = logged(tmp_path / "run")
    state = optimizer.remember(epoch=-1)
    optimizer.track(loader=loader).recover()
    for epoch in optimizer.epochs(2):
        state.epoch = epoch
        for batch in epoch:
            model(batch).sum().backward()
            optimizer.step()
    optimizer.close()
    optimizer, model = logged(tmp_path / "run")
    state = optimizer.remember(epoch=-1)
    optimizer.recover()
    optimizer.close()
    assert (state.epoch, type(state.epoch)) == (1, int)


def test_code_per_epoch_that_runs_again_does_not_count(tmp_path: Path) -> None:
    """`state.total = 0.0` before the loop of an epoch runs again after a crash in the middle of the epoch, and is undone."""

    def script(attempt: Attempt) -> None:
        seed()
        model = nn.Linear(3, 2)
        loader = torch.utils.data.DataLoader(torch.randn(5, 3), shuffle=True)
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=0.01), model)
        values: dict[str, Any] = {"total": 0.0, "history": []}
        state = optimizer.remember(**values)
        attempt.start(optimizer, loader=loader)
        for _ in optimizer.epochs(3, loader):
            state.total = 0.0
            for x in _:
                loss = model(x).square().sum()
                optimizer.zero_grad()
                loss.backward()
                attempt.tick()
                optimizer.step()
                state.total += loss.item()
            state.history.append(state.total)
        attempt.keep(model=model, **vars(state))
        optimizer.close()

    prove_exact(script, tmp_path / "run", [3, 5])
