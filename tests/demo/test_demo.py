"""The demo: its samples, its comparison, and what it says of folders and children. tests/test_wheel.py runs it whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tranlogs.base.errors import UsageError
from tranlogs_demo import run_demo
from tranlogs_demo.demo import Life, ProcessFailed, compare, follow, judge
from tranlogs_demo.training import GPT_TINY, Job, TextWindows


def test_sample_is_followed_by_itself_moved_on() -> None:
    windows = TextWindows("hello world", block=3)
    read = [["".join(windows.alphabet[int(i)] for i in part) for part in windows[sample]] for sample in range(len(windows))]
    assert read == [["hel", "ell"], ["lo ", "o w"], ["wor", "orl"]]


def test_one_other_bit_is_found_and_named() -> None:
    one = {"a": torch.ones(3), "b": [torch.zeros(2), 0.5]}
    other = {"a": torch.ones(3), "b": [torch.tensor([0.0, -0.0]), 0.5]}
    assert torch.equal(one["b"][0], other["b"][0])
    found = compare("weights", "{} values", one, other)
    assert found.differences == ["weights: b[0] differs"]
    assert found.extent == "3 values"


def test_value_of_one_run_only_is_named() -> None:
    found = compare("optimizer", "{}", {"state": {0: {"step": 1, "exp_avg": 2.0}}}, {"state": {0: {"step": 1}}})
    assert found.differences == ["optimizer: state[0]['exp_avg'] is in one run only"]


def _judged(folder: Path, weight: float, *, landed: int, rechecked: str = "equal", **report: Any) -> dict[str, Any]:
    """Judge a run of 12 batches, killed in its fifth. It ended with `weight`; `rechecked` is what became of the proof."""
    order = report.pop("order", "abcdefghijkl")
    names = ("reference", "killed", "recovered")
    jobs = [Job(name, str(folder), GPT_TINY, 1, 12, 12, 0, None, str(folder / "run")) for name in names]
    for job, value in zip(jobs, (1.0, 0.0, weight), strict=True):
        state = {"weights": {"head": torch.tensor([value])}, "optimizer": {}, "scheduler": {}, "random": {}, "loss": {}}
        torch.save(state, job.state)
    times = [float(i) for i in range(12)]
    built = {"parameters": 1, "characters": 1}
    told = {
        "batch": landed,
        "replayed": 1,
        "checkpoint_step": 1,
        "seconds": 0.5,
        "seconds_replay": 0.2,
        "exact": True,
        "notes": [],
        "recheck": "",
    } | report
    final = told if not told["recheck"] else {**told, "exact": rechecked == "equal", "recheck": rechecked}
    reference = Life(jobs[0], built, digests=list("abcdefghijkl"), began_at=times)
    killed = Life(jobs[1], built, digests=list("abcde"), began_at=times[:5], was_killed=True)
    digests, began_at = list(order[landed:]), times[landed:]
    recovered = Life(jobs[2], built, told, {"log_bytes": 8, "report": final}, digests=digests, began_at=began_at)
    return judge(reference, killed, recovered)


def test_equal_ends_are_exact(tmp_path: Path) -> None:
    figures = _judged(tmp_path, 1.0, landed=4)
    assert figures["is_exact"], figures["differences"]
    assert (figures["steps_lost"], figures["steps_replayed"], figures["killed_in_batch"]) == (1, 1, 5)


def test_a_batch_that_was_computed_again_is_not_lost(tmp_path: Path) -> None:
    figures = _judged(tmp_path, 1.0, landed=3, recheck="pending", exact=None)
    assert figures["is_exact"], figures["differences"]
    assert (figures["steps_lost"], figures["killed_in_batch"]) == (1, 5)


@pytest.mark.parametrize(
    ("facts", "difference"),
    [
        ({"weight": 1.5, "landed": 4}, "weights: head differs"),
        ({"landed": 1}, "recovery came to batch 1, and 5 had begun"),
        ({"landed": 4, "exact": None, "notes": ["no fingerprints"]}, "recovery did not find itself exact: no fingerprints"),
        ({"landed": 4, "order": "abcdegfhijkl"}, "order of batches: [5] differs"),
        (
            {"landed": 3, "recheck": "pending", "exact": None, "rechecked": "different"},
            "the last batch before the crash was not computed again, or came out otherwise",
        ),
    ],
    ids=["weight", "lost batch", "not verified", "order", "recheck"],
)
def test_what_differs_is_not_exact(facts: dict[str, Any], difference: str, tmp_path: Path) -> None:
    figures = _judged(tmp_path, **{"weight": 1.0} | facts)
    assert not figures["is_exact"]
    assert difference in figures["differences"]


def test_a_folder_that_is_not_the_demos_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for folder, why in ((tmp_path, "no demo made"), (tmp_path / "thesis.txt" / "demo", "cannot work there")):
        with pytest.raises(UsageError, match=why):
            run_demo(folder, quick=True, seed=1, as_json=True)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_child_that_fails_is_told_in_one_sentence(tmp_path: Path) -> None:
    job = Job("broken", str(tmp_path), GPT_TINY, 0, 1, 1, 0)  # a batch of nothing
    with pytest.raises(ProcessFailed, match=r"'broken' ended with exit code 1: ValueError: .*batch_size.*broken\.log"):
        follow(job)


@pytest.mark.soak
def test_a_child_that_was_killed_behind_its_last_batch_ends_with_the_loss_of_the_run(tmp_path: Path) -> None:
    """It has nothing left to train. (Seen once on a slow machine: IndexError, and a demo that failed.)"""
    ends = []
    for name in ("first", "again"):
        job = Job(name, str(tmp_path), GPT_TINY, 2, 3, 3, 0, None, str(tmp_path / "run"), 2)
        ends.append(follow(job))
    assert ends[1].landed == 3
    assert ends[1].digests == []
    assert ends[1].finished["loss"] == ends[0].finished["loss"]
