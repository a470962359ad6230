"""Other processes ask the owner of a journal for changes of its catalog, or make them where nobody owns it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.faults import failing
from tests.support.toy import ToyTrainer, open_toy
from tranlogs.catalog import Catalog, Change, CheckpointRow, CommonRow, TimelineRow
from tranlogs.journal import change_catalog, owner_lock, read_owner
from tranlogs.journal.pruning_holds import PruningHolds
from tranlogs.journal.requests import REQUESTS_NAME, serve_requests, write_request

ASKER = """
import sys
from pathlib import Path
from tranlogs.catalog import Catalog, Change
from tranlogs.journal import change_catalog
folder, what = Path(sys.argv[1]), sys.argv[2]
if what == "fitting":
    change = Change({"request/checkpoint": {"step": 9}}, expects={"request/hold": None}, timelines=[1])
elif what == "rewound":
    change = Change({"request/checkpoint": {"step": 9}}, timelines=[1, 2])
else:
    change = Change(marks=(2, 1))
print(change_catalog(folder, "asked", change))
"""


BRIEF_OWNER = """
import sys
from pathlib import Path
from tranlogs.journal.owner_lock import own_briefly
with own_briefly(Path(sys.argv[1])) as is_owner:
    print(is_owner, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def run(toy: Callable[..., ToyTrainer], tmp_path: Path) -> ToyTrainer:
    trainer = toy(tmp_path / "run")
    trainer.recover()
    trainer.train(5)
    return trainer


def asked(folder: Path, what: str) -> bool:
    """What a change by another process comes to."""
    done = subprocess.run([sys.executable, "-c", ASKER, str(folder), what], capture_output=True, text=True, check=True)
    return done.stdout.strip() == "True"


def is_requested(folder: Path) -> bool:
    catalog = Catalog.open(folder)
    try:
        return catalog.read(lambda tables: tables.request("checkpoint")) == {"step": 9}
    finally:
        catalog.close()


@contextmanager
def owned_briefly(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that owns a journal briefly, and is stopped."""
    command = [sys.executable, "-c", BRIEF_OWNER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("is_live", [True, False])
def test_a_change_is_made_by_the_owner_or_by_the_asker(run: ToyTrainer, is_live: bool) -> None:
    folder = run.journal.paths.folder
    if not is_live:
        run.journal.close()
    assert not asked(folder, "rewound"), "its ground has moved"
    assert not is_requested(folder)
    assert asked(folder, "fitting")
    assert is_requested(folder)
    assert list((folder / REQUESTS_NAME).glob("*")) == []
    owner = read_owner(folder)
    assert owner is not None
    assert (owner.pid, owner.is_alive, owner.has_closed) == (os.getpid(), is_live, not is_live)


def test_an_owner_that_does_not_serve_holds_nobody_up(run: ToyTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tranlogs.journal.requests.REQUEST_SECONDS", 0.1)
    folder = run.journal.paths.folder.with_name("rank1")
    folder.mkdir()
    Catalog.open(folder, writable=True).close()
    with owned_briefly(folder) as process:
        monkeypatch.setattr(owner_lock, "_BRIEF_SECONDS", 0.1)
        assert not change_catalog(folder, "asked", Change({"common": CommonRow(1, 2)}))
        assert (folder / REQUESTS_NAME / "asked.json").exists()
        process.kill()
        process.wait()
        assert change_catalog(folder, "asked", Change({"common": CommonRow(1, 2)}))
    assert not (folder / REQUESTS_NAME / "asked.json").exists()


def test_a_trainer_drops_what_was_asked_of_the_one_before(run: ToyTrainer) -> None:
    run.journal.close()
    folder = run.journal.paths.folder
    write_request(folder, "asked", Change({"request/checkpoint": {"step": 9}}))
    again = open_toy(folder.parent, sizes=(7, 300))
    again.recover()
    again.journal.close()
    assert not is_requested(folder)


def test_a_damaged_request_is_dropped_and_none_writes_what_is_no_row(run: ToyTrainer) -> None:
    folder = run.journal.paths.folder
    for content in (b"", b"\0" * 100, b"0123456789abcdef\n[]", b"{}"):
        path = write_request(folder, "asked", Change())
        path.write_bytes(content)
        serve_requests(run.journal.catalog)
        assert not path.exists()
    for key in ("unknown", "segment/0000000001", "timeline/000001", "watermarks"):
        path = write_request(folder, "asked", Change({key: {"nonsense": 1}}))
        serve_requests(run.journal.catalog)
        assert not path.exists()
        found = run.journal.catalog.read(lambda tables, key=key: tables.content(key))
        assert found is None or "nonsense" not in found
    run.train(7)


def test_a_change_is_all_or_nothing(run: ToyTrainer) -> None:
    row = CheckpointRow("a", 1, 2, "00", 1, 10, 3.0)
    catalog = run.journal.catalog
    assert not catalog.make(Change({"checkpoint/a": row}, expects={"checkpoint/b": row}))
    assert not catalog.make(Change({"checkpoint/a": row}, expects={"timeline/000001": TimelineRow(1)}))
    assert catalog.read(lambda tables: tables.content("checkpoint/a")) is None
    assert catalog.make(Change({"checkpoint/a": row}, expects={"checkpoint/b": None}))
    assert catalog.make(Change(deletes=["checkpoint/a"], expects={"checkpoint/a": row}))
    assert catalog.read(lambda tables: tables.content("checkpoint/a")) is None


def test_newer_request_that_comes_while_the_older_one_is_served_is_served_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog.open(tmp_path, writable=True)
    make, newer = catalog.make, Change({"request/checkpoint": {"step": 9}})

    def interrupted(change: Change) -> bool:
        monkeypatch.setattr(catalog, "make", make)
        write_request(tmp_path, "asked", newer)
        return make(change)

    monkeypatch.setattr(catalog, "make", interrupted)
    write_request(tmp_path, "asked", Change({"request/checkpoint": {"step": 8}}))
    serve_requests(catalog)
    assert catalog.read(lambda tables: tables.request("checkpoint")) == {"step": 8}
    serve_requests(catalog)
    assert catalog.read(lambda tables: tables.request("checkpoint")) == {"step": 9}
    assert not list((tmp_path / REQUESTS_NAME).iterdir())
    catalog.close()


def test_a_common_step_that_a_full_disk_has_refused_is_written_by_the_next_call(tmp_path: Path) -> None:
    catalog, former = Catalog.open(tmp_path, writable=True), CommonRow(3, 2)
    with catalog.transaction() as tables:
        tables.put("common", former)
    holds = PruningHolds(catalog, tmp_path, 1)
    with failing("catalog.before_commit=enospc"):
        holds.set_common_step(7, 2)
    holds.forget_former_group()
    found = [catalog.read(lambda tables: tables.get("common", CommonRow))]
    holds.set_common_step(7, 2)
    found.append(catalog.read(lambda tables: tables.get("common", CommonRow)))
    assert found == [former, CommonRow(7, 2)], "a process of the group keeps what the former one has left"
    catalog.close()
