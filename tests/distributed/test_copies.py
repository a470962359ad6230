"""`copies=2`: each rank keeps the next one's shares, and what is its own, so that a lost disk costs no step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Cli
from tests.distributed.child import newest_checkpoint
from tests.distributed.conftest import Launcher, Outcome
from tests.distributed.test_kills import differences
from tests.distributed.test_world import crash, landed
from tests.support.record_rows import forget_records
from tranlogs.base.errors import UsageError
from tranlogs.log.reader import SegmentReader
from tranlogs.recovery.group.journals import read_generations, select_generation
from tranlogs.recovery.history import Link
from tranlogs_torch import LoggedOptimizer

pytestmark = pytest.mark.crash


def without_curves(found: Outcome) -> Outcome:
    """What a lost rank had noted comes from the one before it."""
    return [{key: value for key, value in rank.items() if key != "losses"} for rank in found]


def test_a_lost_disk_costs_no_step(launcher: Launcher, tmp_path: Path) -> None:
    kills = [[2, 25, 0, "disk"], [0, 25, 0, "disk"], [0, 33, 0, "disk"], [1, 40, 3]]  # the second before the next step
    found = launcher.run(3, "copies", tmp_path / "run", kills)
    told = launcher.told()
    assert [report["step"] for report in told[:4]] == [0, 25, 25, 33]
    assert told[4]["step"] >= 40
    assert [report["exact"] for report in told] == [True] * 5
    words = "the journal of rank 2 is gone: its gradient shards and its own state are restored from the copies of rank 1"
    assert any(words in note for note in told[1]["notes"])
    assert without_curves(found) == without_curves(launcher.reference(3, "plain"))


def shares_of_rank_1(run: Path) -> dict[int, Link]:
    """The records in the log of rank 1 by step; recovery has to read those behind step 21."""
    assert max(newest_checkpoint(run / f"rank{rank}") for rank in range(3)) <= 21, "recovery would not read the damage"
    (entries,) = select_generation(read_generations(run / "rank1"), 1).history.runs
    return {link.step: link for link in entries if link.kind.is_step}


def flip_gradients(link: Link) -> None:
    """Change a bit of a record's gradients."""
    with SegmentReader(link.segment.path) as reader:
        flip(link.segment.path, reader.decode(link.location).location.payload_offset)


def test_a_damaged_journal_costs_no_step(launcher: Launcher, tmp_path: Path) -> None:
    """Of one record the gradients, of a later one the description, which is stored once."""
    run = tmp_path / "run"
    crash(launcher, 3, run, 25, "copies")
    shares = shares_of_rank_1(run)
    flip_gradients(shares[22])
    flip(shares[24].segment.path, shares[24].location.offset)
    forget_records(run / "rank1")
    found = launcher.run(3, "copies", run)
    (told,) = launcher.told()
    assert (told["step"], told["exact"]) == (25, True)
    assert any(
        "the journal of rank 1 is damaged, and counts as lost: its gradient shards and its own" in note
        for note in told["notes"]
    )
    assert differences(without_curves(found), without_curves(launcher.reference(3, "plain"))) == [[]] * 3


def test_damaged_gradients_that_a_copy_replaces_are_named(launcher: Launcher, tmp_path: Path) -> None:
    run = tmp_path / "run"
    crash(launcher, 3, run, 25, "copies")
    shares = shares_of_rank_1(run)
    flip_gradients(shares[22])
    found = launcher.run(3, "copies", run)
    (told,) = launcher.told()
    assert (told["step"], told["exact"]) == (25, True)
    (note,) = [note for note in told["notes"] if "The copy in another rank's journal was read instead" in note]
    assert str(shares[22].segment.path) in note
    assert "step 22" in note
    assert differences(without_curves(found), without_curves(launcher.reference(3, "plain"))) == [[]] * 3


def flip(path: Path, at: int) -> None:
    """Change a bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="module")
def copies(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("copies") / "run"
    crash(launcher, 4, run, 18, "copies resized")
    return run


def test_ranks_that_are_no_neighbours_can_be_lost_together(copies: Path, cli: Cli, tmp_path: Path) -> None:
    run = Path(shutil.copytree(copies, tmp_path / "run"))
    assert cli("replay", run, "--out", tmp_path / "right.pt", "--json").json["step"] == 18
    shutil.rmtree(run / "rank1")
    shutil.rmtree(run / "rank3")
    found = cli("replay", run, "--out", tmp_path / "out.pt", "--force", "--json")
    assert (found.json["step"], found.json["exact"]) == (18, True)
    right, out = (torch.load(tmp_path / name, weights_only=True)["model"] for name in ("right.pt", "out.pt"))
    assert all(torch.equal(right[name], out[name]) for name in right)
    shutil.rmtree(run / "rank2")  # and with it all that is known of the share of rank 3
    assert cli("replay", run, "--out", tmp_path / "out.pt", "--force", "--json").json["step"] == 14


def test_each_share_lies_in_two_journals(copies: Path, cli: Cli) -> None:
    ranks = cli("log", copies, "--limit", "0", "--json").json["ranks"]
    dense = [sum(r["dense_bytes"] for r in rank["records"] if r["kind"] == "gradients") for rank in ranks]
    steps = [sum(r["kind"] == "gradients" for r in rank["records"]) for rank in ranks]
    parameters = 40 * 5 + 5 + 40 * 40 + 40 + 8 * 40 + 40 + 2 * 40
    assert all(abs(nbytes / count - parameters * 4 / 2) <= 8 for nbytes, count in zip(dense, steps, strict=True))


def test_another_number_of_processes_goes_on_without_a_lost_disk(
    copies: Path, launcher: Launcher, cli: Cli, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(copies, tmp_path / "run"))
    seen = [json.loads(line) for line in Path(f"{copies}.seen0").read_text().splitlines()]
    (state,) = (digest for step, _, _, digest in seen if step == 18)
    shutil.rmtree(run / "rank2")
    crash(launcher, 2, run, 20, "copies resized")
    assert landed(run, 2) == [[18, state]] * 2
    for step in (19, 16):  # of the two, and of the four before them
        found = cli("replay", run, "--step", step, "--out", tmp_path / "out.pt", "--force", "--json")
        assert (found.code, found.json["step"], found.json["exact"]) == (0, step, True), found.err


def test_copies_are_refused_where_there_is_nothing_to_copy(launcher: Launcher, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(UsageError, match="copies=2 needs several processes"):
        LoggedOptimizer(torch.optim.AdamW(model.parameters()), tmp_path / "one", model, copies=2)
    with pytest.raises(UsageError, match="copies must be 1 or 2"):
        LoggedOptimizer(torch.optim.AdamW(model.parameters()), tmp_path / "one", model, copies=3)
    arguments = ["copies bare", str(tmp_path / "run"), str(launcher.folder / "out"), json.dumps([])]
    assert launcher.ask({"world": 2, "restarts": 0, "arguments": arguments})
    assert "copies=2: here each process logs all of its own gradients" in launcher.said()
