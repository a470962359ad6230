"""Journals of a group that are lost or damaged: what other ranks or a store have of them decides how much that costs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Cli
from tests.distributed import scripts
from tests.distributed.conftest import Groups, Twins, demand_equal
from tests.distributed.scripts import EVERY, STEPS, newest_checkpoint
from tests.kills.job import Death
from tests.kills.judge import Life
from tests.support import campaign
from tests.support.record_rows import forget_records
from tranlogs.log.reader import SegmentReader
from tranlogs.recovery.group.journals import read_generations, select_generation
from tranlogs.recovery.history import Link

pytestmark = pytest.mark.crash

SETTLED = partial(scripts.train, odd="settles")


def flip(path: Path, at: int) -> None:
    """Change a bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def records_of(journal: Path) -> dict[int, Link]:
    """Return where the newest record of each step lies."""
    runs = select_generation(read_generations(journal), 1).history.runs
    return {link.step: link for run in runs for link in run if link.kind.is_step}


def flip_gradients(link: Link) -> None:
    """Change a bit of a record's gradients."""
    with SegmentReader(link.segment.path) as reader:
        flip(link.segment.path, reader.decode(link.location).location.payload_offset)


@pytest.mark.parametrize("far", [True, campaign.in_soak(False)])
def test_a_lost_disk_sends_all_back_to_the_checkpoint(far: bool, groups: Groups, twins: Twins, tmp_path: Path) -> None:
    """Then that of another rank is lost, before the next step. With `far`, each rank can read its own disk only."""
    group, script = groups(3), partial(scripts.train, odd="settles far" if far else "settles")

    def journal(rank: int) -> Path:
        return tmp_path / (f"node{rank}/run" if far else "run") / f"rank{rank}"

    group.dies(script, tmp_path, Death("begin", number=14, rank=1), checkpoint_every=EVERY)
    shutil.rmtree(journal(1))
    group.dies(script, tmp_path, Death("begin", number=1), checkpoint_every=EVERY)
    said = group.all_said()
    assert "recovered to step 10 (" in said, "of steps 11 to 13 a share is gone"
    assert "the journal of rank 1 is gone" in said
    shutil.rmtree(journal(0))
    group.dies(script, tmp_path, Death("batch", number=3, rank=2), checkpoint_every=EVERY)
    assert "recovered to step 10 (" in group.all_said()
    lives = group.ends(script, tmp_path, checkpoint_every=EVERY)
    demand_equal(lives, twins(3))
    assert [(life.step, life.exact) for life in lives] == [(11, True)] * 3
    assert not list(tmp_path.glob("**/peers"))


def test_a_lost_disk_costs_no_step_where_each_rank_logged_all_of_the_same(groups: Groups, tmp_path: Path) -> None:
    group = groups(3)
    for rank, words in ((1, "fresh run"), (0, "recovered to step 6")):
        group.dies(SETTLED, tmp_path, Death("begin", number=7 if rank else 3, rank=rank), log="weights", checkpoint_every=EVERY)
        assert words in group.all_said()
        shutil.rmtree(tmp_path / "run" / f"rank{rank}")
    lives = group.ends(SETTLED, tmp_path, log="weights", checkpoint_every=EVERY)
    assert [(life.step, life.exact) for life in lives] == [(8, None)] * 3
    assert any("rank 0 continues from step 8 with the weights" in note for note in lives[0].notes)
    assert any("the other ranks logged the same, so that no step is lost" in note for note in lives[0].notes)
    assert lives[0].of("model") != {}
    for name in ("out.weight", "norm.bias"):
        assert len({str(life.of("model", f"module.{name}")) for life in lives}) == 1


def test_a_lost_disk_of_ranks_that_train_each_for_itself_is_refused(groups: Groups, tmp_path: Path) -> None:
    group, script = groups(2), partial(scripts.train, kind="bare")
    group.dies(script, tmp_path, Death("batch", number=4, rank=1))
    shutil.rmtree(tmp_path / "run" / "rank1")
    words = "each rank logged its own steps, and the weights of the ranks were never seen to be equal"
    assert words in group.refuses(script, tmp_path)


