"""Offline replay: the state without the script is the state with it, bit for bit."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn import functional

from tests.torch.lab import contents, differences, flatten
from tranlogs.base.errors import DataError, UsageError
from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.offline.run import OfflineRun

STEPS = 9
Optimizers = dict[str, torch.optim.Optimizer]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Net(nn.Module):
    """A tied head, BatchNorm, dropout, a buffer that is not in the state dict, a frozen and an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.norm = nn.BatchNorm1d(6)
        self.hidden = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(2))
        self.scale: torch.Tensor
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(tokens))
        x = functional.dropout(torch.tanh(self.hidden(x)), 0.1, self.training)
        return self.head(x) * self.scale


class Plain(nn.Module):
    """Matrices only."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens))


class Sparse(Plain):
    """Embedding gradients are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6, sparse=True)
        self.head.requires_grad_(False)


@dataclass(frozen=True)
class Case:
    """How to build the objects of a run."""

    optimizer: Callable[[Any], torch.optim.Optimizer]
    model: Callable[[], nn.Module] = Net
    options: tuple[tuple[str, Any], ...] = ()
    with_model: bool = True
    second: Callable[[Any], torch.optim.Optimizer] | None = None
    max_norm: float | None = None
    dtype: torch.dtype = torch.float32

    def build(self, run: Path) -> tuple[nn.Module, LoggedOptimizer, Optimizers, Any]:
        """Everything anew: model, logged optimizer, inner optimizers by name, scheduler."""
        torch.manual_seed(1)
        model = self.model().to(self.dtype)
        first = self.optimizer(model)
        inner = {"main": first}
        options = {
            "durability": "process",
            "segment_bytes": 1 << 20,
            "checkpoint_every": 5,
            "keep": 100,
            "recheck": False,
        } | dict(self.options)
        logged = LoggedOptimizer(first, run, model if self.with_model else None, **options)
        if self.second is not None:
            inner["second"] = self.second(model)
            logged.add_optimizer(inner["second"], "second")
        scheduler = torch.optim.lr_scheduler.MultiStepLR(logged, [3, 6, 8], gamma=0.5)
        logged.track(scheduler=scheduler)
        return model, logged, inner, scheduler

    def train(self, run: Path, until: int = STEPS) -> tuple[nn.Module, Optimizers, Any]:
        """Train the run to a step and close it."""
        model, logged, inner, scheduler = self.build(run)
        logged.recover()
        for number in logged.steps(until):
            self.step(model, logged, inner, scheduler, number)
            logged.training_run.journal.wait_checkpoint()
        logged.close()
        return model, inner, scheduler

    def step(self, model: nn.Module, logged: Any, inner: Optimizers, scheduler: Any, number: int) -> None:
        """One step on the data of its number."""
        tokens = torch.randint(11, (16,), generator=torch.Generator().manual_seed(number))

        def closure() -> torch.Tensor:
            for optimizer in inner.values():
                optimizer.zero_grad()
            loss = functional.cross_entropy(model(tokens).float(), tokens.roll(1))
            loss.backward()
            return loss

        if isinstance(inner["main"], torch.optim.LBFGS):
            logged.step(closure)
        else:
            closure()
            if self.max_norm is not None:
                clip = getattr(logged, "clip_grad_norm_", partial(nn.utils.clip_grad_norm_, list(model.parameters())))
                clip(self.max_norm)
            for optimizer in inner.values():
                optimizer.step()
        scheduler.step()


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    parameters = list(model.parameters())
    return [{"params": parameters[:2], "lr": 0.05}, {"params": parameters[2:], "weight_decay": 0.1}]


def _of(kind: str, **options: Any) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: getattr(torch.optim, kind)(model.parameters(), **copy.deepcopy(options))  # a tensor lr is written to


CASES = {
    "SGD": Case(_of("SGD", lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)),
    "AdamW-foreach": Case(_of("AdamW", lr=0.01, foreach=True)),
    "AdamW-fused": Case(_of("AdamW", lr=0.01, fused=True)),
    "Adam-tensor-lr": Case(_of("Adam", lr=torch.tensor(0.01))),
    "Adafactor": Case(_of("Adafactor")),
    "Muon": Case(_of("Muon", lr=0.01), Plain),
    "LBFGS": Case(_of("LBFGS", lr=0.1, max_iter=3), Plain),
    "SparseAdam": Case(lambda model: torch.optim.SparseAdam(list(model.embed.parameters()), lr=0.01), Sparse),
    "sparse SGD": Case(_of("SGD", lr=0.1, momentum=0.9), Sparse),
    "groups": Case(lambda model: torch.optim.AdamW(_groups(model), lr=0.01)),
    "weights": Case(_of("AdamW", lr=0.01), options=(("log", "weights"),)),
    "clipping": Case(_of("AdamW", lr=0.01), max_norm=0.01),
    "bfloat16": Case(_of("AdamW", lr=0.01), Plain, dtype=torch.bfloat16),
    "without model": Case(_of("AdamW", lr=0.01), Plain, with_model=False),
    "two optimizers": Case(
        lambda model: torch.optim.AdamW(model.embed.parameters(), lr=0.01),
        second=lambda model: torch.optim.SGD([*model.hidden.parameters(), *model.norm.parameters()], lr=0.1, momentum=0.9),
    ),
}


