"""Ranks that hold parts of the parameters and die by SIGKILL: every run ends with the bits of one that nobody killed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.cli.conftest import Cli
from tests.distributed.child import DIES
from tests.distributed.child import STEPS as DDP_STEPS
from tests.distributed.conftest import Launcher, Outcome
from tests.distributed.sharded import EVERY, STEPS
from tests.distributed.test_kills import differences, drawn
from tests.support import campaign
from tranlogs.base.errors import UsageError
from tranlogs_torch import LoggedOptimizer

pytestmark = pytest.mark.crash

PARAMETERS = 8 * 40 + 40 + 40 * 40 + 40 + 40 * 2 + 2 + 2 * 40


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("world", "name", "kills"),
    [
        (3, "fsdp", 4),
        campaign.in_soak(2, "fsdp accumulation", 2),
        campaign.in_soak(3, "fsdp mixed", 2),
        (2, "tp", 1),
        (4, "fsdp tp", 1),
        (4, "hsdp", 1),
    ],
)
def test_killed_group_ends_with_the_bits_of_one_that_was_not(
    launcher: Launcher, tmp_path: Path, world: int, name: str, kills: int
) -> None:
    planned = drawn(world, campaign.few(kills), last=STEPS // 3 if "accumulation" in name else STEPS)
    print(planned)
    right = launcher.reference(world, name)
    found = launcher.run(world, name, tmp_path / "run", planned)
    told = launcher.told()
    print(told)
    assert differences(found, right) == [[]] * world
    assert DIES in launcher.said(), "nobody was killed"
    assert all(report["exact"] is True for report in told)
    steps = [report["step"] for report in told]
    assert steps == sorted(steps)


def test_a_death_between_a_checkpoint_of_one_rank_and_that_of_another_loses_a_step(launcher: Launcher, tmp_path: Path) -> None:
    """With keep=1: rank 0's newest checkpoint is of a step that rank 1 does not have."""
    found = launcher.run(2, "fsdp tight", tmp_path / "run", [[1, None, 0, 2 * EVERY]])
    assert [report["step"] for report in launcher.told()] == [0, 2 * EVERY - 1]
    assert differences(found, launcher.reference(2, "fsdp tight")) == [[]] * 2


@pytest.mark.sampled(0)
def test_a_disk_that_is_lost_before_the_first_step_costs_nothing(launcher: Launcher, tmp_path: Path) -> None:
    found = launcher.run(2, "fsdp", tmp_path / "run", [[1, 0, 0, "disk"], [0, 9, 0]])
    assert [(report["step"], report["exact"]) for report in launcher.told()] == [(0, True), (0, True), (9, True)]
    assert differences(found, launcher.reference(2, "fsdp")) == [[]] * 2


@pytest.mark.sampled(0)
def test_optimizers_of_all_kinds_and_a_store(launcher: Launcher, tmp_path: Path) -> None:
    """Killed, and in the end, when the disk is gone, one process takes all of it up from the store."""
    name, run = "fsdp optimizers", tmp_path / "run"
    right = launcher.reference(2, name)
    Path(f"{run}.store").mkdir()
    found = launcher.run(2, name, run, [[1, 8, 0], [0, 21, 3]])
    assert differences(found, right) == [[]] * 2
    told = launcher.told()
    assert [(report["step"] > 0, report["exact"]) for report in told] == [(False, True), (True, True), (True, True)]
    assert "Muon: its parameters are sharded, and its update is not known to be elementwise" in launcher.said()
    shutil.rmtree(run)
    (alone,) = launcher.run(1, name, run)
    (report,) = launcher.told()
    assert report["step"] == 6 * STEPS
    assert alone["weights"] == right[0]["weights"]


