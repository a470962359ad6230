"""Ranks without tensors in the log, and across changes of what they log: they record the same boundaries, and compare them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.distributed import scripts
from tests.distributed.conftest import Groups, Twins, demand_equal
from tests.distributed.test_lost_journals import flip
from tests.kills.job import Death
from tests.kills.judge import finish, prove_deaths
from tests.kills.pytorch import Expected, Script
from tests.support import campaign
from tranlogs.recovery.group.journals import read_generations, select_generation
from tranlogs.recovery.journal_facts import read_catalog

pytestmark = pytest.mark.crash

INPUTS: dict[str, Any] = {"log": "inputs", "checkpoint_every": 7}  # boundaries are recorded at steps 7, 10, 14 and 16


@pytest.mark.parametrize(
    ("world", "kind"), [(2, "ddp"), (2, "fsdp"), campaign.in_soak(3, "ddp static"), campaign.in_soak(4, "hsdp")]
)
def test_ranks_compute_again_what_they_have_not_logged(
    world: int, kind: str, groups: Groups, twins: Twins, tmp_path: Path
) -> None:
    """Killed behind a recorded boundary, while the steps before it are computed again, and behind the next one."""
    arguments, group = {"kind": kind, "odd": "settles records"}, groups(world)
    script = partial(scripts.train, **arguments)
    group.dies(script, tmp_path, Death("batch", number=12, rank=1), **INPUTS)
    group.dies(script, tmp_path, Death("backward", number=2), **INPUTS)
    lives = prove_deaths(
        script, tmp_path, twins(world, **arguments), [Death("batch", number=8)], Expected(), launcher=group, **INPUTS
    )
    assert {life.step for life in lives} == {10}, "where a checkpoint was taken of what had been computed again"


def test_a_boundary_that_one_rank_has_not_recorded_counts_for_none(groups: Groups, twins: Twins, tmp_path: Path) -> None:
    """Rank 0 has the boundary and the checkpoint of step 14, and rank 1 has not: all go on from the one before."""
    script, group = partial(scripts.train, odd="settles records"), groups(2)
    group.dies(script, tmp_path, Death("checkpoint", number=14, rank=1), **INPUTS)
    lives = group.ends(script, tmp_path, **INPUTS)
    demand_equal(lives, twins(2))
    assert [(life.step, life.exact) for life in lives] == [(7, True)] * 2, lives[0].notes
    assert [read_catalog(tmp_path / "run" / f"rank{rank}").timeline for rank in range(2)] == [2, 2]


@pytest.mark.parametrize("part", ["arrays", "description"])
def test_a_damaged_boundary_of_one_rank_is_named_and_not_compared(
    part: str, groups: Groups, twins: Twins, tmp_path: Path
) -> None:
    script, group = partial(scripts.train, odd="settles records"), groups(2)
    group.dies(script, tmp_path, Death("batch", number=12, rank=1), **INPUTS)
    runs = select_generation(read_generations(tmp_path / "run" / "rank1"), 1).recorded.runs
    [recorded] = [link for run in runs for link in run if link.step == 10]
    at = recorded.location.payload_offset if part == "arrays" else recorded.location.description_offset
    flip(recorded.segment.path, at + 8)
    lives = group.ends(script, tmp_path, **INPUTS)
    demand_equal(lives, twins(2))
    assert [(life.step, life.exact) for life in lives] == [(7, None)] * 2, lives[0].notes
    assert any("step 10" in note for note in lives[1].notes), lives[1].notes


@pytest.mark.parametrize("every", [7, 9])  # the weights of both ranks are others, or only the random numbers of one
def test_where_one_rank_computes_something_else_what_all_compute_holds(every: int, groups: Groups, tmp_path: Path) -> None:
    """It is named on each rank, and all go on from there, on one timeline that the next start can build on."""
    script, group = partial(scripts.train, odd="draws settles records"), groups(2)
    options = INPUTS | {"checkpoint_every": every}
    for death in (Death("batch", number=12), Death("batch", number=6, rank=1)):
        group.dies(script, tmp_path, death, **options)
    lives = group.ends(script, tmp_path, **options)
    for life in lives:
        assert life.exact is False
        assert any("rank 1: " in note and "computed again" in note for note in life.notes), life.notes
    rows = [read_catalog(tmp_path / "run" / f"rank{rank}") for rank in range(2)]
    assert rows[0].timeline == rows[1].timeline > 1
    assert {one.watermarks.committed for one in rows} == {scripts.STEPS}


@pytest.mark.parametrize(
    ("world", "kind", "cost"), [(2, "ddp", "cheap"), (2, "fsdp", "costly"), campaign.in_soak(3, "ddp", "cheap")]
)
def test_a_kill_in_any_phase_leaves_no_trace(
    world: int, kind: str, cost: str, groups: Groups, twins: Twins, tmp_path: Path
) -> None:
    """Trials are short, and ranks ask each other every other step: with gradients, without, and with gradients again."""
    odd, group = f"settles trials {cost}", groups(world)
    script, options = partial(scripts.train, kind=kind, odd=odd), {"log": "auto", "checkpoint_every": 4}
    deaths = [Death("batch", number=3), Death("backward", number=6, rank=1), Death("batch", number=5)]
    for death in deaths:
        group.dies(script, tmp_path, death, **options)
    lives = group.ends(script, tmp_path, **options)
    demand_equal(lives, twins(world, kind=kind))
    assert all(life.exact is not False for life in lives), lives[0].notes


def test_nobody_waits_at_the_end_of_a_loop(groups: Groups, tmp_path: Path) -> None:
    """Ranks end their loops after other numbers of turns, of which only those with a step are common."""
    group = groups(2)
    twin = finish(scripts.uneven, tmp_path / "twin", launcher=group)
    demand_equal(group.ends(scripts.uneven, tmp_path / "whole", **INPUTS), twin)
    folder = tmp_path / "killed"
    group.dies(scripts.uneven, folder, Death("batch", number=13, rank=1), **INPUTS)
    lives = group.ends(scripts.uneven, folder, **INPUTS)
    assert [life.outcome for life in lives] == [life.outcome for life in twin]


def test_steps_outside_of_loops_are_logged_again_from_a_checkpoint_on(groups: Groups, tmp_path: Path) -> None:
    """Nobody waits for a rank that goes through the model alone; the first such step ends with a checkpoint of all."""
    script: Script = scripts.outside
    group, options = groups(2), {"log": "auto", "checkpoint_every": 9}
    twin = finish(script, tmp_path / "twin", launcher=group)
    demand_equal(group.ends(script, tmp_path / "whole", **options), twin)
    folder = tmp_path / "killed"
    group.dies(script, folder, Death("batch", number=17), **options)
    group.dies(script, folder, Death("outside", number=3, rank=1), **options)
    lives = group.ends(script, folder, **options)
    assert [life.step for life in lives] == [22, 22], "of three steps outside of the loop, the last one was not over"