def _offline(offline: OfflineRun) -> Any:
    state = offline.state
    return flatten(
        {"optimizers": {name: contents(o) for name, o in state.optimizers.items()}, "buffers": state.body["buffers"]}
    )


def _live(model: nn.Module, inner: Optimizers, *, with_model: bool) -> Any:
    buffers = dict(model.named_buffers()) if with_model else {}
    return flatten({"optimizers": {name: contents(o) for name, o in inner.items()}, "buffers": buffers})


@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants")
@pytest.mark.parametrize("name", CASES)
def test_replay_equals_recovery_and_its_file_goes_on_like_the_run_itself(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    right, _, _ = case.train(tmp_path / "right", STEPS + 4)
    trained, inner, _ = case.train(tmp_path / "run")
    random = torch.get_rng_state()
    for turn in (3, STEPS):
        shutil.copytree(tmp_path / "run", tmp_path / f"copy{turn}")
        model, logged, inner, _ = case.build(tmp_path / f"copy{turn}")
        step = turn * len(inner)
        recovered = logged.recover(step)
        offline = OfflineRun(tmp_path / "run" / "rank0")
        report = offline.replay(step=step)
        assert (report.step, report.replayed, report.exact) == (step, recovered.replayed, True), report
        assert differences(_offline(offline), _live(model, inner, with_model=case.with_model)) == []
        logged.close()
    assert offline.export(tmp_path / "state.pt") == []
    content = torch.load(tmp_path / "state.pt", weights_only=True)
    assert content["step"] == step
    model = case.model().to(case.dtype)
    optimizers = {"main": case.optimizer(model)} | ({"second": case.second(model)} if case.second else {})
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizers["main"], [3, 6, 8], gamma=0.5)
    if case.with_model:
        assert list(content["model"]) == list(trained.state_dict()), "persistent tensors only"
        model.load_state_dict(content["model"])
    else:
        for parameter, values in zip(model.parameters(), content["parameters"].values(), strict=True):
            parameter.data.copy_(values)
    scheduler.load_state_dict(content["tracked"]["scheduler"])
    for which, optimizer in optimizers.items():
        optimizer.load_state_dict(content["optimizers"][which])
    torch.set_rng_state(random)
    for number in range(STEPS, STEPS + 4):
        case.step(model, optimizers["main"], optimizers, scheduler, number)
    for (key, found), expected in zip(model.state_dict().items(), right.state_dict().values(), strict=True):
        assert torch.equal(found, expected), key


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module, Optimizers]:
    """A run of AdamW, for tests that read it."""
    torch.set_num_threads(1)
    run = tmp_path_factory.mktemp("offline") / "run"
    model, inner, _ = CASES["AdamW-foreach"].train(run)
    return run, model, inner


Trained = tuple[Path, nn.Module, Optimizers]


def export(run: Path, path: Path, form: str = "", **options: Any) -> list[str]:
    offline = OfflineRun(run / "rank0", **options)
    offline.replay()
    return offline.export(path, form) if form else offline.export(path)


def test_files_have_the_keys_of_the_model_and_the_run_is_not_changed(trained: Trained, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    run, model, inner = trained
    before = _bytes_in(run)
    notes = export(run, tmp_path / "state.safetensors")
    assert notes == ["tracked objects (scheduler) are left out; .pt holds them"]
    found = load_file(tmp_path / "state.safetensors")
    fresh = Net()
    fresh.load_state_dict({key: value for key, value in found.items() if not key.startswith("optimizer/")})
    assert differences(flatten(fresh.state_dict()), flatten(model.state_dict())) == []
    state = inner["main"].state[model.embed.weight]  # type: ignore[index]
    assert torch.equal(found["optimizer/main/embed.weight/exp_avg_sq"], state["exp_avg_sq"])
    export(run, tmp_path / "state.pt")
    content = torch.load(tmp_path / "state.pt", weights_only=True)["model"]
    assert content["head.weight"].data_ptr() == content["embed.weight"].data_ptr(), "tied"
    assert _bytes_in(run) == before


def _bytes_in(folder: Path) -> dict[Path, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.endswith("-lock"))
    return {path: path.read_bytes() for path in files}


def test_a_damaged_checkpoint_is_passed_over_and_one_to_start_from_can_be_named(trained: Trained, tmp_path: Path) -> None:
    run, model, inner = trained
    shutil.copytree(run, tmp_path / "run")
    folders = sorted((tmp_path / "run" / "rank0" / "checkpoints").iterdir())
    state = folders[-1] / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-1] + b"?")
    offline = OfflineRun(tmp_path / "run" / "rank0")
    report = offline.replay()
    assert (report.step, report.exact) == (STEPS, True)
    assert any("damaged" in note for note in report.notes)
    assert differences(_offline(offline), _live(model, inner, with_model=True)) == []
    offline = OfflineRun(tmp_path / "run" / "rank0")
    assert offline.replay(checkpoint=folders[0].name).replayed == STEPS
    assert differences(_offline(offline), _live(model, inner, with_model=True)) == []


