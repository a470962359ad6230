"""Several ranks compute the newest unit before a crash again: all find it equal, or all set back what they have recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.child import DIES
from tests.distributed.conftest import Launcher
from tests.distributed.rechecked import BATCHES
from tests.distributed.test_kills import differences
from tests.support import campaign
from tranlogs.log.reader import SegmentReader
from tranlogs.recovery.group.journals import read_generations, select_generation

pytestmark = pytest.mark.crash

Reports = list[list[dict[str, Any]]]  # of the ranks in one start: after the recovery, and when the recheck changed it

PROVEN: list[tuple[str, bool | None]] = [("pending", None), ("equal", True)]


def read_reports(run: Path, world: int = 2) -> list[Reports]:
    """By start and rank, the reports of the scripts. A start in which a rank did not come to its recovery is left out."""
    starts: list[Reports] = []
    for rank in range(world):
        number = -1
        for line in Path(f"{run}.reports{rank}").read_text().splitlines():
            report = json.loads(line)
            number += report["begins"]
            if number == len(starts):
                starts.append([[] for _ in range(world)])
            starts[number][rank].append(report)
    return starts


def verdicts(ranks: Reports) -> list[list[tuple[str, bool | None]]]:
    return [[(one["recheck"], one["exact"]) for one in reports] for reports in ranks]


def crash(launcher: Launcher, name: str, run: Path, order: dict[str, Any]) -> None:
    """Train until a rank of two dies."""
    job = {"world": 2, "restarts": 0, "arguments": [name, str(run), str(launcher.folder / "out"), json.dumps([order])]}
    assert launcher.ask(job)
    assert DIES in launcher.said()


def damage_last_gradient(journal: Path) -> int:
    """Flip a bit of the newest record of a step; return the step."""
    steps = [link for run in select_generation(read_generations(journal), 1).history.runs for link in run if link.kind.is_step]
    with SegmentReader(steps[-1].segment.path) as reader:
        at = reader.decode(steps[-1].location).location.payload_offset
    data = bytearray(steps[-1].segment.path.read_bytes())
    data[at] ^= 1
    steps[-1].segment.path.write_bytes(data)
    return steps[-1].step


def test_ranks_that_are_killed_one_by_one_while_they_compute_a_unit_again_lose_nothing(
    launcher: Launcher, tmp_path: Path
) -> None:
    kills: list[dict[str, Any]] = [{"rank": 1, "step": 7, "moment": "boundary"}]
    moments = [(0, 0, "forward"), (1, 0, "step"), (0, 0, "boundary"), (1, 1, "asks"), (0, 1, "concludes")]
    kills += [{"rank": rank, "turn": turn, "moment": moment} for rank, turn, moment in moments]
    found = launcher.run(2, "ddp rechecked", tmp_path / "run", kills)
    assert launcher.said().count(DIES) == len(kills)
    assert differences(found, launcher.reference(2, "ddp rechecked")) == [[]] * 2
    told = read_reports(tmp_path / "run")
    print(told)
    assert [ranks[0][0]["step"] for ranks in told] == [0, *[6] * len(kills)]
    assert verdicts(told[-1]) == [PROVEN] * 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [campaign.in_soak("ddp"), "fsdp"])
def test_all_ranks_set_back_their_records_where_the_units_differ(launcher: Launcher, tmp_path: Path, kind: str) -> None:
    """A counter of the script's own begins anew in each process: each rank continues behind its record.

    Of ZeRO's parameters each rank has logged its own, and PowerSGD has a state that is no part of the model.
    """
    name, kills = f"{kind} counter", list[dict[str, Any]]([{"rank": 0, "step": 5}])
    if kind == "ddp":
        kills.append({"rank": 1, "step": BATCHES + 3, "moment": "boundary"})
    found = launcher.run(2, name, tmp_path / "run", kills)
    said = launcher.said()
    right = launcher.run(2, name, None, [{"turns": {str(kill["step"]): 1 for kill in kills}}])
    assert differences(found, right) == [[]] * 2
    _, second, *rest = read_reports(tmp_path / "run")
    print(second, rest)
    assert verdicts(second) == [[("pending", None), ("different", False)]] * 2
    for third in rest:
        assert verdicts(third) == [[("pending", False), ("different", False)]] * 2, "an earlier resume differed"
    words = "the last batch before the crash (step 5) was computed again, and the gradient of "
    whose = [""] if f"{tmp_path / 'run'}: {words}" in said else ["rank 0: ", "rank 1: "]  # of all the same, or each its own
    for rank in whose:
        assert all(any(note.startswith(rank + words) for note in reports[-1]["notes"]) for reports in second)
        assert said.count(f"{tmp_path / 'run'}: {rank}{words}") == 1, "the first rank says it for all"


@pytest.mark.parametrize("kind", [campaign.in_soak("ddp"), "fsdp"])
def test_a_damaged_record_of_one_rank_sends_all_to_the_unit_before(launcher: Launcher, tmp_path: Path, kind: str) -> None:
    name, run = f"{kind} rechecked", tmp_path / "run"
    crash(launcher, name, run, {"rank": 0, "step": 11})
    assert damage_last_gradient(run / "rank1") == 11
    found = launcher.run(2, name, run)
    assert differences(found, launcher.reference(2, name)) == [[]] * 2
    ranks = read_reports(run)[-1]
    print(ranks)
    assert [reports[0]["step"] for reports in ranks] == [9] * 2
    assert verdicts(ranks) == [PROVEN] * 2
    assert all(any("rank1" in note and "step 11" in note for note in reports[-1]["notes"]) for reports in ranks)


def test_a_damaged_record_that_another_rank_has_a_copy_of_costs_no_step(launcher: Launcher, tmp_path: Path) -> None:
    """There is nothing that the rank could compare its unit with; what it had noted of its losses is gone as well."""
    run = tmp_path / "run"
    crash(launcher, "ddp copies", run, {"rank": 0, "step": 11})
    assert damage_last_gradient(run / "rank1") == 11
    found = launcher.run(2, "ddp copies", run)
    assert differences(found, launcher.reference(2, "ddp copies")) == [[], ["losses"]]
    ranks = read_reports(run)[-1]
    print(ranks)
    assert [reports[0]["step"] for reports in ranks] == [11] * 2
    assert verdicts(ranks) == [[("", None)]] * 2
    why = "no unit is computed again, because the journal of rank 1 is lost or damaged"
    assert all(any(note.startswith(why) for note in reports[0]["notes"]) for reports in ranks)


def test_nothing_is_computed_again_where_a_rank_is_not_to(launcher: Launcher, tmp_path: Path) -> None:
    kills = [
        {"rank": 0, "step": 5},
        {"rank": 1, "step": 9, "recheck": {"0": False, "1": False}},
        {"recheck": {"1": False}},
    ]
    found = launcher.run(2, "ddp rechecked", tmp_path / "run", kills)
    assert differences(found, launcher.reference(2, "ddp rechecked")) == [[]] * 2
    _, off, apart = read_reports(tmp_path / "run")
    assert [verdicts(off), verdicts(apart)] == [[[("", True)]] * 2, [[("", None)]] * 2]
    assert [reports[0]["step"] for reports in (*off, *apart)] == [5, 5, 9, 9]
    why = "no unit is computed again, because rank 1 has recheck=False: that the script's loop resumes exactly is not proven"
    assert all(why in reports[0]["notes"] for reports in apart)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("bare rechecked", "the processes do not wait for each other at each step"),
        ("fsdp implicit", "the loop is one of the script's own, which the run sees only in the forward pass"),
    ],
)
def test_where_ranks_cannot_conclude_together_the_report_says_why(
    launcher: Launcher, tmp_path: Path, name: str, why: str
) -> None:
    found = launcher.run(2, name, tmp_path / "run", [{"rank": 0, "step": 7}])
    ranks = read_reports(tmp_path / "run")[-1]
    print(ranks)
    assert verdicts(ranks) == [[("", None)]] * 2
    assert all(any(f"no unit is computed again, because {why}" in note for note in one[0]["notes"]) for one in ranks)
    (step,) = {one[0]["step"] for one in ranks}
    assert 0 < step <= 7, "the other one may be slower"
    assert differences(found, launcher.reference(2, name)) == [[]] * 2


def test_a_rank_that_runs_far_ahead_keeps_what_all_go_back_to(launcher: Launcher, tmp_path: Path) -> None:
    """Ranks that do not wait for each other: one is at its last step while another one dies at its seventh."""
    name, run = "bare rechecked", tmp_path / "run"
    found = launcher.run(2, name, run, [{"rank": 0, "step": 7, "pace": {"0": 0.4}}])
    ranks = read_reports(run)[-1]
    print(ranks)
    assert {one[0]["step"] for one in ranks} <= {6, 7}
    assert differences(found, launcher.reference(2, name)) == [[]] * 2


def test_a_unit_that_ends_in_a_forward_pass_is_compared(launcher: Launcher, tmp_path: Path) -> None:
    """The run does not see where the loop gets its data, so that it is not known to be exact all the same."""
    found = launcher.run(2, "ddp implicit", tmp_path / "run", [{"rank": 0, "step": 7}])
    ranks = read_reports(tmp_path / "run")[-1]
    assert verdicts(ranks) == [[("pending", None), ("equal", None)]] * 2
    assert differences(found, launcher.reference(2, "ddp implicit")) == [[]] * 2


def test_what_the_script_changes_on_purpose_holds_on_all_ranks(launcher: Launcher, tmp_path: Path) -> None:
    """The unit that would differ is dropped where all ranks meet."""
    kills = [{"rank": 0, "step": 7}, {"change": 0.5}]
    found = launcher.run(2, "ddp rechecked", tmp_path / "run", kills)
    ranks = read_reports(tmp_path / "run")[-1]
    print(ranks)
    assert verdicts(ranks) == [[("pending", None), ("", None)]] * 2
    why = "no unit is computed again, because the script has changed weights, hyper-parameters or other state before its loop"
    assert all(any(note.startswith(why) for note in reports[-1]["notes"]) for reports in ranks)
    right = launcher.run(2, "ddp rechecked", None, [{"change": 0.5, "from": 7}])
    assert differences(found, right) == [[]] * 2


def test_another_number_of_processes_computes_no_unit_of_the_former_again(launcher: Launcher, tmp_path: Path) -> None:
    """The process that continues computes a unit of its own again when it crashes in its turn."""
    name, run = "ddp rechecked", tmp_path / "run"
    crash(launcher, name, run, {"rank": 0, "step": 7})
    launcher.run(1, name, run, [{"rank": 0, "step": 12}])
    _, resized, again = read_reports(run, 1)
    print(resized, again)
    assert verdicts(resized) == [[("", None)]]
    why = "no unit is computed again, because 2 processes recorded the run, now there is 1"
    assert any(note.startswith(why) for note in resized[0][0]["notes"])
    assert [report["recheck"] for report in again[0]] == ["pending", "equal"]
