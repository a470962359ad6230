"""A run that goes on with another number of processes: the state is theirs bit for bit, and what is not is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.conftest import Cli
from tests.distributed.child import DIES, EPOCHS, SAMPLES
from tests.distributed.conftest import Launcher
from tests.distributed.test_kills import differences
from tests.support import campaign

pytestmark = pytest.mark.crash

CHAIN = [(4, 9), (2, 23), (3, 31), (1, 50), (3, None)]  # so many processes, until one dies as that step begins


def crash(launcher: Launcher, world: int, run: Path, step: int, name: str = "resized") -> None:
    """Train until a rank dies at the beginning of a step, and all with it."""
    kill = [[world - 1, step, 0]]
    assert launcher.ask(
        {"world": world, "restarts": 0, "arguments": [name, str(run), str(launcher.folder / "out"), json.dumps(kill)]}
    )
    assert DIES in launcher.said(), launcher.said()[-3000:]


def seen(run: Path, world: int) -> dict[int, list[Any]]:
    """By step: epoch, samples and states of all ranks, as the loop told them."""
    found: dict[int, list[Any]] = {}
    for rank in range(world):
        path = Path(f"{run}.seen{rank}")
        for step, epoch, samples, state in map(json.loads, path.read_text().splitlines()):
            found.setdefault(step, []).append((epoch, samples, state))
        path.unlink()
    return found


def landed(run: Path, world: int) -> list[Any]:
    """Of each rank: the step on which it landed, and a digest of what it came to."""
    return [json.loads(Path(f"{run}.landed{rank}").read_text()) for rank in range(world)]


class Chain:
    """A run that went through `CHAIN`: what was told at each change, and what it came to."""

    def __init__(self, launcher: Launcher, run: Path) -> None:
        self.run = run
        self.reports: list[dict[str, Any]] = []
        self.steps: dict[int, list[Any]] = {}
        before = 0
        for world, step in CHAIN:
            if step is None:
                self.outcome = launcher.run(world, "resized", run)
            else:
                crash(launcher, world, run, step)
            self.reports += launcher.told()
            self.landings = landed(run, world)
            if before:
                assert len({state for _, _, state in self.steps[before]}) == 1
                assert self.landings == [[before, self.steps[before][0][2]]] * world
            self.steps |= seen(run, world)
            before = step or 0


@pytest.fixture(scope="module")
def chain(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return Chain(launcher, tmp_path_factory.mktemp("chain") / "run")


def test_the_state_is_that_of_the_others_bit_for_bit(chain: Chain) -> None:
    """Which was compared at each change."""
    assert [report["step"] for report in chain.reports] == [0, 9, 23, 31, 50]
    assert [report["timeline"] for report in chain.reports] == [1, 2, 3, 4, 5]
    assert [report["exact"] for report in chain.reports] == [True, None, None, None, None]


def test_what_is_not_as_it_was_is_said_by_name(chain: Chain) -> None:
    notes = chain.reports[1]["notes"]
    assert any("4 processes recorded the run, and 2 processes continue it from step 9" in note for note in notes)
    assert any("summed in another order" in note for note in notes)
    assert any("those of ranks 2 to 3 end" in note for note in notes)
    assert any("the 60 samples of the epoch that 4 processes had not consumed are divided among 2" in note for note in notes)
    assert any(
        "rank 2 continues with the buffers of rank 0, and with new random numbers" in note for note in chain.reports[2]["notes"]
    )


def test_each_sample_of_an_epoch_comes_once_over_all_changes(chain: Chain) -> None:
    for epoch in range(EPOCHS):
        samples = [x for ranks in chain.steps.values() for number, xs, _ in ranks if number == epoch for x in xs]
        assert len(set(samples)) == SAMPLES
        assert len(samples) - SAMPLES < 4  # so that all ranks have as many


def test_commands_know_who_trains_and_who_was_left_behind(chain: Chain, cli: Cli, tmp_path: Path) -> None:
    newest = max(chain.steps)
    found = cli("status", chain.run, "--json")
    assert found.json["group"] == {"world": 3, "step": newest, "lost": [], "stopped": [3], "problems": []}
    assert "rank 3: trained before the run continued with 3" in " ".join(cli("status", chain.run).out.split())
    found = cli("replay", chain.run, "--out", tmp_path / "newest.pt", "--json")
    assert (found.json["step"], found.json["exact"]) == (newest, True)
    weights = torch.load(tmp_path / "newest.pt", weights_only=True)["model"]
    assert all(weights[name].tolist() == values for name, values in chain.outcome[0]["weights"].items())
    found = cli("replay", chain.run / "rank3", "--out", tmp_path / "left.pt", "--json")
    assert found.code == 0, found.err
    published = chain.run.glob("rank3/checkpoints/step-*/manifest.json")  # the rank may have died while it wrote another one
    names = (path.parent.name for path in published)
    own = max(int(name.split("-")[1]) for name in names)
    assert found.json["step"] in (own, 9)  # to its checkpoint, where the others have pruned their shares since
    found = cli("verify", chain.run, "--replay", "--json")
    assert found.code == 0, found.json["problems"]
    assert all(report["exact"] for rank in found.json["ranks"] for report in rank["replays"])


@pytest.mark.parametrize(("before", "now"), [campaign.in_soak(4, 2), (1, 3)])
def test_killed_after_the_change_it_ends_with_the_bits_of_one_that_was_not(
    launcher: Launcher, tmp_path: Path, before: int, now: int
) -> None:
    crash(launcher, before, tmp_path / "run", 9)
    right = launcher.run(now, "resized", Path(shutil.copytree(tmp_path / "run", tmp_path / "copy")))
    kills = [[now - 1, -1, 150], [0, 9, 0], [now - 1, 30, 2]]
    found = launcher.run(now, "resized", tmp_path / "run", kills)
    print(launcher.told())
    assert differences(found, right) == [[]] * now
    assert [report["exact"] for report in launcher.told()][-1] is True


def test_a_change_that_was_cut_short_never_was(launcher: Launcher, tmp_path: Path) -> None:
    crash(launcher, 3, tmp_path / "run", 9)
    right = launcher.run(2, "resized", Path(shutil.copytree(tmp_path / "run", tmp_path / "copy")))
    found = launcher.run(2, "resized torn", tmp_path / "run", [[-1, -1, 0]])
    assert [(report["step"], report["timeline"]) for report in launcher.told()] == [(9, 3)]
    assert DIES in launcher.said()
    assert differences(found, right) == [[]] * 2


def test_journals_on_other_machines_are_taken_up_too(launcher: Launcher, tmp_path: Path) -> None:
    crash(launcher, 3, tmp_path / "run", 9, "far resized")
    state = seen(tmp_path / "run", 3)[9][0][2]
    right = launcher.run(2, "resized", Path(shutil.copytree(tmp_path / "run", tmp_path / "copy")))
    found = launcher.run(2, "far resized", tmp_path / "run")
    assert landed(tmp_path / "run", 2) == [[9, state]] * 2
    assert differences(found, right) == [[]] * 2


def test_ranks_that_are_not_equal_are_taken_up_by_as_many_only(launcher: Launcher, tmp_path: Path) -> None:
    crash(launcher, 2, tmp_path / "run", 9, "undivided")
    arguments = ["undivided", str(tmp_path / "run"), str(launcher.folder / "out"), json.dumps([])]
    assert launcher.ask({"world": 3, "restarts": 0, "arguments": arguments})
    assert "2 processes recorded the run, now there are 3, and each of them logged all of its gradients" in launcher.said()
