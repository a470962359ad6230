"""Runs of sharded parameters that go on with another number of processes, or another mesh.

Each lands bit for bit on what a replay makes of the folder as it was before, and whoever dies on the way takes no step along.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.conftest import Cli
from tests.distributed.child import DIES, SAMPLES, _digest
from tests.distributed.conftest import Launcher
from tests.distributed.sharded import EPOCHS
from tranlogs_torch.offline.run import OfflineRun

pytestmark = pytest.mark.crash

TORN = "step-*-t{:03}-*"  # the checkpoint with which rank 0 begins: the one who waits for it dies before its own


def replayed(run: Path) -> tuple[int, dict[str, str]]:
    """Where a run would land, and digests of whole parameters and whole optimizer state there."""
    offline = OfflineRun(run / "rank0")
    report = offline.replay()
    assert report.exact is True, report
    found = {}
    for name, p in offline.state.parameters.items():
        kept = offline.state.optimizers["main"].state[p]
        for key, value in {"": p.detach(), **{key: one for key, one in kept.items() if torch.is_tensor(one)}}.items():
            found[f"{name} {key}"] = _digest(value.numpy().tobytes())
    return report.step, found


class Chain:
    """A run that goes from one number of processes to the next, and is compared at each start.

    Attributes:
        told: what rank 0 said of each recovery.
        landings: how many of them were compared.
        steps: what the ranks told of each step, those of the last who took it.
    """

    def __init__(self, launcher: Launcher, run: Path, name: str) -> None:
        self.launcher, self.run, self._name = launcher, run, name
        self.told: list[dict[str, Any]] = []
        self.landings = 0
        self.steps: dict[int, dict[int, dict[str, Any]]] = {}

    def go_on(self, world: int, kills: list[list[Any]], *, restarts: int | None = None) -> None:
        """Start so many processes, and again after each of the kills but the last."""
        before = replayed(self.run) if self.steps else (0, {})
        count = len(kills) - 1 if restarts is None else restarts
        arguments = [self._name, str(self.run), str(self.launcher.folder / "out"), json.dumps(kills)]
        failure = self.launcher.ask({"world": world, "restarts": count, "arguments": arguments})
        assert bool(failure) == (count < len(kills)), failure
        assert DIES in self.launcher.said(), self.launcher.said()[-3000:]
        self.told += self.launcher.told()
        found: dict[int, dict[int, dict[str, Any]]] = {}
        for rank in range(world):
            path = Path(f"{self.run}.told{rank}")
            for about in map(json.loads, path.read_text().splitlines() if path.exists() else []):
                if about["what"] == "landed":
                    self._compare(rank, about, found | {k: v for k, v in self.steps.items() if k not in found}, before)
                else:
                    found.setdefault(about["step"], {})[rank] = about
            path.unlink(missing_ok=True)
        self.steps |= found

    def _compare(self, rank: int, landed: dict[str, Any], steps: dict[int, dict[int, Any]], before: Any) -> None:
        """Whether a rank began with what was there."""
        if not landed["step"]:
            return
        self.landings += 1
        was = steps[landed["step"]]
        assert landed["whole"] == was[0]["whole"]
        if landed["step"] == before[0]:
            assert landed["whole"] == before[1]
        if rank in was:
            assert landed["own"] == was[rank]["own"], f"what was rank {rank}'s own at step {landed['step']}"


@pytest.fixture(scope="module")
def chain(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """One process; two, of which one dies in the change; one again; two; the same with two and four; three; one to the end."""
    found = Chain(launcher, tmp_path_factory.mktemp("resharded") / "run", "resharded")
    found.go_on(1, [[0, 5, 0]])
    found.go_on(2, [[1, None, 0, TORN.format(2)]])
    found.go_on(1, [[0, 7, 0]])
    found.go_on(2, [[1, 9, 0]])
    found.go_on(4, [[3, None, 0, TORN.format(5)]])
    found.go_on(2, [[0, 12, 0]])
    found.go_on(4, [[2, None, 0, TORN.format(7)], [2, 23, 0]])
    found.go_on(3, [[1, 31, 0]])
    found.go_on(1, [[0, 33, 0]], restarts=1)
    return found


def test_the_state_is_that_of_the_others_bit_for_bit(chain: Chain) -> None:
    """Which was compared at each start."""
    assert [report["step"] for report in chain.told] == [0, 5, 7, 9, 12, 23, 31, 33]
    assert [report["timeline"] for report in chain.told] == [1, 3, 4, 6, 8, 9, 10, 10]
    assert [report["exact"] for report in chain.told] == [True, True, None, True, None, None, None, True]
    assert chain.landings == 1 + 2 + 2 + 4 + 3 + 1 + 1


def test_what_is_not_as_it_was_is_said_by_name(chain: Chain) -> None:
    notes = chain.told[5]["notes"]
    assert any("4 processes recorded the run, and 3 processes continue it from step 23" in note for note in notes)
    assert any("those of rank 3 end" in note for note in notes)
    assert any("the 180 samples of the epoch that 4 processes had not consumed are divided among 3" in note for note in notes)


def test_each_sample_of_an_epoch_comes_once_over_all_changes(chain: Chain) -> None:
    for number in range(EPOCHS + 1):
        told = [about["more"] for ranks in chain.steps.values() for about in ranks.values()]
        samples = [x for epoch, xs in told if epoch == number for x in xs]
        assert len(set(samples)) == SAMPLES
        assert len(samples) - SAMPLES < 4  # so that all ranks have as many


def test_commands_read_what_it_went_through(chain: Chain, cli: Cli, tmp_path: Path) -> None:
    newest = max(chain.steps)
    coordinator = cli("status", chain.run, "--json").json["group"]
    assert coordinator == {"world": 1, "step": newest, "lost": [], "stopped": [1, 2, 3], "problems": []}
    step, found = replayed(chain.run)
    assert (step, found) == (newest, chain.steps[newest][0]["whole"])
    found = cli("verify", chain.run, "--replay", "--json")
    assert found.code == 0, found.json["problems"]
    assert all(report["exact"] for rank in found.json["ranks"] for report in rank["replays"])


@pytest.mark.sampled(0)
def test_what_each_process_had_whole_is_sharded_and_whole_again(launcher: Launcher, tmp_path: Path) -> None:
    """DDP, whose log is divided over its ranks, to FSDP2 and back, with deaths amid the change."""
    found = Chain(launcher, tmp_path / "run", "resharded ddp")
    found.go_on(2, [[1, 9, 0]])
    found.go_on(3, [[2, None, 0, TORN.format(2)], [0, 16, 0]])
    found.go_on(2, [[1, None, 0, TORN.format(4)], [0, 24, 0]])
    found.go_on(3, [[1, 28, 0]])
    found.go_on(1, [[0, 33, 0]], restarts=1)
    assert [report["step"] for report in found.told] == [0, 9, 16, 24, 28, 33]
    assert [report["exact"] for report in found.told] == [True, None, None, None, None, True]
    assert found.landings == 3 + 2 + 3 + 1 + 1


@pytest.mark.sampled(0)
def test_tensor_parallel_parts_are_dealt_out_to_two_dimensions(launcher: Launcher, tmp_path: Path) -> None:
    found = Chain(launcher, tmp_path / "run", "resharded tp")
    found.go_on(2, [[1, 9, 0]])
    found.go_on(4, [[2, 12, 0]])
    assert [(report["step"], report["exact"]) for report in found.told] == [(0, True), (9, None)]
    assert found.landings == 4
    assert replayed(found.run) == (12, found.steps[12][0]["whole"])


def test_a_death_while_the_former_logs_are_compacted_or_read_changes_nothing(launcher: Launcher, tmp_path: Path) -> None:
    found = Chain(launcher, tmp_path / "run", "resharded")
    found.go_on(1, [[0, 5, 0]])
    found.go_on(2, [[1, None, 0, "reading"], [0, None, 0, "compacting"], [1, 9, 0]])
    assert [report["step"] for report in found.told] == [0, 5]
    found.go_on(4, [[3, None, 0, "reading"], [1, None, 0, "compacting"], [2, 9, 0]])
    assert found.told[2]["step"] == 9
    found.go_on(3, [[2, None, 0, "reading"], [2, 14, 0]])  # all have a checkpoint of step 9: nothing is redone or written
    found.go_on(1, [[0, 16, 0]])
    assert [report["step"] for report in found.told] == [0, 5, 9, 9, 14]
    assert [report["exact"] for report in found.told] == [True, None, None, None, None]
    assert found.landings == 2 + 4 + 3 + 1
    assert not list(found.run.glob("rank*/peers"))


@pytest.mark.sampled(0)
def test_ranges_are_sent_where_a_process_cannot_read_the_former_journal(launcher: Launcher, tmp_path: Path) -> None:
    found = Chain(launcher, tmp_path / "run", "far resharded")
    found.go_on(2, [[1, 9, 0]])
    found.go_on(4, [[0, 12, 0]])
    found.go_on(3, [[2, 16, 0]])
    assert [report["step"] for report in found.told] == [0, 9, 12]
    assert found.landings == 4 + 3
    assert replayed(found.run) == (16, found.steps[16][0]["whole"])
