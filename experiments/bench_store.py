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
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import alluxio
import torch
from harness import Circumstances, command_line, measured_folder, quartiles, seconds, write_results
from workloads import NAMES, Workload, loss_of, optimizer_of, workload

from tranlogs.base.clock import Clock
from tranlogs.journal import JournalPaths
from tranlogs.shipping import Archiver, ShippingSettings, journal_prefix, pull
from tranlogs.stores import Content, Store, TimeoutStore, open_store
from tranlogs.stores.alluxio import AlluxioStore
from tranlogs_torch import LoggedOptimizer

OBJECT_BYTES, OBJECTS = 16 << 20, 16
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
            rows.append({"store": name, "bytes": OBJECT_BYTES, **_turns(store, 2 if quick else OBJECTS)})
            times = ", ".join(f"{what} {rows[-1][what]['median'] * 1e3:.0f} ms" for what in ("put", "get", "durable"))
            print(f"  {name:32s} {times}", flush=True)
    return rows


def stores(url: str, folder: Path) -> Iterator[tuple[str, Callable[[], Store]]]:
    """What is compared."""
    yield "folder", lambda: open_store(folder / "objects")
    parts = urlsplit(url)
    host, port, root = parts.hostname or "", parts.port or 0, f"{parts.path}/bench-{secrets.token_hex(4)}"
    for kind in WRITE_TYPES:
        yield f"alluxio {kind}", lambda kind=kind: AlluxioStore(host, port, root, write_type=kind)
    yield "alluxio ASYNC_THROUGH, 2 copies", lambda: AlluxioStore(host, port, root, copies=2)


def _turns(store: Store, count: int) -> dict[str, Any]:
    content = os.urandom(OBJECT_BYTES)
    taken: dict[str, list[float]] = {"put": [], "get": [], "durable": []}
    for _ in range(count):
        name = f"{secrets.token_hex(8)}"
        taken["put"].append(seconds(lambda name=name: store.put(name, Content.of(content))))
        taken["durable"].append(seconds(lambda name=name: _wait_durable(store, name)))
        into = io.BytesIO()
        taken["get"].append(seconds(lambda name=name, into=into: store.get(name, into)))
        assert into.getvalue() == content
        store.delete(name)
    return {name: _spread(values) for name, values in taken.items()}


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
        self.parameters = sum(p.numel() for p in self._model.parameters())
        self.optimizer.recover()
        self.journal = self.optimizer.training_run.journal
        self._stream, self._turns = self.work.stream(), self.optimizer.steps(10**9)
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
    """By model: step time over that without a store, by store; how long recovery takes from here, from memory, and from the
    under-store."""
    found: dict[str, Any] = {}
    parts = urlsplit(url)
    host, port, root = parts.hostname or "", parts.port or 0, f"{parts.path.rstrip('/')}/bench-{secrets.token_hex(4)}"
    for name in NAMES[:1] if quick else NAMES:
        runs = {
            PLAIN: Training(name, folder / name / "plain" / "run", None),
            FOLDER: Training(name, folder / name / "folder" / "run", open_store(folder / name / "store")),
        }
        for kind in WRITE_TYPES:
            store = AlluxioStore(host, port, f"{root}/{name}/{kind}", write_type=kind)
            runs[kind] = Training(name, folder / name / kind / "run", store)
        found[name] = {"parameters": runs[PLAIN].parameters, "stores": _blocks(runs, 2 if quick else 12)}
        for run in runs.values():
            run.close()
        client = alluxio.Client(host, port, timeout=60)
        found[name]["recovery"] = _recoveries(runs[WRITE_TYPES[0]], client, folder / "back", 1 if quick else 5)
        _show(name, found[name])
        shutil.rmtree(folder / name)
    return found


def _blocks(runs: Mapping[str, Training], rounds: int) -> dict[str, Any]:
    """Blocks of steps in turn; what a block left to be shipped is waited for before the next, so that none pays for another."""
    steps: dict[str, list[list[float]]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(rounds + 1):  # in the first, servers compile as they run
        for name in names[number % len(names) :] + names[: number % len(names)]:
            taken = [seconds(runs[name].step) for _ in range(_STEPS)]
            runs[name].drain()
            if number:
                steps[name].append(taken[1:])
    return {
        name: {
            "step_seconds": _spread([s for block in steps[name] for s in block]),
            "ratio": _spread([median(mine) / median(plain) for mine, plain in zip(steps[name], steps[PLAIN], strict=True)]),
        }
        for name in names
    }


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
    local = taken["local disk"]
    return {
        name: {"seconds": _spread(values), "ratio": _spread([one / other for one, other in zip(values, local, strict=True)])}
        for name, values in taken.items()
    }


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


def _spread(values: list[float]) -> dict[str, float]:
    return dict(zip(("q25", "median", "q75"), quartiles(values), strict=True))


def _show(name: str, found: dict[str, Any]) -> None:
    print(f"{name}, {found['parameters'] / 1e6:.2f} M parameters", flush=True)
    for part in ("stores", "recovery"):
        for place, one in found[part].items():
            low, middle, high = one["ratio"].values()
            print(f"  {part}: {place:16s} {middle:.2f} [{low:.2f}-{high:.2f}]", flush=True)


@contextmanager
def cluster() -> Iterator[str]:
    """A cluster of this script's own; its URL."""
    command = [sys.executable, "-m", "tests.alluxio.cluster", "--free-ports"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGTERM)


def main() -> None:
    parser = command_line(__doc__, "few rounds: checks the script, not the claim", out="store")
    parser.add_argument("--url", help="of a cluster that runs")
    arguments = parser.parse_args()
    begun = Circumstances()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    place = measured_folder()
    with place as folder, nullcontext(arguments.url) if arguments.url else cluster() as url:
        results = {
            "objects": measure_objects(url, Path(folder), quick=arguments.quick),
            "training": measure_training(url, Path(folder), quick=arguments.quick),
        }
    write_results(arguments.out, results, begun)


if __name__ == "__main__":
    main()
