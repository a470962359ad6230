"""A run that goes on with another number of processes, or another mesh: each start lands bit for bit on what was there before.

What was there is told by the former processes, and by a replay of the folder without the script.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash

from tests.cli.conftest import Cli
from tests.distributed import scripts
from tests.distributed.conftest import Group, Groups, demand_equal
from tests.distributed.scripts import EPOCHS, EVERY, SAMPLES
from tests.kills.job import Death
from tests.support import campaign
from tranlogs_torch.offline.run import OfflineRun

pytestmark = pytest.mark.crash

Step = dict[str, Any]


def replayed(run: Path) -> tuple[int, dict[str, str]]:
    """Return where a run would land, and digests of whole parameters and whole optimizer state there."""
    offline = OfflineRun(run / "rank0")
    report = offline.replay()
    assert report.exact is True, report
    found = {}
    for name, p in offline.state.parameters.items():
        kept = offline.state.optimizers["main"].state[p]
        for key, value in {"": p.detach(), **{key: one for key, one in kept.items() if torch.is_tensor(one)}}.items():
            found[f"{name} {key}"] = xxhash.xxh3_64_hexdigest(value.numpy().tobytes())
    return report.step, found


class Chain:
    """A run that goes from one number of processes to the next, and is compared at each start.

    Attributes:
        told: what rank 0 said of each start that landed.
        landings: how many ranks were compared.
        steps: what the ranks told of each step, those of the last who took it.
    """

    def __init__(self, groups: Groups, folder: Path, **arguments: Any) -> None:
        self.folder, self.run = folder, folder / "run"
        self._groups, self._arguments = groups, arguments
        self.told: list[dict[str, Any]] = []
        self.landings = 0
        self.steps: dict[int, dict[int, Step]] = {}

    def go_on(self, world: int, kind: str, *deaths: Death | None) -> None:
        """Start so many processes for each death; None goes to the end."""
        for death in deaths:
            before = replayed(self.run) if self.steps else (0, {})
            group: Group = self._groups(world)
            script = partial(scripts.resized, kind=kind, **self._arguments)
            if death is None:
                group.ends(script, self.folder, checkpoint_every=EVERY, keep=1)
            else:
                group.dies(script, self.folder, death, checkpoint_every=EVERY, keep=1)
            found: dict[int, dict[int, Step]] = {}
            for rank, folder in enumerate(group.folders(self.folder)):
                lines = (folder / "printed").read_text().splitlines() if (folder / "printed").exists() else []
                for about in map(json.loads, lines):
                    if "landed" in about:
                        self._compare(rank, about, before)
                        self.told += [about["landed"] | {"step": about["step"]}] if rank == 0 else []
                    else:
                        found.setdefault(about["step"], {})[rank] = about
                (folder / "printed").unlink(missing_ok=True)
            self.steps |= found

    def _compare(self, rank: int, landed: Step, before: Any) -> None:
        """Demand that a rank began with what was there."""
        if not landed["step"]:
            return
        self.landings += 1
        was = self.steps[landed["step"]]
        assert {str(one["whole"]) for one in was.values()} == {str(landed["whole"])}
        if landed["step"] == before[0]:
            assert landed["whole"] == before[1]
        if rank in was:
            assert landed["own"] == was[rank]["own"], f"what was rank {rank}'s own at step {landed['step']}"

    def demand_each_sample_once(self) -> None:
        """Demand that each sample of an epoch came once over all changes."""
        for epoch in range(EPOCHS):
            told = [about for ranks in self.steps.values() for about in ranks.values() if about["epoch"] == epoch]
            samples = [x for about in told for x in about["samples"]]
            assert len(set(samples)) == SAMPLES
            assert len(samples) - SAMPLES < 4  # so that all ranks have as many


def dies(number: int, rank: int = 0) -> Death:
    """Return the death of a rank in a batch of its process: as many steps less one are finished then."""
    return Death("begin", number=number, rank=rank)


def test_ddp_goes_on_with_other_numbers_of_processes(groups: Groups, cli: Cli, tmp_path: Path) -> None:
    found = Chain(groups, tmp_path)
    found.go_on(4, "ddp", dies(3, 3))
    found.go_on(2, "ddp", dies(6, 1))
    found.go_on(3, "ddp", dies(2, 2))
    found.go_on(1, "ddp", dies(3))
    found.go_on(3, "ddp", None)
    assert [report["step"] for report in found.told] == [0, 2, 7, 8, 10]
    assert [report["exact"] for report in found.told] == [True, None, None, None, None]
    assert found.landings == 2 + 3 + 1 + 3
    found.demand_each_sample_once()
    notes = " ".join(found.told[1]["notes"] + found.told[2]["notes"])
    assert "4 processes recorded the run, and 2 processes continue it from step 2" in notes
    assert "summed in another order" in notes
    assert "those of ranks 2 to 3 end" in notes
    assert "the 40 samples of the epoch that 4 processes had not consumed are divided among 2" in notes
    assert "rank 2 continues with the buffers of rank 0, and with new random numbers" in notes
    demand_that_commands_read(found, cli, tmp_path, world=3, stopped=[3])


def demand_that_commands_read(found: Chain, cli: Cli, folder: Path, *, world: int, stopped: list[int]) -> None:
    """Demand that the commands know who trains and who was left behind, and that all logs lead to what they came to."""
    newest = max(found.steps)
    group = cli("status", found.run, "--json").json["group"]
    assert group == {"world": world, "step": newest, "lost": [], "stopped": stopped, "problems": []}
    assert "trained before the run continued with" in " ".join(cli("status", found.run).out.split())
    assert replayed(found.run) == (newest, found.steps[newest][0]["whole"])
    assert cli("replay", found.run / f"rank{stopped[-1]}", "--out", folder / "left.pt", "--json").code == 0
    checked = cli("verify", found.run, "--replay", "--json")
    assert checked.code == 0, checked.json["problems"]
    assert all(report["exact"] for rank in checked.json["ranks"] for report in rank["replays"])


def test_shards_go_on_over_other_processes_and_meshes(groups: Groups, cli: Cli, tmp_path: Path) -> None:
    """From DDP to FSDP2, with and without tensor parallelism, that alone, and one process; with deaths amid the changes."""
    found = Chain(groups, tmp_path)
    found.go_on(2, "ddp cut", dies(3, 1))
    found.go_on(3, "fsdp cut", Death("reading", rank=2), dies(3, 1))
    found.go_on(2, "fsdp cut", Death("compacting"), dies(3, 1))
    found.go_on(4, "fsdp tp", Death("changing", rank=3), dies(3, 2))
    found.go_on(2, "tp", dies(2, 1))
    found.go_on(1, "whole", None)
    assert [report["step"] for report in found.told] == [0, 2, 4, 6, 8, 9]
    assert [report["exact"] for report in found.told] == [True, None, None, None, None, None]
    assert found.landings == 3 + 2 + 4 + 2 + 1
    found.demand_each_sample_once()
    demand_that_commands_read(found, cli, tmp_path, world=1, stopped=[1, 2, 3])
    assert not list(found.run.glob("rank*/peers"))


@pytest.mark.parametrize("kind", ["fsdp cut", campaign.in_soak("ddp")])
def test_ranges_are_sent_where_a_process_cannot_read_the_former_journal(kind: str, groups: Groups, tmp_path: Path) -> None:
    found = Chain(groups, tmp_path, far=True)
    found.go_on(2, kind, dies(3, 1))
    found.go_on(3, kind, dies(3))
    assert [report["step"] for report in found.told] == [0, 2]
    assert found.landings == 3
    assert replayed(found.run) == (4, found.steps[4][0]["whole"])


def test_killed_after_the_change_it_ends_with_the_bits_of_one_that_was_not(groups: Groups, tmp_path: Path) -> None:
    script, group = partial(scripts.train, odd="fixed"), groups(2)
    options = {"checkpoint_every": EVERY}
    groups(1).dies(script, tmp_path / "run", Death("batch", number=4), **options)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    right = group.ends(script, tmp_path / "copy", **options)
    group.dies(script, tmp_path / "run", Death("batch", number=4, rank=1), **options)
    lives = group.ends(script, tmp_path / "run", **options)
    for one in (*lives, *right):
        one.printed.clear()  # of rank 0 those of the one process, too
    demand_equal(lives, right)
    assert [life.exact for life in lives] == [True, True], lives[0].notes


def test_ranks_that_are_not_equal_are_taken_up_by_as_many_only(groups: Groups, tmp_path: Path) -> None:
    script = partial(scripts.train, odd="undivided")
    groups(2).dies(script, tmp_path, Death("batch", number=4))
    words = "2 processes recorded the run, now there are 3, and each of them logged all of its gradients"
    assert words in groups(3).refuses(script, tmp_path)
