"""Whoever ships dies by SIGKILL, anywhere, beside a trainer that dies, too: what the catalog says of the store is true, what
comes back is right, and nothing is left over."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.crash.toy_trainers import UNTIL, Trainers
from tests.monitor.monitors import Monitors
from tests.shipping.ships import marks, ship
from tests.support import campaign
from tranlogs.base.clock import Clock
from tranlogs.base.errors import NotARun
from tranlogs.catalog import Catalog
from tranlogs.journal import JournalPaths
from tranlogs.journal.opening import seal_abandoned_segments
from tranlogs.shipping import pull, read_newest
from tranlogs.stores.local import LocalStore

pytestmark = pytest.mark.crash

POINTS = ("ship.sent", "ship.manifest", "ship.published", "ship.marks", "catalog.before_commit", "catalog.after_commit")


def assert_the_store_is_as_far_as_is_said(trainers: Trainers, run: Path, store: Path, elsewhere: Path) -> int:
    """What the catalog says is archived comes back on another machine, right; gives how far that is."""
    said = marks(run).archived if (run / "rank0/catalog.lmdb").exists() else 0
    try:
        found = pull(LocalStore(store), f"{run.name}/rank0", elsewhere / "rank0")
    except NotARun:
        assert said == 0
        return 0
    assert found.step >= said
    assert found.steps_lost == 0
    outcome = trainers.run(elsewhere, until=found.step + 2)  # compares the state that it comes back to
    assert outcome.recovered == found.step
    assert outcome.committed == found.step + 2
    return found.step


def assert_all_comes_back_and_nothing_is_left_over(
    trainers: Trainers, run: Path, store: Path, elsewhere: Path, said: int
) -> None:
    """Once nobody is there any more, and somebody ships what was left."""
    paths = JournalPaths.of(run)
    catalog = Catalog.open(paths.folder, writable=True)
    seal_abandoned_segments(paths, catalog, sync=True)
    catalog.close()
    found = ship(run, LocalStore(store))
    assert found.archived >= said
    assert assert_the_store_is_as_far_as_is_said(trainers, run, store, elsewhere) == found.archived
    manifest, notes = read_newest(LocalStore(store), f"{run.name}/rank0")
    assert manifest is not None
    assert notes == []
    named = {name for one in manifest.shipped.values() for name in one.names()}
    assert set(LocalStore(store).names(f"{run.name}/rank0/objects")) == named
    left = [path for path in store.rglob(".tmp-*") if Clock().now() - path.stat().st_mtime > 3600]
    assert left == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("point", "nth"), campaign.each_once(POINTS, [1, 2, 5]))
def test_an_archiver_that_dies_at_a_fault_point_does_no_harm(
    trainers: Trainers, monitors: Monitors, memory_path: Path, point: str, nth: int
) -> None:
    run, store = memory_path / "run", memory_path / "store"
    said = trainers.run(run, keep=9).committed
    for trial in range(3):  # each takes up what the one before left half done
        monitors.start(run, 1 << 30, failpoints=f"{point}=kill@{nth}", store=store)
        wait_for_death_or_peace(store)
        monitors.kill()
        assert_the_store_is_as_far_as_is_said(trainers, run, store, memory_path / f"elsewhere{trial}")
    assert_all_comes_back_and_nothing_is_left_over(trainers, run, store, memory_path / "elsewhere", said)


def wait_for_death_or_peace(store: Path) -> None:
    """Until nothing has changed in the store for a while."""
    before: tuple[object, ...] = ()
    quiet = 0
    for _ in range(100):
        signal.sigtimedwait([], 0.02)
        now = tuple(sorted(store.rglob("*"))) if store.exists() else ()
        quiet = quiet + 1 if now == before else 0
        if quiet > 8:
            return
        before = now


def test_both_are_killed_at_random_moments(trainers: Trainers, monitors: Monitors, memory_path: Path) -> None:
    kills = campaign.Kills(30)
    chance = kills.chance
    for trial in kills.trials():
        run, store, said = memory_path / f"run{trial}", memory_path / "store", 0
        for turn in range(6):
            point = chance.choice(["", f"{chance.choice(POINTS)}=kill@{chance.randrange(1, 8)}"])
            monitors.start(memory_path, 1 << 30, failpoints=point, store=store)
            lines = chance.choice([0, 1, 3, 8, 20])
            moment = (lines, chance.random() * 0.05) if chance.random() < 0.8 else None
            outcome = trainers.run(
                run,
                kill_after=moment,
                durability=chance.choice(["process", "machine"]),
                keep=2,
                writer=chance.choice(["direct", "thread"]),
                settles=chance.random() < 0.5,
            )
            assert outcome.recovered is None or outcome.recovered >= said
            said = max(said, outcome.committed)
            signal.sigtimedwait([], chance.random() * 0.2)
            kills.note(outcome.status, monitors.kill())
            assert_the_store_is_as_far_as_is_said(trainers, run, store, memory_path / f"elsewhere{trial}.{turn}")
            if said == UNTIL:
                break
        assert_all_comes_back_and_nothing_is_left_over(trainers, run, store, memory_path / f"end{trial}", said)
