"""Loops that people write come back to the bit, and what cannot be right is refused with what to write.

`steps()`: a resume is called exact where the data of the turns are known, and where the script declares that they are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from tests.support import campaign
from tests.torch.lab import Attempt, differences, flatten, in_child, prove_exact, uninterrupted
from tests.torch.nets import seed, tokens
from tests.torch.scripts import LOOPS, OWN_LOOPS
from tests.torch.sources import SOURCES
from tranlogs.base.errors import UsageError
from tranlogs.training import UNKNOWN_DATA
from tranlogs_torch import LoggedOptimizer, RecoveryReport
from tranlogs_torch.state.caveats import IMPLICIT


@pytest.mark.crash
@pytest.mark.parametrize("name", [*LOOPS, *OWN_LOOPS])
def test_a_killed_loop_comes_back_to_the_bit(name: str, tmp_path: Path) -> None:
    """One life dies after the other, each at another place; the resume is proven, and says so."""
    torch._dynamo.reset()
    script, die_at = {**LOOPS, **OWN_LOOPS}[name]
    kills = len(die_at) if campaign.is_soak() else 2 if name in ("epochs", "stages") else 1
    prove_exact(script, tmp_path / "run", die_at[:kills], is_exact=True if name in LOOPS else None)


def test_gradient_that_is_written_while_its_record_waits_for_the_writer(tmp_path: Path) -> None:
    prove_exact(LOOPS["gradients decayed"][0], tmp_path / "run", (16,), writer="thread")


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (range(10), "optimizer.epochs(10, ...) yields the numbers from 0 on, and leaves finished epochs out"),
        (range(1, 11), "The numbers of the range are epoch + 1"),
        ([0, 1], "optimizer.epochs(10, data) yields the numbers of ten epochs, from 0 on"),
    ],
    ids=str,
)
def test_epochs_of_a_range_is_refused_with_what_to_write(count: Any, told: str, tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = Attempt(tmp_path / "run").wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    with pytest.raises(UsageError, match="give the number of epochs of the whole run") as caught:
        optimizer.epochs(count, tokens(8))
    assert told in str(caught.value)
    optimizer.close()


@pytest.mark.parametrize("options", [{"batch_size": 3, "shuffle": True}, {"batch_size": None}], ids=str)
def test_an_epoch_stands_for_its_loader(options: dict[str, Any], tmp_path: Path) -> None:
    """Training functions print `len(loader.dataset)`, and call `loader.sampler.set_epoch`."""
    model, loader = nn.Linear(2, 2), DataLoader(TensorDataset(torch.ones(9, 2)), **options)
    sampler = loader.sampler
    optimizer = Attempt(tmp_path / "run").wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    optimizer.track(loader=loader).recover()
    for epoch in optimizer.epochs(2):
        assert epoch.dataset is loader.dataset
        assert (epoch.batch_size, len(epoch)) == (options["batch_size"], len(loader))
        assert epoch.sampler is sampler
        for (x,) in epoch:
            model(x).sum().backward()
            optimizer.step()
    optimizer.close()


def test_an_epoch_without_a_batch_is_refused_with_what_to_write(tmp_path: Path) -> None:
    model, loader = nn.Linear(2, 1), DataLoader(TensorDataset(torch.rand(4, 2)))
    optimizer = Attempt(tmp_path / "run").wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    optimizer.track(loader=loader).recover()
    with pytest.raises(UsageError, match=r"epoch 1 gave no batch.*`for batch in epoch`, not `for batch in loader`"):
        for _ in optimizer.epochs(2):
            pass
    optimizer.close()


# steps()


class Position:
    """State of the script's own: the position in its data, or the best score. Nobody but the script knows which."""

    def __init__(self) -> None:
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


Make = Callable[[nn.Module, LoggedOptimizer], Any]
TELLS_NOTHING: dict[str, Make] = {
    "scheduler": lambda model, optimizer: lr_scheduler.StepLR(optimizer, 3),
    "scaler": lambda model, optimizer: torch.amp.GradScaler("cpu", enabled=False),
    "averaged": lambda model, optimizer: AveragedModel(model),
    "score": lambda model, optimizer: Position(),
    "module": lambda model, optimizer: nn.Linear(2, 2),
    "optimizer": lambda model, optimizer: torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1),
    "torch_generator": lambda model, optimizer: torch.Generator().manual_seed(1),
    "numpy_generator": lambda model, optimizer: np.random.default_rng(1),
}


def train(
    run: Path, until: int, make: dict[str, Make] | None = None, *, stateless: bool = False, takes: bool = False
) -> LoggedOptimizer:
    """Train without a loader, or with batches of one (`takes`) that the body of the loop asks for."""
    seed()
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), run, model, durability="process")
    loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=2)
    optimizer.track(
        **({"loader": loader} if takes else {}), **{name: each(model, optimizer) for name, each in (make or {}).items()}
    )
    optimizer.recover()
    batches: Iterator[Any] = iter(loader)
    for _ in optimizer.steps(until, stateless=stateless):
        (x,) = next(batches) if takes else (torch.ones(2, 4),)
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.close()
    return optimizer


def last_words(report: RecoveryReport) -> tuple[int, bool | None, bool]:
    return report.step, report.exact, UNKNOWN_DATA in report.notes


