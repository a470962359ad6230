"""Processes that do not come: who they are is said in time, and who is slow is waited for."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.distributed.conftest import Launcher
from tranlogs.base.config import MISSING_SECONDS_MAX, MISSING_SECONDS_WARNED
from tranlogs.base.errors import UsageError
from tranlogs_torch.ddp.divergence_check import Likeness
from tranlogs_torch.distributed import group_messages as boards
from tranlogs_torch.distributed.group_messages import NoteBoard
from tranlogs_torch.distributed.process_group import HERE, MADE, wait_for_all


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dist.HashStore:
    """In the place of that of a group of processes."""
    found = dist.HashStore()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: found)
    return found


def board_of(rank: int, world: int, number: int, monkeypatch: pytest.MonkeyPatch) -> NoteBoard:
    """As a process of that rank makes its first, second, ... one."""
    monkeypatch.setattr(boards, "_numbers", iter([number]))
    return NoteBoard(rank, world)


class Clock:
    """Time passes while somebody sleeps; at some times something happens."""

    def __init__(self, **events: Any) -> None:
        self.seconds = 0.0
        self.events: dict[float, Any] = {float(key[1:]): event for key, event in events.items()}

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        for at in [at for at in self.events if at <= self.seconds]:
            self.events.pop(at)()


def test_who_is_slow_is_named_and_waited_for(
    store: dist.HashStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mine, late, later = (board_of(rank, 3, 0, monkeypatch) for rank in range(3))
    late.write(MADE, "")
    clock = Clock(_70=lambda: late.write(HERE, ""), _1000=lambda: later.write(HERE, ""))
    with caplog.at_level(logging.WARNING, logger="tranlogs"):
        wait_for_all(mine, 3, now=clock.now, sleep=clock.sleep)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 5  # after 60, 120, 240, 480 and 960 s
    assert "rank 2 has created no LoggedOptimizer; rank 1 has created one but not reached recover()" in told[0]
    assert "rank 1" not in told[1]
    assert MISSING_SECONDS_WARNED <= 1000 <= clock.seconds < 1002


def test_who_never_comes_is_an_error_in_the_end(store: dist.HashStore, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    with pytest.raises(UsageError, match=r"ranks 1, 2 have created no LoggedOptimizer.*out of init_process_group"):
        wait_for_all(board_of(0, 3, 0, monkeypatch), 3, now=clock.now, sleep=clock.sleep)
    assert MISSING_SECONDS_MAX <= clock.seconds < MISSING_SECONDS_MAX + 2


def test_notes_of_the_start_before_and_of_another_optimizer_do_not_count(
    store: dist.HashStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    board_of(1, 2, 0, monkeypatch).write(HERE, "")
    assert list(board_of(0, 2, 0, monkeypatch).read(HERE)) == [1]
    assert board_of(0, 2, 1, monkeypatch).read(HERE) == {}
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert board_of(0, 2, 0, monkeypatch).read(HERE) == {}


def test_without_a_store_nobody_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    board = board_of(0, 2, 0, monkeypatch)  # no process group: no store
    assert (board.is_there, board.read(HERE), board.seconds_max) == (False, {}, 0.0)
    wait_for_all(board, 2)


def test_parameters_are_equal_where_all_notes_of_a_step_are(store: dist.HashStore, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = (Likeness(board_of(rank, 2, 0, monkeypatch)) for rank in range(2))
    assert [mine.look(9, "a"), mine.look(10, "b"), mine.look(11, "c")] == [-1, -1, -1]  # the other has not come
    assert other.look(10, "b") == -1
    assert [mine.look(12, "d"), other.look(12, "d")] == [10, 10]
    assert [mine.look(20, "e"), other.look(20, "f"), mine.look(21, "g"), other.look(21, "g")] == [10, 10, -1, -1]
    assert [mine.look(30, "h"), other.look(30, "h"), mine.look(31, "i")] == [-1, -1, -1]  # once seen to differ


def test_one_that_is_ahead_leaves_the_step_before_unknown(store: dist.HashStore, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, ahead = (Likeness(board_of(rank, 2, 0, monkeypatch)) for rank in range(2))
    assert [mine.look(10, "a"), ahead.look(10, "a"), ahead.look(20, "b")] == [-1, -1, 10]
    assert [mine.look(12, "c"), mine.look(20, "b"), mine.look(21, "d"), ahead.look(21, "d")] == [-1, -1, 20, 20]


@pytest.mark.crash
def test_a_process_without_a_logged_optimizer_is_named(launcher: Launcher, tmp_path: Path) -> None:
    arguments = ["without one", str(tmp_path / "run"), str(launcher.folder / "out"), json.dumps([])]
    assert launcher.ask({"world": 2, "restarts": 0, "arguments": arguments})
    assert "UsageError: waiting for other processes for 3 s: rank 1 has created no LoggedOptimizer" in launcher.said()
    assert os.listdir(tmp_path / "run") == ["rank0"]
