"""What the monitor costs: beside a training run, beside nothing, for very long runs, and while it prunes.

    slowdown    a training step with `tranlogs monitor` beside it over one without, also with --store
    idle        CPU seconds an hour and memory of a daemon whose run nobody trains
    evaluation  seconds of one evaluation of 100,000 segments
    pruning     bytes a second that go

Slow-downs are taken within one training process: it trains in blocks of some seconds, in which the daemon runs or is stopped
(SIGSTOP), in turn. What is behind when it goes on is caught up with between blocks, so that a block pays for its own steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import bench_storage
from harness import Circumstances, command_line, measured_folder, quartiles, shown, write_results
from monitored_trainer import GPT_BATCH, Daemon, Trainer
from support import open_toy

from tranlogs import EverySteps
from tranlogs.base.clock import Clock
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.catalog import Catalog, SegmentRow, segment_key
from tranlogs.journal import JournalPaths
from tranlogs.retention import KeepAll
from tranlogs.retention.prune import Budget
from tranlogs_monitor.settings import DaemonSettings
from tranlogs_monitor.watching.watch import JournalWatch

_SEGMENTS = 100_000
_MODELS = {"gpt": f"GPT, 10.7 M parameters, batch {GPT_BATCH}", "small": "perceptron, 0.1 M parameters"}
_MODELS_QUICK = {"gpt-quick": f"GPT, 0.1 M parameters, batch {GPT_BATCH}", "small": _MODELS["small"]}


# Beside a training run.


def slowdown(*, quick: bool) -> dict[str, Any]:
    """Step time with the daemon over that without, block by block."""
    found: dict[str, Any] = {}
    for model, title in (_MODELS_QUICK if quick else _MODELS).items():
        pairs, seconds = (1, 1.0) if quick else (12, 1.0) if model == "small" else (6, 3.0)
        print(f"{title}; ratio of step time to that without a daemon, median [quartiles] over {pairs} pairs of blocks")
        with measured_folder() as place, Trainer(model, Path(place) / "run", "24") as trainer:
            store = f"file://{place}/store"
            found[title] = {
                name: _compared(name, trainer, options, pairs, seconds)
                for name, options in (
                    ("no daemon, again (noise)", None),
                    ("daemon", []),
                    ("daemon, --store", ["--store", store]),
                )
            }
    return found


def _compared(name: str, trainer: Trainer, options: list[str] | None, pairs: int, seconds: float) -> dict[str, Any]:
    """Blocks of steps without and with a daemon, in turn; which comes first changes from pair to pair."""
    ratios, steps_without = [], []
    cpu = wall = 0.0  # that the daemon took, in the blocks that it ran in
    daemon = None if options is None else Daemon(trainer.run, ["--budget", "4GiB", "--interval", "1s", *options])
    try:
        trainer.train(seconds / 3)
        for i in range(pairs):
            step = {}
            for is_beside in (False, True) if i % 2 else (True, False):
                if daemon is not None and is_beside:
                    daemon.go_on()
                    daemon.wait_quiet()
                before, start = daemon.cpu_seconds() if daemon else 0.0, time.perf_counter()
                step[is_beside] = trainer.train(seconds)
                if daemon is not None and is_beside:
                    cpu, wall = cpu + daemon.cpu_seconds() - before, wall + time.perf_counter() - start
                    daemon.pause()
            ratios.append(step[True] / step[False])
            steps_without.append(step[False])
    finally:
        if daemon is not None:
            daemon.close()
    low, middle, high = quartiles(ratios)
    share = cpu / wall if wall else None
    told = "" if share is None else f"   {share:.3f} of a processor"
    print(f"  {name:26s} {shown(ratios)}   step {quartiles(steps_without)[1] * 1e3:.1f} ms{told}", flush=True)
    return {"median": middle, "q25": low, "q75": high, "seconds": quartiles(steps_without)[1], "cpu_share": share}


# Beside nothing.


class Idle:
    """Two daemons on runs that nobody trains, while something else is done."""

    def __init__(self, *, quick: bool) -> None:
        self._seconds, self._place = (10.0 if quick else 60.0), measured_folder()
        self._daemons = {interval: self._started(interval) for interval in ("1s", "10s")}
        self._since = time.monotonic()
        self._before = {interval: daemon.cpu_seconds() for interval, daemon in self._daemons.items()}

    def _started(self, interval: str) -> Daemon:
        run = Path(self._place.name) / interval
        trainer = open_toy(run, config=JournalConfig(segment_bytes=MIB), policy=EverySteps(50))
        trainer.recover()
        trainer.train(200)
        trainer.journal.close()
        return Daemon(run, ["--budget", "1GiB", "--interval", interval])

    def result(self) -> dict[str, Any]:
        """When a minute is over."""
        time.sleep(max(0.0, self._since + self._seconds - time.monotonic()))
        found = {}
        for interval, daemon in self._daemons.items():
            taken, memory = daemon.cpu_seconds() - self._before[interval], daemon.memory_bytes()
            hour = taken / (time.monotonic() - self._since) * 3600
            found[interval] = {"cpu_seconds_an_hour": hour, "memory_bytes": memory}
            print(f"  --interval {interval:4s} {hour:.1f} CPU seconds an hour, {memory / 1e6:.0f} MB resident", flush=True)
            daemon.close()
        self._place.cleanup()
        return found


# A very long run.


def evaluation(*, quick: bool) -> dict[str, Any]:
    """The first evaluation decodes every row; the ones after it those that changed."""
    with measured_folder() as place:
        paths = _long_run(Path(place) / "run", _SEGMENTS // 10 if quick else _SEGMENTS)
        watch = JournalWatch(paths, DaemonSettings(Budget(1 << 60)), Clock())
        wall, cpu = [], []
        for _ in range(4 if quick else 13):
            begun, used = time.perf_counter(), time.process_time()
            seen = watch.evaluate()
            wall.append(time.perf_counter() - begun)
            cpu.append(time.process_time() - used)
        watch.close()
    count = len(seen.worth.ordinals)
    print(
        f"  {count:,} segments: first {wall[0]:.2f} s ({cpu[0]:.2f} s of CPU), following {shown(wall[1:], 2)} s "
        f"({shown(cpu[1:], 2)} s of CPU)",
        flush=True,
    )
    return {
        "segments": count,
        "first": {"seconds": wall[0], "cpu": cpu[0]},
        "following": {"seconds": quartiles(wall[1:]), "cpu": quartiles(cpu[1:])},
    }


def _long_run(run: Path, count: int) -> JournalPaths:
    """A catalog with sealed segments, half of them behind a checkpoint that is sound; there are no files."""
    trainer = open_toy(run, policy=EverySteps(10**9))
    trainer.recover()
    paths = trainer.journal.paths
    trainer.journal.close()
    catalog, now = Catalog.open(paths.folder, writable=True), time.time()
    (checkpoint,) = catalog.checkpoints()
    with catalog.transaction() as tables:
        for i in range(10, 10 + count):
            name, at = f"{i:016x}", now - 60 * (10 + count - i)
            tables.put(
                segment_key(i),
                SegmentRow(
                    i, name, f"{i:010d}-{name}.seg", 64 * MIB, "sealed", 1, 2 * i, i, 2 * i + 1, i, 63 * MIB, at, at - 60
                ),
            )
        tables.put(f"checkpoint/{checkpoint.name}", replace(checkpoint, sequence=count, step=count // 2))
    catalog.close()
    return paths


# Pruning.


def pruning(*, quick: bool) -> dict[str, Any]:
    """Evaluations of a run that is far above its budget, until it is within: with all transactions, syncs and deletions."""
    rates, counts = [], []
    for _ in range(1 if quick else 3):
        with measured_folder() as place:
            config = JournalConfig(segment_bytes=16 * MIB)
            trainer = open_toy(
                Path(place) / "run", sizes=(1_000_000,), config=config, policy=EverySteps(10), retention=KeepAll()
            )
            trainer.recover()
            trainer.train(20 if quick else 50)
            paths = trainer.journal.paths
            trainer.journal.close()
            watch = JournalWatch(paths, DaemonSettings(Budget(48 * MIB)), Clock())
            before, start = bench_storage.bytes_below(paths.folder), time.perf_counter()
            seen = watch.evaluate()
            seconds = time.perf_counter() - start
            gone = before - bench_storage.bytes_below(paths.folder)
            watch.close()
        assert gone > before / 2, "the run is above its budget"
        rates.append(gone / seconds)
        counts.append(len(seen.pruning.segments) / seconds)
    print(f"  {shown([rate / 1e6 for rate in rates], 0)} MB a second, in {shown(counts, 0)} segments", flush=True)
    return {"bytes_a_second": quartiles(rates), "segments_a_second": quartiles(counts)}


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "slowdown": slowdown,
    "evaluation": evaluation,
    "pruning": pruning,
}


def main() -> None:
    parser = command_line(__doc__, "few rounds: checks the script, not the claim", out="bench_monitor")
    parser.add_argument("parts", nargs="*", choices=[[], "idle", *PARTS], help="which parts (default: all)")
    arguments = parser.parse_args()
    wanted = arguments.parts or [*PARTS, "idle"]
    begun = Circumstances()
    results: dict[str, Any] = {}
    idle = None
    for part in (part for part in PARTS if part in wanted):
        if part != "slowdown" and idle is None and "idle" in wanted:
            idle = Idle(quick=arguments.quick)  # meanwhile
        print(f"== {part}", flush=True)
        results[part] = PARTS[part](quick=arguments.quick)
    if "idle" in wanted:
        print("== idle", flush=True)
        results["idle"] = (idle or Idle(quick=arguments.quick)).result()
    write_results(arguments.out, results, begun)


if __name__ == "__main__":
    main()