def test_what_tells_nothing_of_the_data_leaves_it_unknown_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`report` has it of the fresh run as well, so that nobody learns it from a crash."""
    for until, step in ((3, 0), (5, 3), (5, 5)):
        report = train(tmp_path / "run", until, TELLS_NOTHING).report
        assert last_words(report) == (step, None, True)
        assert caplog.text.count(UNKNOWN_DATA) == 1, "the report of a recovery has it"
    assert report.notes == (UNKNOWN_DATA,)


@pytest.mark.parametrize("how", ["state", "loader", "declared"])
def test_data_that_are_tracked_or_declared_are_known(how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {
        "state": {"make": {"place": lambda model, optimizer: Position()}, "stateless": True},
        "loader": {"takes": True},
        "declared": {"stateless": True},
    }[how]
    for until, step in ((3, 0), (5, 3), (5, 5)):
        report = train(tmp_path / "run", until, **options).report
        assert (report.step, report.exact, report.notes) == (step, True, ())
    assert "steps(...)" not in caplog.text


def test_a_declaration_counts_from_the_start_that_makes_it(tmp_path: Path) -> None:
    train(tmp_path / "run", 3)
    assert last_words(train(tmp_path / "run", 5, stateless=True).report) == (3, True, False)
    assert last_words(train(tmp_path / "run", 7).report) == (5, None, True)


def test_a_loader_that_was_taken_from_in_another_loop_tells_nothing_of_the_turns(tmp_path: Path) -> None:
    """A first phase over a loader is exact; of the second one, nothing is known."""
    words = []
    for batches, turns in ((2, 0), (4, 0), (4, 2), (4, 4)):
        model = nn.Linear(4, 2)
        loader = DataLoader(TensorDataset(torch.ones(64, 4)), batch_size=2)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        with LoggedOptimizer(inner, tmp_path / "run", model, durability="process") as optimizer:
            report = optimizer.track(loader=loader).recover()
            for (x,) in optimizer.batches(loader, until=batches):
                model(x).sum().backward()
                optimizer.step()
            for _ in optimizer.steps(turns):
                optimizer.step()
        words.append((report.exact, optimizer.report.exact, optimizer.report.notes))
    unknown = (UNKNOWN_DATA,)
    assert words == [(True, True, ()), (True, True, ()), (True, None, unknown), (None, None, unknown)]


def test_a_turn_without_a_batch_of_the_tracked_loader_leaves_the_data_unknown(tmp_path: Path) -> None:
    """The first turn takes a batch, and the others train on one that waits in a variable."""
    model, words = nn.Linear(4, 2), []
    for until in (1, 3, 5):
        loader = DataLoader(TensorDataset(torch.ones(64, 4)), batch_size=2)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        with LoggedOptimizer(inner, tmp_path / "run", model, durability="process") as optimizer:
            optimizer.track(loader=loader).recover()
            batches, waiting = iter(loader), torch.ones(2, 4)
            for turn in optimizer.steps(until):
                (x,) = next(batches) if turn == 0 else (waiting,)
                model(x).sum().backward()
                optimizer.step()
        words.append(optimizer.report.exact)
    assert words == [True, None, None]


def plain(attempt: Attempt) -> None:
    """Loops over a tracked loader that are not the optimizer's."""
    seed()
    loader, model = SOURCES["shuffled"](), nn.Linear(2, 1)
    optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=1e-5), model)
    attempt.start(optimizer, loader=loader)
    attempt.keep(begun=copy.deepcopy(model.state_dict()))
    for _ in range(2):
        for batch in loader:
            model(batch).square().mean().backward()
            attempt.tick()
            optimizer.step()
            optimizer.zero_grad()
            attempt.keep(after=[*attempt.kept.get("after", ()), copy.deepcopy(model.state_dict())])
    attempt.keep(steps=optimizer.watermarks["step"] if attempt.run is not None else 0)
    optimizer.close()


@pytest.mark.crash
def test_a_plain_loop_is_logged_starts_over_and_is_named_with_the_lines_to_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its steps are neither called exact nor called wrong."""
    assert in_child(lambda: plain(Attempt(tmp_path / "run", 15))) < 0  # after 14 steps, in the second epoch
    last = Attempt(tmp_path / "run")
    plain(last)
    begun, report = last.reports[0], last.final_report()
    assert (begun.step, last.kept["steps"]) == (14, 14 + 24), "the loop starts over"
    assert (report.recheck, report.exact) == ("", None), report
    assert [note for note in begun.notes if note == IMPLICIT] == [IMPLICIT], begun.notes
    assert "`for epoch in optimizer.epochs(E):`" in IMPLICIT
    twin = uninterrupted(plain)
    assert differences(flatten(last.kept["begun"]), flatten(twin.kept["after"][13])) == [], "those after the 14th step"
    assert IMPLICIT not in caplog.text, "the report of the resume has it"
    plain(Attempt(tmp_path / "fresh"))
    assert caplog.text.count(IMPLICIT) == 1, "and a fresh run says it before any crash"


@pytest.mark.crash
def test_an_iteration_that_gave_batches_before_the_loop_is_named(tmp_path: Path) -> None:
    def script(attempt: Attempt) -> None:
        seed()
        loader, model = SOURCES["shuffled"](), nn.Linear(2, 1)
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=1e-5), model)
        attempt.start(optimizer, loader=loader)
        batches = iter(loader)
        ahead = next(batches)
        for _ in optimizer.steps(7):
            model(ahead).square().mean().backward()
            attempt.tick()
            optimizer.step()
            ahead = next(batches)
        optimizer.close()

    assert in_child(lambda: script(Attempt(tmp_path / "run", 5))) < 0
    last = Attempt(tmp_path / "run")
    script(last)
    assert last.final_report().exact is not True
    assert any("gave batches before the loop" in note for note in last.final_report().notes)
