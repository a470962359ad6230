"""A tool of LMDB is stopped inside a write transaction of a run's catalog. Training goes on, and no step is lost.

Processes of TranLogs never do that: only the owner of the journal writes the catalog.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.toy import ToyState, open_toy, uninterrupted
from tests.support.verify import verify_run
from tranlogs.base.errors import UsageError
from tranlogs.catalog import CATALOG_NAME, Catalog
from tranlogs.journal import read_owner
from tranlogs.recovery import recover
from tranlogs.verify import Problem

pytestmark = pytest.mark.crash

TRAINER = """
import logging, sys, threading
from tests.support.toy import open_toy
from tranlogs.base.config import JournalConfig
from tranlogs.retention import EverySteps
run, until, end, durability, writer = sys.argv[1], int(sys.argv[2]), *sys.argv[3:]
logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s")
config = JournalConfig(durability=durability, segment_bytes=1 << 20, writer=writer)
trainer = open_toy(run, config=config, policy=EverySteps(8))
trainer.recover()
print("recovered", trainer.journal.step, flush=True)
if end == "at once":
    sys.stdin.readline()
trainer.train(until, lambda step: print("step", step, flush=True))
print("trained", flush=True)
sys.stdin.readline()
if end == "seal":
    print("sealed", trainer.journal.seal(20.0), flush=True)
if end == "shut_down":
    thread = threading.Thread(target=lambda: print("shut", trainer.journal.shut_down(20.0), flush=True))
    thread.start()
    thread.join()
    import os
    os._exit(0)
trainer.journal.close()
print("ended", flush=True)
"""
HOLDER = """
import sys, lmdb
env = lmdb.open(f"{sys.argv[1]}/rank0/catalog.lmdb", subdir=False, map_size=1 << 28, lib_version=0)
with env.begin(write=True) as txn:
    print("holding", flush=True)
    sys.stdin.readline()
print("done", flush=True)
"""


@contextmanager
def running(script: str, *arguments: object, errors: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process, which is killed at the end of the block if it has not ended."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    target = None if errors is None else errors.open("w")
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=target, text=True)
    finally:
        if target is not None:
            target.close()
    with process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str], word: str) -> str:
    """Wait until a process has said a line that begins with a word, and return the rest."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return line[len(word) :].strip()
    raise AssertionError(f"the process ended before it said {word!r}")


def told(process: subprocess.Popen[str]) -> None:
    """Let a process go on."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@contextmanager
def held(run: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is stopped inside a write transaction."""
    with running(HOLDER, run) as process:
        said(process, "holding")
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        yield process


def go_on(holder: subprocess.Popen[str]) -> None:
    """Let a stopped holder go on, and end its transaction."""
    holder.send_signal(signal.SIGCONT)
    told(holder)
    said(holder, "done")


def problems(run: Path) -> list[Problem]:
    """What `tranlogs verify` finds."""
    return [found for found in verify_run(run) if isinstance(found, Problem)]


def recovered_to(run: Path) -> int:
    """Recover the run, compare the state with that of an uninterrupted one, and return the step."""
    trainer = open_toy(run)
    step = trainer.recover().step
    assert trainer.state.everything() == uninterrupted(step).everything()
    trainer.train(step + 2)
    assert trainer.state.everything() == uninterrupted(step + 2).everything()
    trainer.journal.close()
    assert problems(run) == []
    return step


@pytest.mark.parametrize(("durability", "writer"), [("machine", "direct"), ("process", "thread")])
def test_training_goes_on_and_no_step_is_lost_when_it_is_killed(tmp_path: Path, durability: str, writer: str) -> None:
    run, errors = tmp_path / "run", tmp_path / "errors"
    with running(TRAINER, run, 10_000, "close", durability, writer, errors=errors) as trainer:
        said(trainer, "step 10")
        with held(run) as process:
            said(trainer, "step 60")
            while process_named(errors, process.pid) == 0:  # the warning comes some seconds after the transaction began
                said(trainer, "step")
            last = int(said(trainer, "step"))
            trainer.kill()
            trainer.wait()
            assert process_named(errors, process.pid) == 1  # said once
    assert "suspended" not in errors.read_text()
    slack = 0 if writer == "direct" else 256  # of queued steps a kill loses those that are not written
    assert recovered_to(run) >= last - slack


def process_named(errors: Path, pid: int) -> int:
    """How often a warning names a process."""
    return errors.read_text().count(
        f"WARNING {errors.parent}/run/rank0/{CATALOG_NAME}: process {pid} holds a write transaction"
    )


