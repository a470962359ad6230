"""What `verify` tells; tests of the checks themselves lie beside tranlogs/verify.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.damage import tensor_span
from tranlogs.log.reader import SegmentReader
from tranlogs.log.record_format import Location
from tranlogs.log.scanner import scan
from tranlogs.log.segment_file import parse_segment_name

from .conftest import STEPS, Cli, flip, segment_files


def _locations(path: Path) -> list[Location]:
    named = parse_segment_name(path.name)
    assert named is not None
    return scan(path, named[1])


def _damage_tensor(run: Path, step: int, name: str) -> Path:
    """Flip a byte of one gradient."""
    path = segment_files(run)[0]
    with SegmentReader(path) as reader:
        for location in _locations(path):
            entry = reader.decode(location)
            if entry.kind.is_step and entry.step == step:
                flip(path, tensor_span(entry, name)[0])
                return path
    raise AssertionError(f"no step {step}")


def test_a_sound_run(cli: Cli, run: Path) -> None:
    called = cli("verify", run, "--json")
    assert (called.code, called.json["problems"]) == (0, [])
    (rank,) = called.json["ranks"]
    assert rank["entries"] == STEPS + 2
    assert rank["replays"] == []
    assert "sound" in cli("verify", run).out


@pytest.mark.parametrize("step", [1, 5, STEPS])
def test_a_damaged_tensor_is_named_with_file_step_and_name(cli: Cli, run: Path, step: int) -> None:
    path = _damage_tensor(run, step, "grad/2.weight")
    called = cli("verify", run, "--json")
    assert called.code == 1
    problems = {problem["tensor"]: problem for problem in called.json["problems"]}
    assert len(problems) == len(called.json["problems"]) == 6  # small tensors share a checksum, and are doubtful together
    problem = problems["grad/2.weight"]
    assert (problem["path"], problem["step"]) == (str(path), step)
    told = cli("verify", run)
    assert "6 problems" in told.out
    assert f"step {step}: tensor grad/2.weight: the checksum of its bytes differs" in " ".join(told.out.split())


def test_replay_redoes_everything_from_the_oldest_checkpoint(cli: Cli, run: Path) -> None:
    called = cli("verify", run, "--replay", "--json")
    assert called.code == 0
    (replay,) = called.json["ranks"][0]["replays"]
    assert (replay["checkpoint_step"], replay["step"], replay["replayed"], replay["exact"]) == (0, STEPS, STEPS, True)
    assert "9 steps from checkpoint 0 in" in cli("verify", run, "--replay").out


def test_replay_goes_on_behind_a_hole(cli: Cli, run: Path) -> None:
    path = _damage_tensor(run, 3, "grad/0.bias")
    called = cli("verify", run, "--replay", "--json")
    assert called.code == 1
    assert {(problem["path"], problem["step"]) for problem in called.json["problems"]} == {(str(path), 3)}
    replays = called.json["ranks"][0]["replays"]
    assert [(replay["checkpoint_step"], replay["step"], replay["exact"]) for replay in replays] == [
        (0, 2, True),
        (4, STEPS, True),
    ]


def test_replay_names_the_first_step_that_differs(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch.optim.AdamW.step

    def wrong(self: Any, closure: Any = None) -> Any:
        parameter = self.param_groups[0]["params"][0]
        if not self.state.get(parameter):  # the first step, in whatever order steps are redone
            parameter.data.mul_(1.001)
        return right(self, closure)

    monkeypatch.setattr(torch.optim.AdamW, "step", wrong)
    called = cli("verify", run, "--replay", "--json")
    assert called.code == 1
    (problem,) = called.json["problems"]
    assert problem["step"] == 1
    assert "differs from the run's fingerprint" in problem["what"]


def test_replay_without_the_framework_says_what_to_install(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tranlogs.frameworks.entry_points", lambda **_: [])
    assert cli("verify", run).code == 0
    called = cli("verify", run, "--replay")
    assert called.code == 2
    assert "pip install 'tranlogs[torch]'" in called.err


def test_damage_is_told_even_if_nothing_can_be_replayed(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tranlogs.frameworks.entry_points", lambda **_: [])
    path = _damage_tensor(run, 2, "grad/0.bias")
    called = cli("verify", run, "--replay", "--json")
    assert called.code == 1
    assert called.json["problems"][0]["path"] == str(path)
