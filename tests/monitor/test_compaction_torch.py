"""Derived checkpoints of PyTorch runs: the trainer's own bytes, or a refusal in words."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.monitor.compacting import ROOT, compacted
from tests.monitor.shadows import beside_its_own, checkpoints, forget_checkpoints, made
from tests.torch import scripts
from tests.torch.lab import Attempt, Script
from tests.torch.offline.test_offline import CASES, Foreign
from tests.torch.offline.test_offline import Case as OfflineCase
from tranlogs.base.errors import UsageError
from tranlogs.retention.compaction_policy import Compaction
from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.offline.run import OfflineRun


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _children_are_of_this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, (ROOT, ROOT / "integrations", ROOT / "monitor"))))


@pytest.mark.sampled(8)
@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants")
@pytest.mark.parametrize("name", CASES)
def test_it_has_the_bytes_of_the_trainers_own_with_every_optimizer(tmp_path: Path, name: str) -> None:
    """BatchNorm, dropout, a scheduler, tied weights."""
    options = (*CASES[name].options, ("checkpoint_every", 1))
    replace(CASES[name], options=options).train(tmp_path / "run")
    own, shadow = beside_its_own(tmp_path / "run/rank0", OfflineRun)
    assert shadow == own


LOOPS: dict[str, Script] = {
    "ordinary": partial(scripts.ordinary, optimizer_of=lambda model: torch.optim.AdamW(scripts.split(model), lr=0.01)),
    "sparse": partial(scripts.ordinary, optimizer_of=lambda model: torch.optim.SGD(scripts.split(model), lr=0.01), sparse=True),
    "validating": scripts.validating,
    "accumulating": scripts.accumulating,
    "per epoch": scripts.per_epoch,
    "adversarial": scripts.adversarial,
    "without a loader": scripts.without_loader,
    "a loop of its own, with notes": scripts.own_loop,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LOOPS)
def test_it_has_the_bytes_of_the_trainers_own_in_every_loop(tmp_path: Path, name: str) -> None:
    """Loaders, averages, several optimizers, clipping, weights written by hand, gradients that wait, curves."""
    LOOPS[name](Attempt(tmp_path / "run", checkpoint_every=1, keep=100))
    own, shadow = beside_its_own(tmp_path / "run/rank0", OfflineRun)
    assert shadow == own


def test_it_has_the_bytes_of_the_trainers_own_after_a_recovery(tmp_path: Path) -> None:
    case = replace(CASES["AdamW-foreach"], options=(("checkpoint_every", 4), ("keep", 100)))
    case.train(tmp_path / "run", 6)
    case = replace(case, options=(("checkpoint_every", 1), ("keep", 100)))
    case.train(tmp_path / "run", 11)
    own, shadow = beside_its_own(tmp_path / "run/rank0", OfflineRun)
    assert shadow == own


def test_threads_are_those_of_the_run(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    replace(CASES["clipping"], options=(("checkpoint_every", 1),)).train(tmp_path / "run")
    torch.set_num_threads(1)
    own, shadow = beside_its_own(tmp_path / "run/rank0", OfflineRun)
    assert shadow == own


def train_digest(run: Path, turn: Callable[[], None] = lambda: None) -> tuple[int, int | None, bool | None, str]:
    """Train 60 steps without a checkpoint; return where it landed, from which checkpoint, whether exactly, and the weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.BatchNorm1d(512), nn.Dropout(0.2), nn.Linear(512, 64))
    options: dict[str, Any] = {"segment_bytes": 1 << 20, "checkpoint_every": "never", "fingerprint": "full"}
    optimizer = LoggedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01), run, model, **options)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    optimizer.track(scheduler=scheduler)
    report = optimizer.recover()
    for _ in optimizer.steps(60, stateless=True):
        model(torch.randn(16, 256)).square().mean().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        turn()
    optimizer.close()
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    return report.step, report.checkpoint_step, report.exact, digest


