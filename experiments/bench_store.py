"""What stores cost, and what they are worth: Alluxio by write type, and a folder for comparison.

    python experiments/bench_store.py [--url alluxio://HOST:39999] [--quick] [--out FILE]

Objects: putting one, getting it back, and until it is durable. Training: what shipping costs a step of several models, and
recovery from here, from memory, and from the under-store.

Without --url a cluster is started on this machine (JDK 17 and Maven).
"""

from __future__ import annotations

import io
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import alluxio
import torch
from harness import Circumstances, command_line, measured_folder, write_results
from paired_timing import seconds, spread
from workloads import NAMES, Workload, loss_of, optimizer_of, workload

from tranlogs.base.clock import Clock
from tranlogs.journal import JournalPaths
from tranlogs.shipping import Archiver, ShippingSettings, journal_prefix, pull
from tranlogs.stores import Content, Store, TimeoutStore, open_store
from tranlogs.stores.alluxio import AlluxioStore
from tranlogs_torch import LoggedOptimizer

OBJECT_BYTES = 16 << 20
_ROOT = f"bench-{secrets.token_hex(4)}"
ROOT = Path(__file__).resolve().parent.parent
WRITE_TYPES = ("ASYNC_THROUGH", "CACHE_THROUGH", "THROUGH")
PLAIN, FOLDER = "no store", "folder"
_LAG_SECONDS, _STALL_SECONDS = 0.5, 60.0
_STEPS = 8  # in a block; the first is not counted
_CHECKPOINT_STEPS = 30


def measure_objects(url: str, folder: Path, *, quick: bool) -> list[dict[str, Any]]:
    """A row for each store."""
    rows = []
    for name, make in stores(url, folder):
        with make() as store:
            _turns(store, 2 if quick else 12)  # servers that compile as they run
            rows.append({"store": name, "bytes": OBJECT_BYTES, **_turns(store, 2 if quick else 16)})
            times = ", ".join(f"{what} {rows[-1][what]['median'] * 1e3:.0f} ms" for what in ("put", "get", "durable"))
            print(f"  {name:32s} {times}", flush=True)
    return rows


def stores(url: str, folder: Path) -> Iterator[tuple[str, Callable[[], Store]]]:
    """What is compared."""
    yield "folder", lambda: open_store(folder / "objects")
    for kind in WRITE_TYPES:
        yield f"alluxio {kind}", partial(_alluxio, url, "objects", write_type=kind)
    yield "alluxio ASYNC_THROUGH, 2 copies", partial(_alluxio, url, "objects", copies=2)


def _alluxio(url: str, place: str, **options: Any) -> AlluxioStore:
    parts = urlsplit(url)
    return AlluxioStore(parts.hostname or "", parts.port or 0, f"{parts.path.rstrip('/')}/{_ROOT}/{place}", **options)


def _turns(store: Store, count: int) -> dict[str, Any]:
    content = os.urandom(OBJECT_BYTES)
    taken: dict[str, list[float]] = {"put": [], "get": [], "durable": []}
    for _ in range(count):
        name, into = secrets.token_hex(8), io.BytesIO()
        taken["put"].append(seconds(partial(store.put, name, Content.of(content))))
        taken["durable"].append(seconds(partial(_wait_durable, store, name)))
        taken["get"].append(seconds(partial(store.get, name, into)))
        assert into.getvalue() == content
        store.delete(name)
    return {name: {"median": median(values)} for name, values in taken.items()}


def _wait_durable(store: Store, name: str) -> None:
    while True:
        status = store.stat(name)
        assert status is not None
        if status.is_durable:
            return
        time.sleep(0.02)


# Training.


class Training:
    """A model that trains under a log, and ships that by a thread, as `LoggedOptimizer(store=...)` does."""

    def __init__(self, name: str, run: Path, store: Store | None) -> None:
        self.work, self.run, self.store = workload(name, small=True), run, store and TimeoutStore(store, _STALL_SECONDS)
        self.place = f"{run.name}/rank0"
        self._model, self.optimizer = _logged(self.work, run)
        self.optimizer.recover()
        self.journal = self.optimizer.training_run.journal
        self._stream, self._turns = self.work.stream(), self.optimizer.steps(10**9, stateless=True)
        next(self._turns)
        self._archiver: Archiver | None = None
        if self.store is not None:
            paths = JournalPaths.of(run)
            self._archiver = Archiver(paths, self.store, journal_prefix(paths), ShippingSettings(_LAG_SECONDS), Clock())
            self._archiver.start()

    def step(self) -> None:
        x, y = next(self._stream)
        loss_of(self._model(x), y).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        next(self._turns)

    def drain(self) -> None:
        """Wait until the store has all, and calls it durable."""
        self.journal.wait_synced()
        self.journal.wait_checkpoint()
        while self._archiver is not None and self._archiver.progress().persisted < self.journal.committed:
            self._archiver.wake()
            self._archiver.wait(0.02)

    def close(self) -> None:
        if self._archiver is not None:
            self._archiver.close()
        self.optimizer.close()


