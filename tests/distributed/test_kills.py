"""Ranks that die by SIGKILL under torchrun's agent: the group resumes at its newest boundary, and ends as its twin, proven."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.distributed import scripts
from tests.distributed.conftest import Groups, Twins, demand_equal
from tests.distributed.scripts import EVERY
from tests.kills.job import Death
from tests.kills.judge import finish, prove_deaths
from tests.kills.pytorch import Expected, Script, prove
from tests.support import campaign

pytestmark = pytest.mark.crash

SCRIPTS: dict[str, tuple[int, Script]] = {
    "accumulation, own parameters": (3 if campaign.is_soak() else 2, partial(scripts.train, odd="accumulates own")),
    "fsdp": (2, partial(scripts.train, kind="fsdp")),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_group_that_is_killed_anywhere_ends_with_the_bits_of_its_twin(name: str, groups: Groups, tmp_path: Path) -> None:
    world, script = SCRIPTS[name]
    prove(script, tmp_path / name, launcher=groups(world))


@pytest.mark.parametrize(
    ("world", "kind", "odd"),
    [
        (2, "ddp", "thawed"),
        (2, "fsdp", ""),
        (4, "hsdp", ""),
        campaign.in_soak(4, "ddp buckets", ""),
        campaign.in_soak(3, "ddp static", ""),
        campaign.in_soak(3, "ddp static", "frozen"),
        campaign.in_soak(3, "ddp unused", ""),
        campaign.in_soak(3, "ddp views", ""),
        campaign.in_soak(3, "ddp", "hook"),
        campaign.in_soak(3, "fsdp mixed", ""),
        campaign.in_soak(2, "fsdp", "accumulates"),
    ],
)
def test_each_kind_of_group_loses_no_finished_step(
    world: int, kind: str, odd: str, groups: Groups, twins: Twins, tmp_path: Path
) -> None:
    """It dies behind a checkpoint, while it computes a unit again, and behind the end of an epoch.

    In the gate FSDP alone dies in all three places.
    """
    arguments, group = {"kind": kind, "odd": odd}, groups(world)
    script = partial(scripts.train, **arguments)
    group.dies(script, tmp_path, Death("batch", number=8, rank=1), checkpoint_every=EVERY)
    assert odd != "thawed" or "trains parameters whose gradients no DistributedDataParallel sums" in group.all_said()
    deaths = [Death("backward", number=1), Death("batch", number=4, rank=world - 1)]
    deaths = deaths if kind == "fsdp" or campaign.is_soak() else deaths[1:]
    lives = prove_deaths(
        script,
        tmp_path,
        twins(world, **arguments),
        deaths,
        Expected(),
        launcher=group,
        checkpoint_every=EVERY,
    )
    # Nine batches are finished, and the last one is computed again; of updates of two batches two and two.
    assert {life.position[1:] for life in lives} == {(0, 4) if "accumulates" in odd else (1, 8)}


@pytest.mark.parametrize("number", [campaign.in_soak(10), 9])  # in the second batch of an epoch, and in the first
def test_all_ranks_set_back_their_records_where_one_differs(number: int, groups: Groups, tmp_path: Path) -> None:
    script, group = partial(scripts.train, odd="draws"), groups(2)
    twin = finish(script, tmp_path / "twin", launcher=group)
    expected = Expected(
        exact=False,
        because=f"rank 1: the last batch before the crash (step {number - 1}) was computed again, and rng.",
        is_equal=None,
    )
    for rank, life in enumerate(
        prove_deaths(script, tmp_path, twin, [Death("batch", number=number)], expected, launcher=group)
    ):
        assert life.differences(twin[rank]) == [], "the recorded state was set back, and with it what was drawn"


@pytest.mark.parametrize("kind", ["ddp", campaign.in_soak("fsdp")])
def test_what_one_rank_changes_after_recover_counts_for_all(kind: str, groups: Groups, tmp_path: Path) -> None:
    """All ranks train the newest unit again, on one new timeline. Deaths in its first units cost no finished unit more."""
    script, group = partial(scripts.changed, kind=kind), groups(2)
    twin = finish(script, tmp_path / "twin", launcher=group)
    folder = tmp_path / "killed"
    group.dies(script, folder, Death("batch", number=scripts.CHANGED_AT + 2))
    again, goes_on = Death("backward", number=1, rank=1), Death("batch", number=3 if campaign.is_soak() else 4, rank=1)
    begun = [(Death("batch", number=2), scripts.CHANGED_AT + 1, ("", None))]  # the unit with which the timeline began
    for death, landed, proof in [
        (again, scripts.CHANGED_AT, ("", None)),
        *(begun if campaign.is_soak() else ()),
        (goes_on, scripts.CHANGED_AT + 2, ("equal", True)),
    ]:
        group.dies(script, folder, death)
        copy = Path(shutil.copytree(folder, tmp_path / f"copy {landed} {death}"))
        lives = group.ends(script, copy)
        assert [(life.step, life.recheck, life.exact) for life in lives] == [(landed, *proof)] * 2, lives[0].notes
        if landed == scripts.CHANGED_AT:
            text = f"step {landed + 1} is trained again with what the script has changed since recover() on rank 1"
            assert all(any(note.startswith(text) for note in life.notes) for life in lives), lives[0].notes
            assert any(note.startswith("state.weight was changed") for note in lives[1].notes), lives[1].notes
        assert [life.differences(right) for life, right in zip(lives, twin, strict=True)] == [[], []]


def test_a_group_goes_on_in_its_second_loop(groups: Groups, tmp_path: Path) -> None:
    """Killed between the loops, and in the second one, each time another rank."""
    group = groups(2)
    twin = finish(scripts.two_loops, tmp_path / "twin", launcher=group)
    deaths = [Death("between", number=2, rank=1), Death("batch", number=4)]
    last = prove_deaths(scripts.two_loops, tmp_path, twin, deaths, Expected(), launcher=group)
    assert {life.position[0] for life in last} == {2}


@pytest.mark.parametrize("options", [{}, campaign.in_soak({"fingerprint": "sample"}), campaign.in_soak({"log": "weights"})])
def test_ranks_that_were_found_to_differ_lose_no_finished_step_from_there_on(
    options: dict[str, Any], groups: Groups, twins: Twins, tmp_path: Path
) -> None:
    """A checkpoint of step 10 tells that they differ since step 7; then each rank goes on by itself."""
    arguments = {"odd": "unequal settles"}
    group, script = groups(2), partial(scripts.train, **arguments)
    group.dies(script, tmp_path, Death("backward", number=12, rank=1), checkpoint_every=EVERY, **options)
    group.dies(script, tmp_path, Death("backward", number=3), checkpoint_every=EVERY, **options)
    lives = group.ends(script, tmp_path, checkpoint_every=EVERY, **options)
    demand_equal(lives, twins(2, **arguments))
    assert [life.step for life in lives] == [11, 11]
    assert [life.exact for life in lives] == [True, True] or options.get("fingerprint"), "of a sample not all is known"


def test_a_rank_that_runs_far_ahead_keeps_what_all_go_back_to(groups: Groups, twins: Twins, tmp_path: Path) -> None:
    """Ranks that do not wait for each other: one is at its last step while another one dies at its second."""
    arguments, group = {"kind": "bare", "odd": "ahead"}, groups(2)
    why = "no unit is computed again, because the processes do not wait for each other at each step"
    lives = prove_deaths(
        partial(scripts.train, **arguments),
        tmp_path,
        twins(2, **arguments),
        [Death("batch", number=3)],
        Expected(exact=None, because=why),
        launcher=group,
        checkpoint_every=EVERY,
    )
    assert [life.step for life in lives] == [2, 2]


def test_a_redo_may_take_longer_than_the_groups_time_limit(groups: Groups, twins: Twins, tmp_path: Path) -> None:
    script, group = partial(scripts.train, odd="hurried"), groups(2)
    group.dies(script, tmp_path, Death("batch", number=3))
    lives = group.ends(script, tmp_path)
    demand_equal(lives, twins(2))
    assert [(life.step, life.exact) for life in lives] == [(1, True)] * 2


@pytest.mark.soak
def test_gradients_that_stay_in_views_are_no_exact_restart(groups: Groups, tmp_path: Path) -> None:
    script, group = partial(scripts.train, kind="ddp views", odd="kept"), groups(3)
    group.dies(script, tmp_path, Death("batch", number=10))
    life = group.ends(script, tmp_path)[0]
    assert life.exact is None
    assert any("zero_grad(set_to_none=False)" in note for note in life.notes)


def test_what_lets_ranks_differ_is_refused_by_name(groups: Groups, tmp_path: Path) -> None:
    life = groups(2).ends(scripts.be_refused, tmp_path)[0]
    said = dict(line.split(": ", 1) for line in life.printed)
    apart = "checkpoint_every: rank 0 has 7 steps, rank 1 has 1000 steps; durability: rank 0 has process, rank 1 has machine"
    parts = {
        "power": "the communication hook powerSGD_hook has a state (PowerSGDState)",
        "local": "the communication hook post_localSGD_hook has a state (PostLocalSGDState)",
        "copies": "copies=2: here each process logs all of its own gradients",
        "apart": f"({apart})",
        "join": "DistributedDataParallel.join() is not logged",
        "overhead": "overhead: rank 0 has 5 %, rank 1 has 10 %",
        "inputs": 'log="inputs" is for processes that record the same boundaries, and the processes do not wait for each other',
    }
    assert {name: parts[name] in text for name, text in said.items()} == dict.fromkeys(parts, True), said


def test_a_process_without_a_logged_optimizer_is_named(groups: Groups, tmp_path: Path) -> None:
    said = groups(2).refuses(partial(scripts.train, odd="absent"), tmp_path)
    assert "UsageError: waiting for other processes for 3 s: rank 1 has created no LoggedOptimizer" in said
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["rank0"]