def test_the_catalog_has_everything_soon_after_the_holder_goes_on(tmp_path: Path) -> None:
    run, errors = tmp_path / "run", tmp_path / "errors"
    with running(TRAINER, run, 3000, "close", "machine", "direct", errors=errors) as trainer:
        said(trainer, "step 10")
        with held(run) as process:
            said(trainer, "step 40")
            while not process_named(errors, process.pid):
                said(trainer, "step")
            go_on(process)
        while "the catalog can be written again" not in errors.read_text():
            said(trainer, "step")
        while listed_step(run) < 60:
            said(trainer, "step")
        trainer.kill()
    assert errors.read_text().count("WARNING") == 2, errors.read_text()
    assert recovered_to(run) > 60


def listed_step(run: Path) -> int:
    """The newest step that the catalog knows."""
    catalog = Catalog.open(run / "rank0")
    try:
        return min(catalog.watermarks().synced, max(row.base_step for row in catalog.segments()))
    finally:
        catalog.close()


@pytest.mark.parametrize("end", ["close", "shut_down", "seal"])
def test_a_run_that_is_closed_meanwhile_ends_and_says_what_was_not_done(tmp_path: Path, end: str) -> None:
    run, errors = tmp_path / "run", tmp_path / "errors"
    with running(TRAINER, run, 20, end, "machine", "direct", errors=errors) as trainer:
        said(trainer, "trained")
        with held(run) as process:
            told(trainer)
            if end == "seal":
                assert said(trainer, "sealed") in ("True", "False")
            assert said(trainer, "shut" if end == "shut_down" else "ended") in ("", "False")
            assert trainer.wait(60) == 0
            if end != "shut_down":
                assert f"the log could not be closed cleanly: {run}/rank0/{CATALOG_NAME}: process {process.pid} holds" in (
                    errors.read_text()
                )
            owner = read_owner(run / "rank0")
            assert owner is not None
            assert (owner.is_alive, owner.has_closed) == (False, False)
    assert recovered_to(run) == 20


def test_a_process_that_is_killed_inside_its_transaction_holds_nobody_up(tmp_path: Path) -> None:
    run, errors = tmp_path / "run", tmp_path / "errors"
    with running(TRAINER, run, 60, "close", "machine", "direct", errors=errors) as trainer:
        said(trainer, "step 10")
        with held(run) as process:
            process.kill()
            process.wait()
            said(trainer, "trained")
            told(trainer)
            said(trainer, "ended")
    assert errors.read_text() == ""
    owner = read_owner(run / "rank0")
    assert owner is not None
    assert owner.has_closed
    assert recovered_to(run) == 60


def test_a_run_whose_files_have_to_be_listed_is_not_opened_meanwhile(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with running(TRAINER, run, 10_000, "close", "machine", "direct") as trainer:
        said(trainer, "step 10")
        with held(run) as process:
            while len(unlisted_segments(run)) < 2:  # one is prepared ahead
                said(trainer, "step")
            last = int(said(trainer, "step"))
            trainer.kill()
            trainer.wait()
            with pytest.raises(UsageError, match=f"process {process.pid} holds a write transaction"):
                open_toy(run)
            assert recovered_to_by_reading(run) >= last
    assert recovered_to(run) >= last


def unlisted_segments(run: Path) -> set[str]:
    """The files of segments that the catalog does not know."""
    catalog = Catalog.open(run / "rank0")
    try:
        return {path.name for path in (run / "rank0" / "log").glob("*.seg")} - {row.file for row in catalog.segments()}
    finally:
        catalog.close()


def recovered_to_by_reading(run: Path) -> int:
    """The step that `tranlogs replay` and `status` find, which read the run only."""
    state = ToyState()
    found = recover(run / "rank0", state)
    assert found is not None
    assert state.everything() == uninterrupted(found.position.step).everything()
    return found.position.step


def test_a_resumed_run_trains_unlogged_until_the_holder_goes_on(tmp_path: Path) -> None:
    run, errors = tmp_path / "run", tmp_path / "errors"
    with running(TRAINER, run, 5, "close", "machine", "direct") as trainer:
        said(trainer, "trained")
        told(trainer)
        said(trainer, "ended")
    with running(TRAINER, run, 2000, "at once", "machine", "direct", errors=errors) as trainer:
        assert said(trainer, "recovered") == "5"
        with held(run) as process:
            told(trainer)
            said(trainer, "step 12")
            go_on(process)
        while "logging is suspended" in errors.read_text() and "logging resumed" not in errors.read_text():
            said(trainer, "step")
        last = int(said(trainer, "step"))
        trainer.kill()
    assert recovered_to(run) >= last