@pytest.fixture(scope="module")
def sharded(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A run of three ranks under FSDP2 that went to its end, to be read only; and what came out."""
    run = tmp_path_factory.mktemp("sharded") / "run"
    return run, launcher.run(3, "fsdp", run)


@pytest.fixture
def copied(sharded: tuple[Path, Outcome], tmp_path: Path) -> Path:
    return Path(shutil.copytree(sharded[0], tmp_path / "run"))


def test_each_rank_logs_its_shards_and_where_they_lie(sharded: tuple[Path, Outcome], cli: Cli) -> None:
    ranks: list[Any] = cli("log", sharded[0], "--limit", "0", "--json").json["ranks"]
    dense = [sum(r["dense_bytes"] for r in rank["records"] if r["kind"] == "gradients") for rank in ranks]
    assert sum(dense) == PARAMETERS * 4 * STEPS
    assert max(dense) / min(dense) < 1.3  # 40 rows on 3 ranks are 14, 14 and 12; 2 rows are on two of them
    told = cli("log", sharded[0] / "rank2", "--step", "20").out
    assert "12x40 @28,0" in told
    assert "0x40 @2,0" in told
    manifest = json.loads(next((sharded[0] / "rank2" / "checkpoints").glob("step-*/manifest.json")).read_text())["manifest"]
    assert manifest["tensors"]["state/main/middle.weight/exp_avg"]["piece"] == ["box", [28, 0], [40, 40]]
    sharding = manifest["environment"]["sharding"]
    assert sharding["meshes"] == [{"names": [], "shape": [3], "ranks": [0, 1, 2]}]
    assert sharding["tensors"]["out.weight"] == [0, [2, 40], ["Shard(0)"]]


def test_replay_without_the_script_gives_whole_weights(sharded: tuple[Path, Outcome], cli: Cli, tmp_path: Path) -> None:
    run, right = sharded
    for given in (run, run / "rank1"):
        found = cli("replay", given, "--out", tmp_path / "out.pt", "--force", "--json")
        assert found.code == 0, found.err
        assert (found.json["step"], found.json["exact"], found.json["replayed"]) == (STEPS, True, STEPS - 28)
        content = torch.load(tmp_path / "out.pt", weights_only=True)
        assert {name: values.tolist() for name, values in content["model"].items() if name in right[0]["weights"]} == (
            right[0]["weights"]
        )
        state = content["optimizers"]["main"]["state"]
        assert [tuple(one["exp_avg"].shape) for one in state.values()] == [tuple(p.shape) for p in _parameters(content)]
    assert cli("replay", run, "--step", 25, "--out", tmp_path / "out.safetensors", "--json").json["step"] == 25


def _parameters(content: dict[str, Any]) -> list[torch.Tensor]:
    return [values for name, values in content["model"].items() if not name.startswith("norm.running") and "num" not in name]


def test_verify_and_status_read_well(sharded: tuple[Path, Outcome], cli: Cli) -> None:
    found = cli("verify", sharded[0], "--replay", "--json")
    assert found.code == 0, found.out
    assert [[report["exact"] for report in rank["replays"]] for rank in found.json["ranks"]] == [[True]] * 3
    coordinator = cli("status", sharded[0], "--json").json["group"]
    assert (coordinator["world"], coordinator["step"], coordinator["lost"], coordinator["problems"]) == (3, STEPS, [], [])
    assert "8 parameters, over 3 ranks" in cli("status", sharded[0] / "rank0").out


def test_damage_in_one_ranks_log_makes_all_land_before_it(copied: Path, cli: Cli, tmp_path: Path) -> None:
    from tests.distributed.test_offline import _last_gradient

    (segment,) = sorted((copied / "rank1" / "log").glob("*.seg"))[-1:]
    data = bytearray(segment.read_bytes())
    data[_last_gradient(copied / "rank1")] ^= 1
    segment.write_bytes(data)
    found = cli("replay", copied, "--out", tmp_path / "out.pt", "--force", "--json")
    assert (found.code, found.json["step"], found.json["exact"]) == (0, STEPS - 1, True)


def test_a_lost_journal_is_refused_by_rank_and_step(copied: Path, launcher: Launcher, cli: Cli, tmp_path: Path) -> None:
    shutil.rmtree(copied / "rank2")
    words = "the journals of ranks 2 are gone, and with them their shards of weights"
    assert words in cli("status", copied, "--json").json["problems"][-1]
    found = cli("replay", copied, "--out", tmp_path / "out.pt", "--force")
    assert (found.code, (tmp_path / "out.pt").exists()) == (1, False)
    assert f"ranks 0, 1 have steps 0 to {STEPS}" in found.err
    arguments = ["fsdp", str(copied), str(launcher.folder / "out"), json.dumps([])]
    assert launcher.ask({"world": 3, "restarts": 0, "arguments": arguments})
    assert words in launcher.said()


def refused(launcher: Launcher, run: Path) -> str:
    """What is said to a start that must not go on."""
    arguments = ["fsdp", str(run), str(launcher.folder / "out"), json.dumps([])]
    assert launcher.ask({"world": 3, "restarts": 0, "arguments": arguments})
    return launcher.said()


def test_parts_of_two_pasts_make_no_state(
    sharded: tuple[Path, Outcome], copied: Path, launcher: Launcher, tmp_path: Path
) -> None:
    """One folder comes from a backup that is older than a rewind."""
    Path(f"{copied}.back").write_text("30")
    launcher.run(3, "fsdp", copied)
    Path(f"{copied}.back").unlink()
    assert [report["step"] for report in launcher.told()] == [30]
    shutil.rmtree(copied / "rank1")
    shutil.copytree(sharded[0] / "rank1", copied / "rank1")
    found = launcher.run(3, "fsdp", copied)
    (told,) = launcher.told()
    assert (told["step"], told["timeline"], told["exact"]) == (30, 3, True)
    assert any("the journal of rank 1 forks from the history of the run at step 30" in note for note in told["notes"])
    assert differences(found, sharded[1]) == [[]] * 3


def test_a_rewind_that_not_all_have_begun_never_was(
    sharded: tuple[Path, Outcome], divided: Path, copied: Path, launcher: Launcher, tmp_path: Path
) -> None:
    """Rank 1 dies as rank 0 has begun the timeline of the rewind: all go on where they stood."""
    ddp = Path(shutil.copytree(divided, tmp_path / "ddp"))
    for name, run, last in (("fsdp", copied, STEPS), ("plain", ddp, DDP_STEPS)):
        Path(f"{run}.back").write_text(str(last - 2))
        Path(f"{run}.torn").touch()
        arguments = [name, str(run), str(launcher.folder / "out"), json.dumps([])]
        assert launcher.ask({"world": 3, "restarts": 0, "arguments": arguments})
        assert DIES in launcher.said()
        Path(f"{run}.back").unlink()
        Path(f"{run}.torn").unlink()
        found = launcher.run(3, name, run)
        assert [report["step"] for report in launcher.told()] == [last]
        assert differences(found, launcher.reference(3, name)) == [[]] * 3


def test_folders_that_are_not_their_ranks_are_refused(copied: Path, launcher: Launcher, cli: Cli, tmp_path: Path) -> None:
    """Swapped, on disks of nodes that have changed places, or of another run."""
    (copied / "rank0").rename(tmp_path / "kept")
    (copied / "rank2").rename(copied / "rank0")
    (tmp_path / "kept").rename(copied / "rank2")
    words = "journals lie under the names of other ranks: rank0 is the journal of rank 2, rank2 is the journal of rank 0"
    assert words in refused(launcher, copied)
    (copied / "rank0").rename(tmp_path / "kept")
    (copied / "rank2").rename(copied / "rank0")
    (tmp_path / "kept").rename(copied / "rank2")
    other = tmp_path / "other"
    launcher.run(3, "fsdp", other)
    shutil.rmtree(other / "rank1")
    shutil.copytree(copied / "rank1", other / "rank1")
    words = "the journal of rank 1 belongs to another run than the journals of ranks 0, 2"
    assert words in refused(launcher, other)
    assert words in cli("status", other, "--json").json["group"]["problems"][0]


@pytest.fixture
def alone() -> Any:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_what_keeps_its_shards_to_itself_is_refused_by_name(alone: None, tmp_path: Path) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = torch.nn.Linear(2, 2)
    redundancy = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    with pytest.raises(UsageError, match=r"ZeroRedundancyOptimizer is not logged: .*fully_shard"):
        LoggedOptimizer(redundancy, tmp_path / "run", model)
    options: dict[str, Any] = {"sharding_strategy": ShardingStrategy.NO_SHARD, "device_id": torch.device("cpu")}
    wrapped = FullyShardedDataParallel(model, use_orig_params=True, **options)
    with pytest.raises(UsageError, match=r"FullyShardedDataParallel is not logged: .*fully_shard"):
        LoggedOptimizer(torch.optim.AdamW(wrapped.parameters()), tmp_path / "run", wrapped)
    assert not (tmp_path / "run").exists()
