"""How a journal is, in words, and what the page makes of very long runs; without a browser."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.monitor.test_watch import flip, run, watching
from tests.support.toy import ToyTrainer
from tests.support.toy_steps import killed
from tranlogs.base.config import MIB
from tranlogs.catalog import CheckpointRow, SegmentRow, StoreRow, TimelineRow, Watermarks
from tranlogs.retention.evaluations import EvaluationRow
from tranlogs.retention.prune import Budget
from tranlogs.retention.value_decay import SegmentValues
from tranlogs_monitor.dashboard.pages.board import JournalView
from tranlogs_monitor.dashboard.pages.curves import curves
from tranlogs_monitor.dashboard.pages.journal_health import commit_history, current_lost_work, describe_health
from tranlogs_monitor.dashboard.pages.page import journal_page
from tranlogs_monitor.watching.watch import Evaluation

__all__ = ["run"]


def seen_at(trainer: ToyTrainer | Path, **settings: object) -> Evaluation:
    watch = watching(trainer, **settings)
    try:
        return watch.evaluate()
    finally:
        watch.close()


def test_a_live_run_is_fine(run: ToyTrainer) -> None:
    state = describe_health(JournalView("run", seen_at(run)))
    assert (state.level, state.headline) == ("fine", "All steps up to 31 are safe if the process dies.")


def test_a_run_that_was_closed_is_idle(run: ToyTrainer) -> None:
    run.journal.close()
    state = describe_health(JournalView("run", seen_at(run.journal.paths.folder)))
    assert (state.level, state.headline) == (
        "idle",
        "No process is training. The run was closed. The next one will continue after step 31.",
    )


def test_a_run_whose_trainer_died_wants_attention(run: ToyTrainer, tmp_path: Path) -> None:
    state = describe_health(JournalView("run", seen_at(killed(run, tmp_path / "copy") / "rank0")))
    assert state.level == "attention"
    assert state.headline.endswith("died without closing the run; the next one will continue after step 31.")


def test_a_budget_that_is_too_small_wants_attention(run: ToyTrainer) -> None:
    state = describe_health(JournalView("run", seen_at(run, budget=Budget(2 * MIB))))
    assert state.level == "attention"
    assert re.fullmatch(
        r"The data that recovery needs exceed the budget \(\S+ MiB\): a checkpoint was requested from its trainer, .*",
        state.headline,
    )


def test_a_damaged_checkpoint_is_a_problem_and_comes_first(run: ToyTrainer) -> None:
    newest = max((run.journal.paths.checkpoints / row.name for row in run.journal.catalog.checkpoints()), key=str)
    flip(newest / "state.safetensors", 5000)
    seen = seen_at(run, budget=Budget(2 * MIB))
    state = describe_health(JournalView("run", seen))
    assert state.level == "problem"
    assert state.headline == "The checkpoint of step 20 is damaged; recovery starts from the one of step 10."
    assert len(state.more) == 1
    assert current_lost_work(seen, [])[1].safe_step == 10, "what is damaged saves nothing"


def test_the_page_says_that_a_run_in_memory_goes_with_the_machine(run: ToyTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tranlogs.journal.file_system.file_system_of", lambda _: "tmpfs")
    page = journal_page(JournalView("run", seen := seen_at(run)), now=seen.at, interval_seconds=10, has_others=False).decode()
    assert "everything: the run lies in memory (tmpfs)" in page
    assert "to memory only (tmpfs)" in page
    assert "survives a power cut" not in page


def test_what_is_old_is_said_to_be(run: ToyTrainer) -> None:
    unread = describe_health(JournalView("run", None, problem="it is damaged"))
    assert unread.headline == "The journal cannot be read: it is damaged"
    state = describe_health(JournalView("run", seen_at(run), problem="it is damaged"))
    assert (state.level, state.headline) == (
        "problem",
        "The journal cannot be read now, and the rest of this page is old: it is damaged",
    )


def test_lag_in_seconds_is_taken_from_the_history(run: ToyTrainer) -> None:
    seen = seen_at(run)
    seen = replace(seen, rows=replace(seen.rows, marks=Watermarks(130, 120)))
    shown = JournalView("run", seen, (EvaluationRow(1, seen.at - 100, 30, 30), EvaluationRow(2, seen.at, 130, 120)))
    machine = current_lost_work(seen, commit_history(shown, seen))[1]
    assert machine.describe() == "10 steps (about 10 s)"
    page = journal_page(shown, now=seen.at, interval_seconds=10, has_others=False).decode()
    assert '<td id="lag-synced">10</td><td>10 s</td>' in page


def test_the_store_is_shown_once_there_is_one(run: ToyTrainer) -> None:
    seen = seen_at(run)
    marks = replace(seen.rows.marks, archived=25, persisted=20)
    stored = replace(seen, rows=replace(seen.rows, marks=marks))
    shown = JournalView("run", stored, (EvaluationRow(1, seen.at, 31, 0, 25, 20),))
    page = journal_page(shown, now=seen.at, interval_seconds=10, has_others=False).decode()
    assert '<td id="step-persisted">20</td>' in page
    assert '<p class="big" id="lost-site">11 steps' in page
    store = StoreRow("file:///there", "me", problem="it is full")
    state = describe_health(JournalView("run", replace(stored, rows=replace(stored.rows, store=store))))
    assert (state.level, state.headline) == ("attention", "Shipping to file:///there has stopped: it is full.")
    assert set(curves(shown)["steps"]) == {"committed", "synced", "archived", "persisted"}
    page = journal_page(JournalView("run", seen), now=seen.at, interval_seconds=10, has_others=False).decode()
    assert "step-persisted" not in page
    assert "There is no store: nothing is kept outside this machine." in page


def test_a_run_of_months_makes_no_larger_page(run: ToyTrainer) -> None:
    many = 20_000
    sealed = [
        SegmentRow(i, f"{i:016x}", f"{i}.seg", MIB, "sealed", 1, i * 10, i * 10, i * 10 + 10, i * 10 + 10) for i in range(many)
    ]
    worth = SegmentValues(1e9, np.arange(many), np.linspace(0, 1, many))
    checkpoint = CheckpointRow("step-1", 100_000, 100_000, "", 1, 1, 0.0)
    seen = seen_at(run)
    seen = replace(
        seen,
        worth=worth,
        anchor=checkpoint,
        protected={i: i >= 10_000 for i in range(many)},
        rows=replace(seen.rows, segments=sealed, checkpoints=[checkpoint], timelines=[TimelineRow(1)]),
    )
    row = EvaluationRow(1, 1e9, ordinals=worth.ordinals.tolist(), values=worth.values.tolist())
    page = journal_page(JournalView("run", seen, (row,)), now=1e9, interval_seconds=10, has_others=False)
    shown = page.decode().partition('<div class="cells">')[2].partition("</div>")[0]
    assert 300 <= shown.count('class="cell') <= 361
    assert shown.count("diamond anchor") == 1
    assert 170 <= shown[: shown.index("diamond anchor")].count("cell free") <= 181, "the checkpoint stands where it belongs"
    found = curves(JournalView("run", seen, (row,)))["values"]
    assert len(found) == 24
    assert (found[0]["segment"], found[-1]["segment"]) == (0, many - 1)
    assert len(page) < 200_000
