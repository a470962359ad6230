"""What a store costs a training run, how far it is behind, and what it takes to come back from it.

A trainer ships its own log by a thread of its process, as `LoggedOptimizer(store=...)` does, to each store under test.
Contenders take turns in blocks of some steps; what a block left to be shipped is waited for before the next, so that none pays
for another.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import alluxio
import torch
from measuring import quartiles, seconds
from structures import STRUCTURES, made

from tranlogs.base.clock import Clock
from tranlogs.journal import JournalPaths
from tranlogs.shipping import Archiver, ShippingSettings, journal_prefix, pull
from tranlogs.stores import Store, TimeoutStore, open_store
from tranlogs.stores.alluxio import AlluxioStore
from tranlogs_torch import LoggedOptimizer

WRITE_TYPES = ("ASYNC_THROUGH", "CACHE_THROUGH", "THROUGH")
PLAIN, AGAIN, FOLDER = "no store", "no store, again (noise)", "folder"
_LAG_SECONDS, _STALL_SECONDS = 0.5, 60.0
_STEPS = 8  # in a block; the first is not counted
_CHECKPOINT_STEPS = 30
_ASYNC = "ASYNC_THROUGH"

Stores = Mapping[str, Callable[[], Store] | None]


def contenders(url: str, folder: Path) -> Stores:
    """By name; None is no store."""
    parts = urlsplit(url)
    host, port, root = parts.hostname or "", parts.port or 0, f"{parts.path.rstrip('/')}/bench-{secrets.token_hex(4)}"

    def of_type(kind: str) -> Callable[[], Store]:
        return lambda: AlluxioStore(host, port, f"{root}/{kind}", write_type=kind)

    return {PLAIN: None, AGAIN: None, FOLDER: lambda: open_store(folder), **{kind: of_type(kind) for kind in WRITE_TYPES}}


class Training:
    """A model that trains under a log, and ships that."""

    def __init__(self, structure: str, run: Path, store: Store | None) -> None:
        self.run, self.store = run, store and TimeoutStore(store, _STALL_SECONDS)
        self.place = f"{run.name}/rank0"
        model, self._loss = made(structure)
        self.parameters = sum(p.numel() for p in model.parameters())
        inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.optimizer = LoggedOptimizer(inner, run, model, checkpoint_every=_CHECKPOINT_STEPS, keep=1)
        self.optimizer.recover()
        self.journal = self.optimizer.training_run.journal
        self._turns = self.optimizer.steps(10**9)
        next(self._turns)
        self._archiver: Archiver | None = None
        if self.store is not None:
            paths = JournalPaths.of(run)
            self._archiver = Archiver(paths, self.store, journal_prefix(paths), ShippingSettings(_LAG_SECONDS), Clock())
            self._archiver.start()

    def step(self) -> None:
        self._loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        next(self._turns)

    def behind(self) -> tuple[int, int]:
        """Committed steps that are not archived, and those that are not persisted."""
        assert self._archiver is not None
        progress = self._archiver.progress()
        committed = self.journal.committed
        return committed - progress.archived, committed - progress.persisted

    def drain(self) -> tuple[float, float]:
        """Wait until the store has all, and until it is durable there; the seconds of both."""
        self.journal.wait_synced()
        self.journal.wait_checkpoint()
        if self._archiver is None:
            return 0.0, 0.0
        start, archived = time.perf_counter(), 0.0
        while (left := self.behind()) != (0, 0):
            archived = archived or (time.perf_counter() - start) * (left[0] == 0)
            self._archiver.wake()
            self._archiver.wait(0.02)
        persisted = time.perf_counter() - start
        return archived or persisted, persisted

    def close(self) -> None:
        if self._archiver is not None:
            self._archiver.close()
        self.optimizer.close()


def measure_training(url: str, folder: Path, *, quick: bool) -> dict[str, Any]:
    """By structure and store: step time over that without a store, bytes, and how long after a block all of it is there; how
    fast it is read back; how long recovery takes from here, from memory, and from the under-store."""
    found: dict[str, Any] = {}
    for structure in STRUCTURES:
        stores = contenders(url, folder / structure / "store")
        runs = {
            name: Training(structure, folder / structure / name.replace(" ", "-") / "run", make and make())
            for name, make in stores.items()
        }
        found[structure] = {"parameters": runs[PLAIN].parameters, "stores": _blocks(runs, 2 if quick else 12)}
        rounds = 1 if quick else 5
        for name, run in runs.items():
            run.close()
            if run.store is not None:
                found[structure]["stores"][name]["read"] = _read_back(run, folder / "back", rounds)
        found[structure]["recovery"] = _recoveries(structure, runs[_ASYNC], urlsplit(url), folder / "back", rounds)
        _show(structure, found[structure])
        shutil.rmtree(folder / structure)
    return found


def _blocks(runs: Mapping[str, Training], rounds: int) -> dict[str, Any]:
    steps: dict[str, list[list[float]]] = {name: [] for name in runs}
    drains: dict[str, list[tuple[float, float, float]]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(rounds + 1):  # in the first, servers compile as they run
        for name in names[number % len(names) :] + names[: number % len(names)]:
            run, before = runs[name], runs[name].journal.log_bytes
            start = time.perf_counter()
            taken = [seconds(run.step) for _ in range(_STEPS)]
            block = time.perf_counter() - start
            archived, persisted = run.drain()
            if number:
                steps[name].append(taken[1:])
                drains[name].append((archived, persisted, (run.journal.log_bytes - before) / (block + archived)))
    return {
        name: {
            "step_seconds": _spread([s for block in steps[name] for s in block]),
            "ratio": _spread([_median(mine) / _median(plain) for mine, plain in zip(steps[name], steps[PLAIN])]),
            "archived_seconds": _spread([one[0] for one in drains[name]]),
            "persisted_seconds": _spread([one[1] for one in drains[name]]),
            "bytes_per_second": _spread([one[2] for one in drains[name]]),
        }
        for name in names
    }


def _read_back(run: Training, target: Path, rounds: int) -> dict[str, Any]:
    """Bytes a second of a pull."""
    rates = []
    for _ in range(rounds):
        taken, nbytes = _pulled(run, target)
        rates.append(nbytes / taken)
        shutil.rmtree(target)
    return {"bytes_per_second": _spread(rates)}


def _pulled(run: Training, target: Path) -> tuple[float, int]:
    assert run.store is not None
    start = time.perf_counter()
    found = pull(run.store, run.place, target / run.place)
    return time.perf_counter() - start, found.nbytes


def _recoveries(structure: str, run: Training, at: Any, target: Path, rounds: int) -> dict[str, Any]:
    """Seconds until training could go on."""
    taken: dict[str, list[float]] = {"local disk": [], "Alluxio memory": [], "under-store": []}
    client = alluxio.Client(at.hostname, at.port, timeout=60)
    assert run.store is not None
    for _ in range(rounds):
        taken["local disk"].append(_recovered(structure, run.run))
        for name in ("Alluxio memory", "under-store"):
            if name == "under-store":
                _forget(client, run.store)
            seconds_pull, _ = _pulled(run, target)
            taken[name].append(seconds_pull + _recovered(structure, target / "run"))
            shutil.rmtree(target)
    local = taken["local disk"]
    return {
        name: {"seconds": _spread(values), "ratio": _spread([one / other for one, other in zip(values, local)])}
        for name, values in taken.items()
    }


def _recovered(structure: str, run: Path) -> float:
    model, _ = made(structure)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer = LoggedOptimizer(inner, run, model, checkpoint_every=_CHECKPOINT_STEPS, keep=1)
    taken = seconds(optimizer.recover)
    optimizer.close()
    return taken


def _forget(client: Any, store: Store) -> None:
    """Let what is in memory go: it is read from the under-store next. A worker may keep a block that it was just read; a
    hundredth of the bytes may stay."""
    while True:
        client.free(urlsplit(store.url).path, alluxio.option.Free(recursive=True))
        found = [status for status in map(store.stat, store.names("run")) if status is not None]
        if sum(one.nbytes for one in found if one.copies) <= sum(one.nbytes for one in found) / 100:
            return
        time.sleep(0.1)


def measure_lag(url: str, folder: Path, *, quick: bool) -> dict[str, Any]:
    """Steps between what is committed, and what is archived and persisted, while a GPT trains: [seconds, steps, steps]."""
    found: dict[str, Any] = {}
    for name, make in contenders(url, folder / "lag-store").items():
        if make is None:
            continue
        run = Training("GPT", folder / f"lag-{name}" / "run", make())
        for _ in range(_STEPS):
            run.step()
        run.drain()
        start, curve = time.perf_counter(), []
        while (now := time.perf_counter() - start) < (3 if quick else 20):
            run.step()
            curve.append([round(now, 3), *run.behind()])
        run.drain()
        run.close()
        late = [point for point in curve if point[0] > curve[-1][0] / 4]
        found[name] = {
            "curve": curve,
            "archived_steps": _spread([point[1] for point in late]),
            "persisted_steps": _spread([point[2] for point in late]),
            "step_seconds": curve[-1][0] / len(curve),
        }
        archived, persisted = found[name]["archived_steps"]["median"], found[name]["persisted_steps"]["median"]
        print(
            f"  lag, {name:14s} archived {archived:5.1f} steps behind, persisted {persisted:5.1f}, a step "
            f"{found[name]['step_seconds'] * 1e3:.0f} ms",
            flush=True,
        )
    return found


def _median(values: list[float]) -> float:
    return quartiles(values)[1]


def _spread(values: list[float]) -> dict[str, float]:
    return dict(zip(("q25", "median", "q75"), quartiles(values), strict=True))


def _show(structure: str, found: dict[str, Any]) -> None:
    print(f"{structure}, {found['parameters'] / 1e6:.2f} M parameters", flush=True)
    for name, one in found["stores"].items():
        low, middle, high = one["ratio"].values()
        read = f"   read {one['read']['bytes_per_second']['median'] / 1e6:6.1f} MB/s" if "read" in one else ""
        rate, step, archived, persisted = (
            one[key]["median"] for key in ("bytes_per_second", "step_seconds", "archived_seconds", "persisted_seconds")
        )
        sent = f"   sent {rate / 1e6:6.1f} MB/s   archived after {archived:.2f} s, persisted after {persisted:.2f} s"
        print(
            f"  {name:24s} step {step * 1e3:6.1f} ms, ratio {middle:.2f} [{low:.2f}-{high:.2f}]"
            f"{sent if archived else ''}{read}",
            flush=True,
        )
    for name, one in found["recovery"].items():
        low, middle, high = one["seconds"].values()
        print(f"  recovery from {name:16s} {middle:.2f} s [{low:.2f}-{high:.2f}], {one['ratio']['median']:.1f} times local")