def test_a_live_trainer_that_never_takes_one_is_compacted_pruned_killed_and_recovered(tmp_path: Path) -> None:
    run, (said, told) = tmp_path / "run", os.pipe()
    trainer = os.fork()
    if trainer == 0:
        try:
            train_digest(run, lambda: _wait_after(50, told))
        finally:
            os._exit(1)
    os.close(told)
    try:
        assert os.read(said, 1) == b"."
        compacted(run, Compaction(1))  # it waits for its next batch meanwhile
        step = checkpoints(run / "rank0")[-1]
        assert step > 15
        compacted(run, Compaction(1 << 40), segments_max=0, checkpoints_max=1)
        assert checkpoints(run / "rank0") == [step]
    finally:
        os.kill(trainer, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(trainer, 0)[1]) == -signal.SIGKILL
        os.close(said)
    landed, checkpoint, is_exact, digest = train_digest(run)
    assert (checkpoint, is_exact) == (step, True)
    assert landed >= 49
    assert digest == train_digest(tmp_path / "right")[3]


_turns = count(1)


def _wait_after(turns: int, told: int) -> None:
    """Say that so many turns are over, and wait to be killed."""
    if next(_turns) == turns:
        os.write(told, b".")
        signal.pause()


def test_what_a_sample_alone_has_compared_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    replace(CASES["SGD"], options=(("checkpoint_every", 100), ("fingerprint", "sample"))).train(tmp_path / "run")
    forget_checkpoints(tmp_path / "run/rank0")
    compacted(tmp_path / "run")
    assert "compared by a rotating sample" in caplog.text
    assert checkpoints(tmp_path / "run/rank0") == [0]


def test_an_optimizer_that_torch_does_not_have_must_be_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    case = OfflineCase(lambda model: Foreign(model.parameters(), lr=0.1), options=(("checkpoint_every", 100),))
    case.train(tmp_path / "run")
    compacted(tmp_path / "run")
    assert "If you trust its class, name it: --optimizer tests.torch.offline.test_offline:Foreign" in caplog.text
    command = [
        sys.executable,
        "-m",
        "tranlogs",
        "monitor",
        str(tmp_path / "run"),
        "--once",
        "--compact",
        "--compact-after",
        "1B",
        "--optimizer",
        "tests.torch.offline.test_offline:Foreign",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "derived the checkpoint of step 9 from the log" in done.stderr
    assert checkpoints(tmp_path / "run/rank0") == [0, 9]


def test_a_parameter_that_was_added_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(3, 4), nn.Linear(4, 2)
    model = nn.ModuleList([first])
    inner = torch.optim.AdamW(model.parameters(), lr=0.1)
    with LoggedOptimizer(inner, tmp_path / "run", model, segment_bytes=1 << 20, checkpoint_every=100) as logged:
        logged.recover()
        for number in logged.steps(6):
            if number == 3:
                model.append(second)
                logged.add_param_group({"params": second.parameters()})
            logged.zero_grad()
            second(first(torch.ones(5, 3))).sum().backward()
            logged.step()
    with pytest.raises(UsageError, match=r"parameter 1\.weight was added after the last checkpoint"):
        made(tmp_path / "run/rank0", OfflineRun)


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(CASES["SGD"], options=(("checkpoint_every", 100),)).train(tmp_path / "run")
    monkeypatch.setattr(torch, "__version__", "0.0")
    with pytest.raises(UsageError, match="torch version differs"):
        made(tmp_path / "run/rank0", OfflineRun)


def test_state_on_another_device_is_refused_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tranlogs_torch.state import environment

    describe = environment.describe
    monkeypatch.setattr(environment, "describe", lambda optimizers: {**describe(optimizers), "devices": ["cuda"]})
    replace(CASES["SGD"], options=(("checkpoint_every", 100),)).train(tmp_path / "run")
    compacted(tmp_path / "run")
    assert "the state is on cuda, and steps can be redone on that device only" in caplog.text