def test_nodes_that_have_changed_places_do_not_begin_anew(groups: Groups, twins: Twins, tmp_path: Path) -> None:
    """Each has a disk of its own, with the journal of the rank that it was."""
    group, script = groups(2), partial(scripts.train, odd="settles far")

    def swap() -> None:
        for old, new in (("node0", "node"), ("node1", "node0"), ("node", "node1")):
            (tmp_path / old).rename(tmp_path / new)

    group.dies(script, tmp_path, Death("batch", number=8, rank=1), checkpoint_every=EVERY)
    swap()
    words = "the places of their own ranks are empty: that of rank 1 where rank 0 runs ("
    said = group.refuses(script, tmp_path, checkpoint_every=EVERY)
    assert words in said
    assert f"{tmp_path / 'node0' / 'run' / 'rank1'}), that of rank 0 where rank 1 runs (" in said
    assert "with `run=` on a disk that all machines share, or `store=`, a rank finds its journal on any machine" in said
    swap()
    lives = group.ends(script, tmp_path, checkpoint_every=EVERY)
    assert [life.step for life in lives] == [6, 6]
    demand_equal(lives, twins(2))


@pytest.fixture(scope="module")
def with_copies(groups: Groups, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of three ranks with `copies=2`, of which one died in its ninth step; to be read only."""
    folder = tmp_path_factory.mktemp("copies")
    groups(3).dies(SETTLED, folder, Death("begin", number=10, rank=2), checkpoint_every=EVERY, copies=2)
    return folder


def end_with_copies(groups: Groups, twins: Twins, folder: Path) -> list[Life]:
    """Let the group end; each rank must be equal to its twin, and nothing is computed again."""
    lives = groups(3).ends(SETTLED, folder, checkpoint_every=EVERY, copies=2)
    demand_equal(lives, twins(3))
    return lives


def test_a_lost_disk_costs_no_step_with_copies(with_copies: Path, groups: Groups, twins: Twins, tmp_path: Path) -> None:
    """Then another one is lost before the next step, and once more behind it."""
    folder = Path(shutil.copytree(with_copies, tmp_path / "life"))
    group, options = groups(3), {"checkpoint_every": EVERY, "copies": 2}
    for rank, number in ((2, 1), (0, 3), (0, 0)):
        shutil.rmtree(folder / "run" / f"rank{rank}")
        if number:
            group.dies(SETTLED, folder, Death("begin", number=number, rank=1), **options)
            assert "recovered to step 9 (" in group.all_said()
    lives = end_with_copies(groups, twins, folder)
    assert {life.step for life in lives} == {11}
    words = "the journal of rank 0 is gone: its gradient shards and its own state are restored from the copies of rank 2"
    assert any(words in note for note in lives[0].notes)


@pytest.mark.parametrize("what", ["gradients", "description"])
def test_damage_that_a_copy_replaces_costs_no_step(
    what: str, with_copies: Path, groups: Groups, twins: Twins, tmp_path: Path
) -> None:
    """There is nothing that the rank could compare its newest unit with where that is damaged."""
    folder = Path(shutil.copytree(with_copies, tmp_path / "life"))
    records = records_of(folder / "run" / "rank1")
    assert newest_checkpoint(folder / "run" / "rank1") == 5, "recovery would not read the damage"
    flip_gradients(records[7])
    if what == "description":  # of a record is stored once
        flip(records[8].segment.path, records[8].location.offset)
        forget_records(folder / "run" / "rank1")
    lives = end_with_copies(groups, twins, folder)
    if what == "gradients":
        assert [(life.step, life.exact) for life in lives] == [(8, True)] * 3
        (note,) = [note for note in lives[0].notes if "The copy in another rank's journal was read instead" in note]
        assert str(records[7].segment.path) in note
        assert "step 7" in note
    else:
        assert [life.step for life in lives] == [9, 9, 9]
        words = "the journal of rank 1 is damaged, and counts as lost: its gradient shards and its own"
        assert any(words in note for note in lives[0].notes)
        why = "no unit is computed again, because the journal of rank 1 is lost or damaged"
        assert any(note.startswith(why) for note in lives[0].notes)


def test_shares_lie_in_two_journals_and_ranks_that_are_no_neighbours_can_be_lost(
    groups: Groups, cli: Cli, tmp_path: Path
) -> None:
    """Also where another number of processes goes on."""
    options = {"checkpoint_every": EVERY, "copies": 2}
    groups(4).dies(partial(scripts.resized, kind="ddp"), tmp_path / "life", Death("begin", number=3, rank=3), **options)
    run = tmp_path / "life" / "run"
    ranks = cli("log", run, "--limit", "0", "--json").json["ranks"]
    for rank in ranks:
        dense = [record["dense_bytes"] for record in rank["records"] if record["kind"] == "gradients"]
        parameters = 40 * 5 + 5 + 40 * 40 + 40 + 8 * 40 + 40 + 2 * 40
        assert abs(sum(dense) / len(dense) - parameters * 4 / 2) <= 8
    assert cli("replay", run, "--out", tmp_path / "right.pt", "--json").json["step"] == 2
    right = torch.load(tmp_path / "right.pt", weights_only=True)["model"]
    for rank, step in ((1, 2), (3, 2), (2, 0)):  # with rank 2 all is lost that is known of the share of rank 3
        shutil.rmtree(run / f"rank{rank}")
        if rank == 3:
            resized = Path(shutil.copytree(tmp_path / "life", tmp_path / "resized"))
        found = cli("replay", run, "--out", tmp_path / "out.pt", "--force", "--json").json
        assert (found["step"], found["exact"]) == (step, True)
        out = torch.load(tmp_path / "out.pt", weights_only=True)["model"]
        assert step == 0 or all(torch.equal(right[name], out[name]) for name in right)
    groups(2).dies(partial(scripts.resized, kind="ddp"), resized, Death("begin", number=2), **options)
    assert "recovered to step 2 (" in groups(2).all_said()
    for step in (3, 1):  # of the two, and of the four before them
        found = cli("replay", resized / "run", "--step", step, "--out", tmp_path / "out.pt", "--force", "--json")
        assert (found.code, found.json["step"], found.json["exact"]) == (0, step, True), found.err


@pytest.mark.parametrize("kind", ["fsdp", campaign.in_soak("ddp")])
def test_a_lost_disk_comes_back_from_the_store(kind: str, groups: Groups, twins: Twins, tmp_path: Path) -> None:
    """Then all disks are lost, and another machine goes on."""
    run, group, script = tmp_path / "run", groups(2), partial(scripts.train, kind=kind, odd="settles stores")
    options = {"checkpoint_every": EVERY, "store": str(tmp_path / "store")}
    (tmp_path / "store").mkdir()
    group.dies(script, tmp_path, Death("begin", number=12, rank=1), **options)
    shutil.rmtree(run / "rank1")
    lives = group.ends(script, tmp_path, **options)
    assert "rank1: fetched from" in group.all_said()
    assert min(life.step for life in lives) >= 9, "steps up to 10 at least were shipped, and the last one is computed again"
    demand_equal(lives, twins(2, kind=kind))
    shutil.rmtree(run)
    again = group.ends(script, tmp_path, **options)
    assert sorted(path.name for path in run.iterdir()) == ["rank0", "rank1"]
    assert {life.step for life in again} <= {STEPS - 1, STEPS}
    assert [life.of("model") for life in again] == [life.of("model") for life in lives]


@pytest.mark.parametrize("far", [False, campaign.in_soak(True)])  # far: the others have copies of what is damaged
def test_what_is_damaged_in_a_journal_comes_from_the_store(
    far: bool, copied: Callable[[str], Path], groups: Groups, twins: Twins, cli: Cli, tmp_path: Path
) -> None:
    folder = copied("ddp")
    run = folder / "run"
    assert cli("push", run, (tmp_path / "store").as_uri()).code == 0
    flip_gradients(records_of(run / "rank1")[STEPS])
    (max((run / "rank2/checkpoints").iterdir()) / "meta.bin").unlink()
    for path in (run / "rank0/log").glob("*.seg"):
        path.unlink()
    if far:
        for rank in range(3):
            (folder / f"node{rank}").mkdir()
            shutil.copytree(run, folder / f"node{rank}" / "run")
    lives = groups(3).ends(partial(scripts.train, odd="settles far" if far else "settles"), folder, checkpoint_every=EVERY)
    assert [(life.step, life.exact) for life in lives] == [(STEPS, True)] * 3
    assert sum("replaced by the copy in" in note for note in lives[0].notes) >= 3
    assert [life.of("model") for life in lives] == [life.of("model") for life in twins(3)]