def test_threads_are_set_back_to_those_of_the_run(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    CASES["SGD"].train(tmp_path / "run")
    torch.set_num_threads(1)
    report = OfflineRun(tmp_path / "run" / "rank0").replay()
    assert torch.get_num_threads() == 2
    assert "thread count set back from 1 to the run's 2" in report.notes


def _fail(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


def _lie(state: dict[str, Any], **arguments: Any) -> None:
    save({**state, "model": {name: value.clone().add_(1) for name, value in state["model"].items()}}, **arguments)


DCP_SAVE = "torch.distributed.checkpoint.state_dict_saver.save"
SAME = "tranlogs_torch.tensors.equality._is_same"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.filterwarnings("ignore:.*Please use DTensor instead")
@pytest.mark.parametrize(
    ("form", "place", "broken", "error"),
    [
        ("pt", "torch.save", _fail, OSError),
        ("dcp", DCP_SAVE, _fail, OSError),
        ("dcp", DCP_SAVE, _lie, DataError),
        ("pt", SAME, lambda value, other: False, DataError),
        ("safetensors", SAME, lambda value, other: False, DataError),
    ],
)
def test_a_full_disk_and_what_does_not_read_back_leave_nothing(
    form: str,
    place: str,
    broken: Any,
    error: type[Exception],
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The old file stays."""
    (tmp_path / "out").mkdir()
    if form != "dcp":
        (tmp_path / "out" / "state").write_text("old")
    monkeypatch.setattr(place, broken)
    with pytest.raises(error, match=r"No space|reads back differently"):
        export(trained[0], tmp_path / "out" / "state", form)
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == (["old"] if form != "dcp" else [])


class Foreign(torch.optim.SGD):
    """An optimizer that torch.optim does not have."""


def test_a_class_that_torch_does_not_have_must_be_named(tmp_path: Path) -> None:
    case = Case(lambda model: Foreign(model.parameters(), lr=0.1, momentum=0.9), Plain)
    trained, _, _ = case.train(tmp_path / "run")
    with pytest.raises(UsageError, match=r"--optimizer .*:Foreign"):
        export(tmp_path / "run", tmp_path / "state.pt")
    for given in (f"{__name__}:Foreign", f"main={__name__}:Foreign"):
        export(tmp_path / "run", tmp_path / "state.pt", optimizers=[given])
        found = torch.load(tmp_path / "state.pt", weights_only=True)["model"]
        assert differences(flatten(found), flatten(dict(trained.state_dict()))) == []
    for given in ("Foreign", "no.such.module:Adam", "torch.optim:Nothing", "torch.nn:Linear"):
        with pytest.raises(UsageError):
            OfflineRun(tmp_path, optimizers=[given])


@pytest.mark.parametrize("with_model", [True, False])
def test_a_group_added_after_the_checkpoint_is_replayed(tmp_path: Path, with_model: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    inner = torch.optim.AdamW(model[1].parameters(), lr=0.1)
    options: dict[str, Any] = {"segment_bytes": 1 << 20, "durability": "process", "checkpoint_every": 100, "recheck": False}
    with LoggedOptimizer(inner, tmp_path / "run", model if with_model else None, **options) as logged:
        logged.recover()
        for number in logged.steps(6):
            if number == 3:
                logged.add_param_group({"params": list(model[0].parameters()), "lr": 0.01})
            logged.zero_grad()
            model(torch.ones(5, 3) * number).square().mean().backward()
            logged.step()
    offline = OfflineRun(tmp_path / "run" / "rank0")
    report = offline.replay()
    assert (report.step, report.exact) == (6, True), report
    assert differences(flatten(contents(offline.state.optimizers["main"])), flatten(contents(inner))) == []
    offline.export(tmp_path / "state.pt")
    content = torch.load(tmp_path / "state.pt", weights_only=True)
    found = content["model"] if with_model else content["parameters"]
    expected = model.state_dict() if with_model else dict(enumerate([*model[1].parameters(), *model[0].parameters()]))
    assert all(torch.equal(a, b) for a, b in zip(found.values(), expected.values(), strict=True))
    inner.load_state_dict(content["optimizers"]["main"])
