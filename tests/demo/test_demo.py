"""The demo: the whole of it, its samples, its comparison, and what it says of folders and children.

Its trainers are forks of this process, which has imported torch: each saves five seconds of a processor. A soak runs the demo
in processes of its own (tests/test_wheel.py).
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import IO, Any

import pytest
import torch
import torch._dynamo  # the first step imports it, which would take every trainer a second

from tests.kills.launchers import be_script, forked, run_script, wait_for
from tranlogs.base.errors import UsageError
from tranlogs_demo import demo, run_demo
from tranlogs_demo.demo import Life, ProcessFailed, compare, follow, judge
from tranlogs_demo.training import GPT_TINY, Job, TextWindows

# The demo and the commands that it names, in one process; "small": with a tiny model.
DEMO = """
import contextlib, io, json, sys
from dataclasses import replace
from tranlogs.cli import main
from tranlogs_demo import demo
from tranlogs_demo.training import GPT_TINY

def call(line):
    try:
        main(line.split())
    except SystemExit as end:
        if end.code:
            raise SystemExit(f"{line}: {end.code}")

if "small" in sys.argv:
    demo.QUICK = replace(demo.QUICK, config=GPT_TINY, batch=2, until=20)
with contextlib.redirect_stdout(io.StringIO()) as told:
    call("demo --quick --json --seed 7")
figures = json.loads(told.getvalue())
print(json.dumps(figures))
for line in demo.commands(figures["run"], figures["batches"]):
    call(line)
"""

_TRAINER = "import runpy; runpy.run_module('tranlogs_demo.training', run_name='__main__')"


class Forked:
    """A trainer of the demo, as `subprocess.Popen` has it."""

    def __init__(self, command: list[str], *, stderr: IO[bytes], **_: Any) -> None:
        assert command[1:3] == ["-m", "tranlogs_demo.training"]
        read, write = os.pipe()
        out, err = Path(f"/dev/fd/{write}"), Path(str(stderr.name))
        self._pid = forked(lambda: be_script(_TRAINER, ["-c", command[-1]], out, err))
        os.close(write)
        self.stdout, self.returncode = os.fdopen(read), None

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.wait()

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> None:
        if self.returncode is None:
            self.returncode = wait_for(self._pid)


@pytest.fixture(autouse=True)
def _forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.subprocess, "Popen", Forked)


def demand_exact(said: str, folder: Path) -> None:
    """Demand that the killed trainer came to the bits of the other one, and that the demo has left its files."""
    figures = json.loads(said.partition("\n")[0])
    assert figures["is_exact"], figures["differences"]
    assert figures["differences"] == []
    assert set(figures["compared"].values()) == {True}
    assert figures["steps_lost"] <= 1
    landed = figures["checkpoint_step"] + figures["steps_replayed"]
    assert landed + 1 + figures["steps_lost"] == figures["killed_in_batch"]  # one batch was computed again
    assert Path(figures["run"]) == Path("demo-run/run")
    assert (folder / figures["curves"]).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (folder / "state.pt").is_file()


@pytest.mark.crash
def test_the_demo_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer of PyTorch is killed and goes on, and the commands that the demo names work on its run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRANLOGS_RECHECK", raising=False)
    done = run_script(DEMO, tmp_path, "small")
    assert done.returncode == 0, done.stderr
    demand_exact(done.stdout, tmp_path)


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
