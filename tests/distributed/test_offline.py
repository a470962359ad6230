"""The command line on a run of several ranks: every rank's journal has a share, and a reader puts them together."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash

from tests.cli.conftest import Cli
from tests.distributed import scripts
from tests.distributed.conftest import Groups
from tests.distributed.scripts import STEPS
from tests.distributed.test_lost_journals import flip_gradients, records_of
from tests.kills.judge import Life, finish
from tranlogs.base.errors import RunInUse, StateMismatch
from tranlogs.journal.owner_lock import OwnerLock
from tranlogs_torch import LoggedOptimizer

pytestmark = pytest.mark.crash

PARAMETERS = 8 * 40 + 40 + 40 * 40 + 40 + 40 * 5 + 5 + 2 * 40
NEWEST = 15  # the step of the newest checkpoint


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


def demand_weights(content: dict[str, Any], folder: Path, kind: str) -> None:
    """Demand that exported weights and states, whole or their rows of each rank, are those to which the ranks came."""
    names = [name for name in content if "running" not in name and "num_batches" not in name]
    for name in names:
        shards = []
        for rank in range(3):
            (leaf,) = Life.read(folder / f"rank{rank}").of("model", f"module.{name}" if kind == "ddp" else name).values()
            shards.append(leaf[-1])
        if kind == "ddp":
            assert shards == [bits(content[name])] * 3, name
        else:
            assert b"".join(shards) == bits(content[name]), name


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_commands_put_the_shares_together(kind: str, trained: Callable[[str], Path], cli: Cli, tmp_path: Path) -> None:
    """`replay` gives the weights without the script, `verify` redoes every rank's log, `status` tells where all would land."""
    folder = trained(kind)
    run = folder / "run"
    for given in (run, run / "rank1"):
        found = cli("replay", given, "--out", tmp_path / "out.pt", "--force", "--json")
        assert found.code == 0, found.err
        assert (found.json["step"], found.json["exact"], found.json["replayed"]) == (STEPS, True, STEPS - NEWEST)
        demand_weights(torch.load(tmp_path / "out.pt", weights_only=True)["model"], folder, kind)
    found = cli("verify", run, "--replay", "--json")
    assert found.code == 0, found.out
    assert [rank["problems"] for rank in found.json["ranks"]] == [[]] * 3
    assert [[report["exact"] for report in rank["replays"]] for rank in found.json["ranks"]] == [[True]] * 3
    found = cli("status", run, "--json")
    assert found.json["group"] == {"world": 3, "step": STEPS, "lost": [], "stopped": [], "problems": []}
    assert f"3 ranks go back to step {STEPS}" in cli("status", run).out
    ranks: list[Any] = cli("log", run, "--limit", "0", "--json").json["ranks"]
    dense = [sum(r["dense_bytes"] for r in rank["records"] if r["kind"] == "gradients") for rank in ranks]
    assert sum(dense) == PARAMETERS * 4 * STEPS
    if kind == "ddp":
        assert max(dense) - min(dense) <= STEPS * 8
    else:
        assert max(dense) / min(dense) < 1.3  # 40 rows on 3 ranks are 14, 14 and 12; 5 rows are 2, 2 and 1
        told = cli("log", run / "rank2", "--step", STEPS).out
        assert "12x40 @28,0" in told
        manifest = json.loads(next((run / "rank2" / "checkpoints").glob("step-*/manifest.json")).read_text())["manifest"]
        assert manifest["tensors"]["state/main/middle.weight/exp_avg"]["piece"] == ["box", [28, 0], [40, 40]]
        sharding = manifest["environment"]["sharding"]
        assert sharding["meshes"] == [{"names": [], "shape": [3], "ranks": [0, 1, 2]}]
        assert sharding["tensors"]["out.weight"] == [0, [5, 40], ["Shard(0)"]]


def test_an_export_is_loaded_by_sharded_models_with_every_bit(
    trained: Callable[[str], Path], groups: Groups, cli: Cli, tmp_path: Path
) -> None:
    run = trained("ddp") / "run"
    for form in ("pt", "dcp"):
        found = cli("replay", run, "--format", form, "--out", tmp_path / form, "--json")
        assert (found.code, found.json["step"], found.json["exact"]) == (0, STEPS, True), found.err
    content = torch.load(tmp_path / "pt", weights_only=True)
    state = content["optimizers"]["main"]
    names = [name for name in content["model"] if "running" not in name and "num_batches" not in name]
    tensors = {f"{name} ": content["model"][name] for name in names}
    for name, slots in zip(names, state["state"].values(), strict=True):
        tensors |= {f"{name} {slot}": value for slot, value in slots.items()}
    right = {name: xxhash.xxh3_64_hexdigest(bits(value)) for name, value in tensors.items()}
    for life in finish(scripts.load_export, tmp_path / "life", tmp_path / "dcp", launcher=groups(2)):
        assert [json.loads(line) for line in life.printed] == [right | {"lr": state["param_groups"][0]["lr"]}] * 2


def test_a_lost_journal_is_worked_around_and_said(copied: Callable[[str], Path], cli: Cli, tmp_path: Path) -> None:
    run = copied("ddp") / "run"
    shutil.rmtree(run / "rank2")
    found = cli("replay", run, "--out", tmp_path / "out.pt", "--force", "--json")
    assert (found.code, found.json["step"], found.json["exact"]) == (0, NEWEST, True)
    words = "the journal of rank 2 is gone"
    assert any(words in note["sentence"] for note in found.json["notes"])
    found = cli("status", run, "--json")
    assert (found.code, words in cli("status", run).out) == (1, True)
    assert found.json["group"] == {"world": 3, "step": NEWEST, "lost": [2], "stopped": [], "problems": [words]}


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_damaged_share_is_named_and_worked_around(kind: str, copied: Callable[[str], Path], cli: Cli, tmp_path: Path) -> None:
    run = copied(kind) / "run"
    flip_gradients(records_of(run / "rank1")[STEPS])
    found = cli("replay", run / "rank0", "--out", tmp_path / "out.pt", "--force", "--json")
    assert (found.json["step"], found.json["exact"]) == (STEPS - 1, True)
    assert kind == "fsdp" or any(
        "rank1" in note["sentence"] and f"step {STEPS}" in note["sentence"] for note in found.json["notes"]
    ), found.json


def test_a_journal_without_checkpoints_has_its_share_of_the_log_still(
    copied: Callable[[str], Path], cli: Cli, tmp_path: Path
) -> None:
    run = copied("ddp") / "run"
    for path in (run / "rank1" / "checkpoints").iterdir():
        shutil.rmtree(path)
    for rank in (0, 1):
        found = cli("replay", run / f"rank{rank}", "--out", tmp_path / "out.pt", "--force", "--json")
        assert (found.json["step"], found.json["checkpoint_step"], found.json["exact"]) == (STEPS, NEWEST, True)
    assert any(f"from rank 0's checkpoint of step {NEWEST}" in note["sentence"] for note in found.json["notes"])


def test_one_process_alone_takes_up_neither_another_model_nor_what_others_still_write(copied: Callable[[str], Path]) -> None:
    run = copied("ddp") / "run"

    def recover() -> None:
        model = torch.nn.Linear(2, 2)
        with LoggedOptimizer(torch.optim.AdamW(model.parameters()), run, model) as optimizer:
            optimizer.recover()

    lock = OwnerLock(run / "rank2")
    with pytest.raises(RunInUse, match="rank2"):
        recover()
    lock.release()
    with pytest.raises(StateMismatch, match="recorded, but absent from the script"):
        recover()
