"""Scripts of a group, killed at every kind of place and at random moments: all ranks end as their twins, proven."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.distributed import scripts
from tests.distributed.conftest import Launcher
from tests.kills.judge import finish, prove_deaths
from tests.kills.launchers import Torchrun
from tests.kills.pytorch import Death, Expected, Script, prove

SCRIPTS: dict[str, tuple[int, Script, Expected]] = {
    "ddp": (3, scripts.train, Expected()),
    "accumulation": (2, partial(scripts.train, accumulates=True), Expected()),
    "fsdp": (2, partial(scripts.train, shards=True), Expected()),
}


@pytest.mark.sampled(1)
@pytest.mark.crash
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_group_that_is_killed_anywhere_ends_with_the_bits_of_its_twin(name: str, launcher: Launcher, tmp_path: Path) -> None:
    world, script, expected = SCRIPTS[name]
    prove(script, tmp_path / name, expected, launcher=Torchrun(launcher, world))


@pytest.mark.crash
def test_all_ranks_set_back_their_records_where_one_differs(launcher: Launcher, tmp_path: Path) -> None:
    script, group = partial(scripts.train, draws=True), Torchrun(launcher, 2)
    twin = finish(script, tmp_path / "twin", launcher=group)
    expected = Expected(
        exact=False, because="rank 1: the last batch before the crash (step 8) was computed again, and rng.", is_equal=None
    )
    for rank, life in enumerate(prove_deaths(script, tmp_path, twin, [Death("batch", number=9)], expected, launcher=group)):
        assert life.differences(twin[rank]) == [], "the recorded state was set back, and with it what was drawn"


@pytest.mark.crash
def test_a_group_goes_on_in_its_second_loop(launcher: Launcher, tmp_path: Path) -> None:
    """Killed between the loops, in the first batch of the second one, and behind that, each time another rank."""
    group = Torchrun(launcher, 2)
    twin = finish(scripts.two_loops, tmp_path / "twin", launcher=group)
    deaths = [Death("between", number=2, rank=1), Death("batch", number=2), Death("batch", number=4, rank=1)]
    last = prove_deaths(scripts.two_loops, tmp_path, twin, deaths, Expected(), launcher=group)
    assert {life.position[0] for life in last} == {2}
