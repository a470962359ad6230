"""`check_store`: a sound store, and each way in which one can be unfit."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from tranlogs.base.errors import StoreRefused, StoreUnavailable
from tranlogs.stores import ObjectStatus, open_store
from tranlogs.stores.check import StoreReport, check_store
from tranlogs.stores.local import LocalStore


class Unfit(LocalStore):
    """A folder that says, or does, something else."""

    def __init__(self, root: Path, **says: object) -> None:
        super().__init__(root)
        self.says: dict[str, Any] = says
        self.wrong_bytes = False
        self.copies_wanted = 2
        self.hastened: list[str] = []

    def stat(self, name: str) -> ObjectStatus | None:
        status = super().stat(name)
        return status and replace(status, **{"copies": 2} | self.says)

    def get(self, name: str, into: BinaryIO) -> int:
        if self.wrong_bytes:
            return into.write(b"wrong")
        return super().get(name, into)

    def request_durability(self, name: str) -> None:
        self.hastened.append(name)


@dataclass
class Clock:
    """Time goes on only by sleeping."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def checked(store: LocalStore, patience_seconds: float = 10) -> StoreReport:
    clock = Clock()
    return check_store(store, nbytes=1 << 16, patience_seconds=patience_seconds, clock=clock, sleep=clock.sleep)


@pytest.mark.parametrize("scheme", ["file", "local"])
def test_a_sound_store_is_usable_and_left_empty(tmp_path: Path, scheme: str) -> None:
    report = check_store(open_store(f"{scheme}://{tmp_path}"), nbytes=1 << 20)
    assert report.problem is None
    assert list(report.seconds) == ["put", "stat", "get", "durable", "delete"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        ({"is_complete": False}, "writing the object was not finished: 65536 of 65536 bytes"),
        ({"nbytes": 3}, "writing the object was not finished: 3 of 65536 bytes"),
        ({"copies": 1}, "1 of 2 copies in the memory of workers"),
        ({"copies": None}, "0 of 2 copies in the memory of workers"),
        ({"copies": 0}, "0 of 2 copies in the memory of workers"),
        (
            {"is_durable": False, "is_forgotten": True},
            "the write type is not honoured: the store will not make the object durable",
        ),
        ({"is_durable": False, "is_lost": True}, "the object was lost before it was durable"),
        ({"is_durable": False}, "the object is not durable after 10 s"),
    ],
)
def test_what_a_store_says_of_an_object(tmp_path: Path, says: dict[str, object], problem: str) -> None:
    store = Unfit(tmp_path, **says)
    assert checked(store).problem == problem
    assert list(tmp_path.iterdir()) == []
    assert len(store.hastened) == ("not durable" in problem)  # once, before it is given up


def test_bytes_that_differ(tmp_path: Path) -> None:
    store = Unfit(tmp_path)
    store.wrong_bytes = True
    assert checked(store).problem == "the content that is read differs from the content that was written"


@pytest.mark.parametrize("method", ["stat", "put", "get", "delete"])
@pytest.mark.parametrize("kind", [StoreRefused, StoreUnavailable])
def test_an_error_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, kind: type[Exception]) -> None:
    def fail(*_: object) -> None:
        raise kind("url://", "no answer")

    store = Unfit(tmp_path)
    monkeypatch.setattr(store, method, fail)
    assert "store url://: no answer" in (checked(store).problem or "")
