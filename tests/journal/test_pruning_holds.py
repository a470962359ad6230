"""What a journal holds back from pruning for other ranks, if its catalog cannot be written for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tranlogs.base.errors import LogUnavailable
from tranlogs.catalog import CommonRow
from tranlogs.journal.pruning_holds import PruningHolds


class Disk:
    """A catalog in memory on a disk that can be full."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self.is_full = False

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        if self.is_full:
            raise LogUnavailable("no space left on device")
        yield self

    def read(self, look: Any) -> Any:
        return look(self)

    def put(self, name: str, row: Any) -> None:
        self.rows[name] = row

    def get(self, name: str, kind: type) -> Any:
        return self.rows.get(name)

    def delete(self, name: str) -> None:
        del self.rows[name]


@pytest.mark.parametrize("former", [None, CommonRow(3, 2)])
def test_a_common_step_that_a_full_disk_has_refused_is_written_by_the_next_call(
    former: CommonRow | None, tmp_path: Path
) -> None:
    disk: Any = Disk()
    if former is not None:
        disk.put("common", former)
    holds = PruningHolds(disk, tmp_path, 1)
    disk.is_full = True
    holds.set_common_step(7, 2)
    disk.is_full = False
    holds.forget_former_group()
    assert disk.rows.get("common") == former, "a process of the group keeps what the former one has left"
    holds.set_common_step(7, 2)
    assert disk.rows["common"] == CommonRow(7, 2)
