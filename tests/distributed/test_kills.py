"""Ranks that die by SIGKILL under torchrun's agent: every run ends with the bits of one that nobody killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.child import DIES, STEPS
from tests.distributed.conftest import Launcher, Outcome
from tests.support import campaign

pytestmark = pytest.mark.crash


def drawn(world: int, count: int, *, last: int = STEPS) -> list[list[Any]]:
    """Kills at random moments of random ranks: in the start, in recovery, in a step."""
    chance = campaign.dice("drawn", world, count, last)
    steps = sorted(chance.choice([-1, *[chance.randrange(last)] * 4]) for _ in range(count))
    return [[chance.randrange(world), step, chance.random() * (300 if step < 0 else 8)] for step in steps]


def differences(found: Outcome, right: Outcome) -> list[list[str]]:
    """By rank, what is not equal."""
    return [[key for key in mine if mine[key] != theirs[key]] for mine, theirs in zip(found, right, strict=True)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("world", "name", "kills"),
    [
        (3, "plain", 6),
        (2, "accumulation", 3),
        (4, "buckets", 3),
        campaign.in_soak(3, "static", 3),
        campaign.in_soak(3, "views", 2),
        campaign.in_soak(3, "unused", 2),
        campaign.in_soak(3, "hook", 2),
        campaign.in_soak(3, "bytes", 3),
        (3, "undivided", 3),
        (3, "sparse sgd", 2),
        campaign.in_soak(3, "frozen", 2),
    ],
)
def test_killed_group_ends_with_the_bits_of_one_that_was_not(
    launcher: Launcher, tmp_path: Path, world: int, name: str, kills: int
) -> None:
    planned = drawn(world, campaign.few(kills), last=STEPS // 3 if name == "accumulation" else STEPS)
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


@pytest.mark.sampled(0)
def test_a_redo_may_take_longer_than_the_groups_time_limit(launcher: Launcher, tmp_path: Path) -> None:
    found = launcher.run(2, "hurried", tmp_path / "run", [[0, 5, 0]])
    assert [(report["step"], report["exact"]) for report in launcher.told()] == [(0, True), (5, True)]
    assert differences(found, launcher.reference(2, "plain")) == [[]] * 2


def test_a_finished_step_is_lost_by_no_kill(launcher: Launcher, tmp_path: Path) -> None:
    kills = [[rank, step, 0] for rank, step in ((0, 5), (2, 17), (1, 30))]  # as that step begins
    found = launcher.run(3, "plain", tmp_path / "run", kills)
    assert [report["step"] for report in launcher.told()][1:] == [5, 17, 30]
    ids = (tmp_path / "run.ids").read_text().split()
    assert (len(ids), len(set(ids))) == (3 * 4, 1), "one id on all ranks, in every life"
    assert differences(found, launcher.reference(3, "plain")) == [[]] * 3


def test_gradients_that_stay_in_views_are_no_exact_restart(launcher: Launcher, tmp_path: Path) -> None:
    launcher.run(3, "views kept", tmp_path / "run", [[0, 10, 0]])
    fresh, again = launcher.told()
    assert (fresh["exact"], again["exact"]) == (True, None)
    assert any("zero_grad(set_to_none=False)" in note for note in again["notes"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("join", "DistributedDataParallel.join() is not logged"),
        ("power", "the communication hook powerSGD_hook has a state (PowerSGDState)"),
        ("local", "the communication hook post_localSGD_hook has a state (PostLocalSGDState)"),
    ],
)
def test_what_lets_ranks_differ_is_refused_by_name(name: str, words: str, launcher: Launcher, tmp_path: Path) -> None:
    job = {"world": 2, "restarts": 0, "arguments": [name, str(tmp_path / "run"), str(tmp_path / "out"), "[]"]}
    assert launcher.ask(job)
    assert words in launcher.said()


@pytest.mark.parametrize("name", ["unequal", campaign.in_soak("unequal sample")])
def test_ranks_that_were_found_to_differ_lose_no_finished_step_from_there_on(
    launcher: Launcher, tmp_path: Path, name: str
) -> None:
    kills = [[1, 14, 0], [1, 25, 0], [0, 27, 0]]  # the first as the checkpoint is there that told of it
    found = launcher.run(2, name, tmp_path / "run", kills)
    told = launcher.told()
    assert [report["step"] for report in told] == [0, 14, 25, 27]
    assert all(report["exact"] is True for report in told) or name != "unequal"  # of a sample not all is known
    assert differences(found, launcher.reference(2, name)) == [[]] * 2


def test_parameters_that_a_rank_has_for_itself_come_back_at_any_step(launcher: Launcher, tmp_path: Path) -> None:
    found = launcher.run(2, "outside", tmp_path / "run", [[1, 4, 0], [0, 9, 0]])
    assert [(report["step"], report["exact"]) for report in launcher.told()] == [(0, True), (4, True), (9, True)]
    assert differences(found, launcher.reference(2, "outside")) == [[]] * 2


def test_a_layer_that_trains_from_some_step_on_costs_no_step(launcher: Launcher, tmp_path: Path) -> None:
    """DistributedDataParallel does not know of it: each rank has its own gradients of it, and other weights."""
    found = launcher.run(2, "thawed", tmp_path / "run", [[1, 12, 0], [0, 13, 0], [1, 25, 0]])
    assert [report["step"] for report in launcher.told()] == [0, 12, 13, 25]
    assert "trains parameters whose gradients no DistributedDataParallel sums" in launcher.said()
    assert differences(found, launcher.reference(2, "thawed")) == [[]] * 2
    assert found[0]["weights"] != found[1]["weights"]


@pytest.mark.parametrize("rank", [0, campaign.in_soak(2)])
def test_a_lost_disk_sends_all_back_to_the_checkpoint(launcher: Launcher, tmp_path: Path, rank: int) -> None:
    kills = [[rank, 25, 0, "disk"], [(rank + 1) % 3, 21, 0, "disk"], [1, 40, 3]]  # one more before the next step
    found = launcher.run(3, "plain", tmp_path / "run", kills)
    first, second, again, third = launcher.told()
    assert first["step"] == 0
    assert second["step"] == 21  # of steps 22 to 25 a share is gone
    assert any(f"the journal of rank {rank} is gone" in note for note in second["notes"])
    assert (again["step"], second["exact"], again["exact"]) == (21, True, True)
    assert third["step"] >= 40
    assert differences(found, launcher.reference(3, "plain")) == [[]] * 3


@pytest.mark.parametrize(("name", "world"), [("images", 3), campaign.in_soak("bare by hand", 2)])
def test_a_lost_disk_costs_no_step_where_each_rank_logged_all_of_the_same(
    launcher: Launcher, tmp_path: Path, name: str, world: int
) -> None:
    found = launcher.run(world, name, tmp_path / "run", [[1, 25, 0, "disk"], [0, 33, 0, "disk"]])
    told = launcher.told()
    assert [(report["step"], report["exact"]) for report in told] == [(0, True), (25, None), (33, None)]
    assert any("rank 1 continues from step 25 with the weights" in note for note in told[1]["notes"])
    assert any("the other ranks logged the same, so that no step is lost" in note for note in told[1]["notes"])
    landings = [json.loads((tmp_path / f"run.landed{rank}").read_text()) for rank in range(world)]
    assert landings[1:] == landings[:-1]
    assert all(one["weights"] == found[0]["weights"] for one in found)


def test_ranks_that_logged_all_and_came_to_differ_go_on_from_their_own_states(launcher: Launcher, tmp_path: Path) -> None:
    """Before it was noticed."""
    found = launcher.run(2, "images apart", tmp_path / "run", [[0, 13, 0], [1, 23, 0]])
    told = launcher.told()
    assert [report["step"] for report in told] == [0, 13, 23]
    assert "the states of the ranks differed at step 13, and each rank keeps its own" in told[1]["notes"]
    assert differences(found, launcher.reference(2, "images apart")) == [[]] * 2


def test_a_lost_disk_of_ranks_that_train_each_for_itself_is_refused(launcher: Launcher, tmp_path: Path) -> None:
    job = {
        "world": 2,
        "restarts": 1,
        "arguments": ["bare", str(tmp_path / "run"), str(tmp_path / "out"), json.dumps([[1, 25, 0, "disk"]])],
    }
    assert launcher.ask(job)
    assert "each rank logged its own steps, and the weights of the ranks were never seen to be equal" in launcher.said()


def test_journals_on_other_machines_come_through_the_group(launcher: Launcher, tmp_path: Path) -> None:
    run = tmp_path / "run"
    kills = [[1, 10, 2], [2, 25, 0, "disk"], [0, 40, 3]]
    found = launcher.run(3, "far", run, kills)
    steps = [report["step"] for report in launcher.told()]
    assert steps[2] == 21
    assert (steps[1] >= 10, steps[3] >= 40) == (True, True)
    assert differences(found, launcher.reference(3, "plain")) == [[]] * 3
    assert not list(run.glob("rank*/peers"))


@pytest.mark.sampled(0)
def test_nodes_that_have_changed_places_do_not_begin_anew(launcher: Launcher, tmp_path: Path) -> None:
    """Each has a disk of its own, with the journal of the rank that it was."""
    run = tmp_path / "NODE" / "run"
    for rank in range(2):
        (tmp_path / f"node{rank}").mkdir()
    launcher.run(2, "far", run, [[1, 10, 2]])
    for old, new in (("node0", "node"), ("node1", "node0"), ("node", "node1")):
        (tmp_path / old).rename(tmp_path / new)
    arguments = ["far", str(run), str(launcher.folder / "out"), json.dumps([])]
    for _ in range(2):  # what the first try has made changes nothing
        assert launcher.ask({"world": 2, "restarts": 0, "arguments": arguments})
        assert "the folders of their own ranks are empty: that of rank 1 where rank 0 runs, that of rank 0" in launcher.said()
    for old, new in (("node0", "node"), ("node1", "node0"), ("node", "node1")):
        (tmp_path / old).rename(tmp_path / new)
    found = launcher.run(2, "far", run)
    assert [report["step"] for report in launcher.told()] == [STEPS]
    assert differences(found, launcher.reference(2, "plain")) == [[]] * 2


def test_a_disk_that_is_lost_before_the_first_checkpoint_costs_nothing_more(launcher: Launcher, tmp_path: Path) -> None:
    found = launcher.run(3, "plain", tmp_path / "run", [[1, 3, 0, "disk"]])
    assert [report["step"] for report in launcher.told()] == [0, 0]
    assert differences(found, launcher.reference(3, "plain")) == [[]] * 3
