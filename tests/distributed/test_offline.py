"""The command line on a divided run: every rank's journal has a share, and a reader puts them together."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.conftest import Cli
from tests.distributed.child import STEPS
from tests.distributed.conftest import Launcher
from tranlogs.base.errors import RunInUse, StateMismatch, UsageError
from tranlogs.journal.owner_lock import OwnerLock
from tranlogs_torch import LoggedOptimizer

pytestmark = pytest.mark.crash


def test_replay_without_the_script_gives_the_weights(divided: Path, launcher: Launcher, cli: Cli, tmp_path: Path) -> None:
    right = launcher.reference(3, "plain")
    for run in (divided, divided / "rank1"):
        found = cli("replay", run, "--out", tmp_path / "out.pt", "--force", "--json")
        assert found.code == 0, found.err
        assert (found.json["step"], found.json["exact"], found.json["replayed"]) == (STEPS, True, STEPS - 42)
        weights = torch.load(tmp_path / "out.pt", weights_only=True)["model"]
        assert all(weights[name].tolist() == values for name, values in right[0]["weights"].items())


def test_an_export_is_loaded_by_sharded_models_with_every_bit(
    divided: Path, launcher: Launcher, cli: Cli, tmp_path: Path
) -> None:
    for form in ("pt", "dcp"):
        found = cli("replay", divided, "--format", form, "--out", tmp_path / form, "--json")
        assert (found.code, found.json["step"], found.json["exact"]) == (0, STEPS, True), found.err
    content = torch.load(tmp_path / "pt", weights_only=True)
    state = content["optimizers"]["main"]
    right = {name: content["model"][name].tolist() for name in state_names(content)}
    for name, slots in zip(state_names(content), state["state"].values(), strict=True):
        right |= {f"{name} {slot}": value.tolist() for slot, value in slots.items()}
    right["lr"] = state["param_groups"][0]["lr"]
    assert launcher.run(2, "loads", tmp_path / "dcp") == [{"False": right, "True": right}] * 2


def state_names(content: dict[str, Any]) -> list[str]:
    """The names of the parameters: what of the weights is no buffer."""
    return [name for name in content["model"] if "running" not in name and "num_batches" not in name]


def test_all_ranks_start_from_what_the_script_has_loaded_and_come_back_from_a_kill(launcher: Launcher, tmp_path: Path) -> None:
    found = launcher.run(3, "started", tmp_path / "run", [[1, -1, 0], [2, 9, 0]])
    told = launcher.told()
    assert found == launcher.reference(3, "started")
    assert found[0]["weights"] != launcher.reference(3, "plain")[0]["weights"]
    assert told[-1]["step"] == 9
    assert all(report["exact"] is True for report in told)


def test_verify_redoes_every_ranks_log(divided: Path, cli: Cli) -> None:
    found = cli("verify", divided, "--replay", "--json")
    assert found.code == 0, found.out
    for rank in found.json["ranks"]:
        assert rank["problems"] == []
        assert [report["exact"] for report in rank["replays"]] == [True]
        assert rank["replays"][0]["replayed"] == STEPS - 35


def test_status_shows_all_ranks_and_where_they_would_land(copied: Path, cli: Cli) -> None:
    found = cli("status", copied, "--json")
    assert found.code == 0
    assert [rank["rank"] for rank in found.json["ranks"]] == [0, 1, 2]
    assert found.json["group"] == {"world": 3, "step": STEPS, "lost": [], "stopped": [], "problems": []}
    assert f"3 ranks go back to step {STEPS}" in cli("status", copied).out
    shutil.rmtree(copied / "rank1")
    found = cli("status", copied, "--json")
    assert found.json["group"] == {
        "world": 3,
        "step": 42,
        "lost": [1],
        "stopped": [],
        "problems": ["the journal of rank 1 is gone"],
    }
    assert "the journal of rank 1 is gone" in cli("status", copied).out
    assert found.code == 1


def test_a_lost_journal_is_worked_around_and_said(copied: Path, cli: Cli, tmp_path: Path) -> None:
    shutil.rmtree(copied / "rank2")
    found = cli("replay", copied, "--out", tmp_path / "out.pt", "--force", "--json")
    assert (found.code, found.json["step"], found.json["exact"]) == (0, 42, True)
    assert any("the journal of rank 2 is gone" in note for note in found.json["notes"])


def test_a_damaged_share_is_named_and_worked_around(copied: Path, cli: Cli, tmp_path: Path) -> None:
    for rank in range(3):  # so that the damage lies before no checkpoint
        for name in sorted((copied / f"rank{rank}" / "checkpoints").iterdir())[-1:]:
            shutil.rmtree(name)
    assert cli("replay", copied, "--step", 42, "--out", tmp_path / "right.pt").code == 0
    (segment,) = sorted((copied / "rank1" / "log").glob("*.seg"))[:1]
    data = bytearray(segment.read_bytes())
    where = _last_gradient(copied / "rank1")
    data[where] ^= 1
    segment.write_bytes(data)
    found = cli("replay", copied / "rank0", "--out", tmp_path / "out.pt", "--force", "--json")
    assert found.json["step"] == STEPS - 1
    assert found.json["exact"] is True
    assert any("rank1" in note and f"step {STEPS}" in note for note in found.json["notes"]), found.json["notes"]


def _last_gradient(folder: Path) -> int:
    from tranlogs.log.reader import SegmentReader
    from tranlogs.recovery.group.journals import read_generations, select_generation

    log = select_generation(read_generations(folder), 1)
    (run,) = log.history.runs
    last = [link for link in run if link.kind.is_step][-1]
    with SegmentReader(last.segment.path) as reader:
        entries = [reader.decode(link.location) for link in run if link.segment is last.segment]
    return next(entry for entry in reversed(entries) if entry.kind.is_step).location.payload_offset


def test_a_journal_without_checkpoints_has_its_share_of_the_log_still(copied: Path, cli: Cli, tmp_path: Path) -> None:
    for path in (copied / "rank1" / "checkpoints").iterdir():
        shutil.rmtree(path)
    for rank in (0, 1):
        found = cli("replay", copied / f"rank{rank}", "--out", tmp_path / "out.pt", "--force", "--json")
        assert (found.json["step"], found.json["checkpoint_step"], found.json["exact"]) == (STEPS, 42, True)
    assert any("from rank 0's checkpoint of step 42" in note for note in found.json["notes"])


def test_one_process_alone_that_has_another_model_does_not_take_it_up(copied: Path) -> None:
    model = torch.nn.Linear(2, 2)
    with (
        LoggedOptimizer(torch.optim.AdamW(model.parameters()), copied, model) as optimizer,
        pytest.raises(StateMismatch, match="recorded, but absent from the script"),
    ):
        optimizer.recover()


def test_one_process_does_not_take_up_what_others_still_write(copied: Path) -> None:
    lock = OwnerLock(copied / "rank2")
    model = torch.nn.Linear(2, 2)
    try:
        with (
            LoggedOptimizer(torch.optim.AdamW(model.parameters()), copied, model) as optimizer,
            pytest.raises(RunInUse, match="rank2"),
        ):
            optimizer.recover()
    finally:
        lock.release()


def test_without_a_process_group_it_is_refused_before_a_journal_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = torch.nn.Linear(2, 2)
    for rank in (None, 1):
        with pytest.raises(UsageError, match="WORLD_SIZE is 2, but"):
            LoggedOptimizer(torch.optim.AdamW(model.parameters()), tmp_path / "run", model, rank=rank)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("start", ["recover", "step"])
def test_a_process_group_that_came_later_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str) -> None:
    model = torch.nn.Linear(2, 2)
    with LoggedOptimizer(torch.optim.AdamW(model.parameters()), tmp_path / "run", model, rank=1) as optimizer:
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda *_: 2)
        with pytest.raises(UsageError, match="initialized after LoggedOptimizer"):
            getattr(optimizer, start)()


def test_settings_that_differ_between_ranks_are_refused(launcher: Launcher, tmp_path: Path) -> None:
    arguments = ["apart", str(tmp_path / "run"), str(launcher.folder / "out"), json.dumps([])]
    assert launcher.ask({"world": 2, "restarts": 0, "arguments": arguments})
    words = "checkpoint_every: rank 0 has 7 steps, rank 1 has 1000 steps; durability: rank 0 has process, rank 1 has machine"
    assert f"({words})" in launcher.said()
