"""Processes that do not come are named in time, and who is slow is waited for; groups that cannot be logged are refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.optim import ZeroRedundancyOptimizer

from tranlogs.base.config import MISSING_SECONDS_MAX, MISSING_SECONDS_WARNED
from tranlogs.base.errors import UsageError
from tranlogs_torch import LoggedOptimizer
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


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_what_keeps_its_shards_to_itself_is_refused_by_name(alone: None, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    redundancy = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    with pytest.raises(UsageError, match=r"ZeroRedundancyOptimizer is not logged: .*fully_shard"):
        LoggedOptimizer(redundancy, tmp_path / "run", model)
    options: dict[str, Any] = {"sharding_strategy": ShardingStrategy.NO_SHARD, "device_id": torch.device("cpu")}
    wrapped = FullyShardedDataParallel(model, use_orig_params=True, **options)
    with pytest.raises(UsageError, match=r"FullyShardedDataParallel is not logged: .*fully_shard"):
        LoggedOptimizer(torch.optim.AdamW(wrapped.parameters()), tmp_path / "run", wrapped)
    assert not (tmp_path / "run").exists()


def test_without_a_process_group_it_is_refused_before_a_journal_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = torch.nn.Linear(2, 2)
    for rank in (None, 1):
        with pytest.raises(UsageError, match="WORLD_SIZE is 2, but"):
            LoggedOptimizer(torch.optim.AdamW(model.parameters()), tmp_path / "run", model, rank=rank)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("start", ["recover", "step"])
def test_a_process_group_that_came_later_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str) -> None:
    model = torch.nn.Linear(2, 2)
    with LoggedOptimizer(torch.optim.AdamW(model.parameters()), tmp_path / "run", model, rank=1) as optimizer:
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda *_: 2)
        with pytest.raises(UsageError, match="initialized after LoggedOptimizer"):
            getattr(optimizer, start)()


def test_copies_are_refused_where_there_is_nothing_to_copy(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(UsageError, match="copies=2 needs several processes"):
        LoggedOptimizer(torch.optim.AdamW(model.parameters()), tmp_path / "one", model, copies=2)
    with pytest.raises(UsageError, match="copies must be 1 or 2"):
        LoggedOptimizer(torch.optim.AdamW(model.parameters()), tmp_path / "one", model, copies=3)
