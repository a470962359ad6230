"""Ranks of which each has shards of the parameters: what is lost with a journal, rewinds, and folders that do not fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.distributed import scripts
from tests.distributed.conftest import Groups, Twins, demand_equal
from tests.distributed.scripts import EVERY, STEPS
from tests.distributed.test_lost_journals import flip_gradients, records_of
from tests.kills.job import Death
from tests.kills.judge import prove_deaths
from tests.kills.pytorch import Expected
from tests.support import campaign

pytestmark = pytest.mark.crash

FSDP = partial(scripts.train, kind="fsdp")


def test_a_death_between_a_checkpoint_of_one_rank_and_that_of_another_loses_no_step(
    groups: Groups, twins: Twins, tmp_path: Path
) -> None:
    """With keep=1: rank 0's newest checkpoint is of a step that rank 1 does not have."""
    deaths = [Death("checkpoint", number=2 * EVERY, rank=1)]
    options = {"keep": 1, "checkpoint_every": EVERY}
    script, right = partial(scripts.train, kind="fsdp", odd="tight"), twins(2, kind="fsdp")
    (first, _) = prove_deaths(script, tmp_path, right, deaths, Expected(), launcher=groups(2), **options)
    assert first.step == 2 * EVERY - 2, "the step before is computed again"


def test_a_damaged_record_of_one_rank_sends_all_to_the_unit_before(groups: Groups, twins: Twins, tmp_path: Path) -> None:
    groups(2).dies(FSDP, tmp_path, Death("batch", number=9))
    records = records_of(tmp_path / "run" / "rank1")
    assert max(records) == 9
    flip_gradients(records[8])
    lives = groups(2).ends(FSDP, tmp_path)
    demand_equal(lives, twins(2, kind="fsdp"))
    assert {life.exact for life in lives} == {True}
    assert {life.step for life in lives} <= {6, 7}
    assert all(any("rank1" in note and "step 8" in note for note in life.notes) for life in lives)


def test_a_lost_journal_is_refused_by_rank_and_step(
    copied: Callable[[str], Path], groups: Groups, cli: Cli, tmp_path: Path
) -> None:
    folder = copied("fsdp")
    shutil.rmtree(folder / "run" / "rank2")
    words = "the journals of ranks 2 are gone, and with them their shards of weights"
    assert words in cli("status", folder / "run", "--json").json["problems"][-1]
    found = cli("replay", folder / "run", "--out", tmp_path / "out.pt", "--force")
    assert (found.code, (tmp_path / "out.pt").exists()) == (1, False)
    assert f"ranks 0, 1 have steps 0 to {STEPS}" in found.err
    assert words in groups(3).refuses(FSDP, folder)


@pytest.mark.soak
def test_a_disk_that_is_lost_before_the_first_step_costs_nothing(groups: Groups, twins: Twins, tmp_path: Path) -> None:
    groups(2).dies(FSDP, tmp_path, Death("backward", rank=1))
    shutil.rmtree(tmp_path / "run" / "rank1")
    deaths = [Death("batch", number=9)]
    prove_deaths(FSDP, tmp_path, twins(2, kind="fsdp"), deaths, Expected(), launcher=groups(2))


def test_parts_of_two_pasts_make_no_state(
    trained: Callable[[str], Path], copied: Callable[[str], Path], groups: Groups, twins: Twins
) -> None:
    """One folder comes from a backup that is older than a rewind."""
    folder = copied("fsdp")
    groups(3).ends(partial(scripts.rewound, kind="fsdp", to=12), folder, checkpoint_every=EVERY)
    assert "recovered to step 12 (" in groups(3).all_said()
    shutil.rmtree(folder / "run" / "rank1")
    shutil.copytree(trained("fsdp") / "run" / "rank1", folder / "run" / "rank1")
    lives = groups(3).ends(FSDP, folder, checkpoint_every=EVERY)
    assert {life.step for life in lives} <= {11, 12}
    words = "the journal of rank 1 forks from the history of the run at step 12"
    assert any(words in note for note in lives[0].notes)
    right = twins(3, kind="fsdp")
    assert [life.of("model") for life in lives] == [life.of("model") for life in right]


@pytest.mark.parametrize("kind", ["fsdp", campaign.in_soak("ddp")])
def test_a_rewind_that_not_all_have_begun_never_was(
    kind: str, copied: Callable[[str], Path], groups: Groups, trained: Callable[[str], Path]
) -> None:
    """Rank 1 dies as rank 0 has begun the timeline of the rewind: all go on where they stood."""
    folder = copied(kind)
    script = partial(scripts.rewound, kind=kind, to=STEPS - 2)
    groups(3).dies(script, folder, Death("rewinding", rank=1), checkpoint_every=EVERY)
    lives = groups(3).ends(partial(scripts.train, kind=kind), folder, checkpoint_every=EVERY)
    assert [(life.step, life.exact) for life in lives] == [(STEPS - 1, True)] * 3, "the last step is computed again"


def test_folders_that_are_not_their_ranks_are_refused(
    copied: Callable[[str], Path], trained: Callable[[str], Path], groups: Groups, cli: Cli, tmp_path: Path
) -> None:
    """Swapped, or of another run."""
    folder = copied("fsdp")
    run = folder / "run"
    for old, new in (("rank0", "kept"), ("rank2", "rank0"), ("kept", "rank2")):
        (run / old).rename(run / new)
    words = "journals lie under the names of other ranks: rank0 is the journal of rank 2, rank2 is the journal of rank 0"
    assert words in groups(3).refuses(FSDP, folder)
    shutil.rmtree(run)
    groups(3).dies(FSDP, folder, Death("batch", number=3))
    shutil.rmtree(run / "rank1")
    shutil.copytree(trained("fsdp") / "run" / "rank1", run / "rank1")
    words = "the journal of rank 1 belongs to another run than the journals of ranks 0, 2"
    assert words in groups(3).refuses(FSDP, folder)
    assert words in cli("status", run, "--json").json["group"]["problems"][0]