def measure_training(url: str, folder: Path, *, quick: bool) -> dict[str, Any]:
    """Return by model the step time over that without a store, and recovery from memory and under-store over that from here."""
    found: dict[str, Any] = {}
    client = alluxio.Client(urlsplit(url).hostname, urlsplit(url).port, timeout=60)
    for name in NAMES[:1] if quick else NAMES:
        runs = {
            PLAIN: Training(name, folder / name / "plain" / "run", None),
            FOLDER: Training(name, folder / name / "folder" / "run", open_store(folder / name / "store")),
        }
        for kind in WRITE_TYPES:
            runs[kind] = Training(name, folder / name / kind / "run", _alluxio(url, f"{name}/{kind}", write_type=kind))
        found[name] = {"stores": _blocks(runs, 2 if quick else 12)}
        for run in runs.values():
            run.close()
        found[name]["recovery"] = _recoveries(runs[WRITE_TYPES[0]], client, folder / "back", 1 if quick else 5)
        for part, ratios in found[name].items():
            print(f"  {name}, {part}: {ratios}", flush=True)
        shutil.rmtree(folder / name)
    return found


def _blocks(runs: Mapping[str, Training], rounds: int) -> dict[str, Any]:
    """Blocks of steps in turn; what a block left to be shipped is waited for before the next, so that none pays for another."""
    steps: dict[str, list[float]] = {name: [] for name in runs}  # medians of blocks
    names = list(runs)
    for number in range(rounds + 1):  # in the first, servers compile as they run
        for name in names[number % len(names) :] + names[: number % len(names)]:
            taken = [seconds(runs[name].step) for _ in range(_STEPS)]
            runs[name].drain()
            if number:
                steps[name].append(median(taken[1:]))
    return {name: {"ratio": _spread(steps[name], steps[PLAIN])} for name in names}


def _recoveries(run: Training, client: Any, target: Path, rounds: int) -> dict[str, Any]:
    """Seconds until training could go on."""
    taken: dict[str, list[float]] = {"local disk": [], "Alluxio memory": [], "under-store": []}
    assert run.store is not None
    for _ in range(rounds):
        taken["local disk"].append(_recovered(run.work, run.run))
        for name in ("Alluxio memory", "under-store"):
            if name == "under-store":
                _forget(client, run.store)
            start = time.perf_counter()
            pull(run.store, run.place, target / run.place)
            taken[name].append(time.perf_counter() - start + _recovered(run.work, target / "run"))
            shutil.rmtree(target)
    return {name: {"ratio": _spread(values, taken["local disk"])} for name, values in taken.items()}


def _logged(work: Workload, run: Path) -> tuple[torch.nn.Module, LoggedOptimizer]:
    model = work.model(0)
    return model, LoggedOptimizer(optimizer_of(model), run, model, log="gradients", checkpoint_every=_CHECKPOINT_STEPS, keep=1)


def _recovered(work: Workload, run: Path) -> float:
    _, optimizer = _logged(work, run)
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


def _spread(values: list[float], others: list[float]) -> dict[str, float]:
    ratios = [one / other for one, other in zip(values, others, strict=True)]
    return dict(zip(("median", "q25", "q75"), spread(ratios), strict=True))


@contextmanager
def cluster() -> Iterator[str]:
    """Run a cluster of this script's own; yield its URL."""
    command = [sys.executable, "-m", "tests.alluxio.cluster", "--free-ports"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGTERM)


def main() -> None:
    parser = command_line(__doc__, "store")
    parser.add_argument("--url", help="of a cluster that runs")
    arguments = parser.parse_args()
    begun = Circumstances()
    torch.set_num_threads(2)
    with measured_folder() as folder, nullcontext(arguments.url) if arguments.url else cluster() as url:
        results = {
            "objects": measure_objects(url, Path(folder), quick=arguments.quick),
            "training": measure_training(url, Path(folder), quick=arguments.quick),
        }
    write_results(arguments.out, results, begun)


if __name__ == "__main__":
    main()
