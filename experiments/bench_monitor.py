"""What the monitor costs beside a training run, and beside nothing; and how a run keeps within its budget.

    slowdown    a training step with `tranlogs monitor` beside it over one without, also with --store
    idle        CPU seconds an hour and memory of a daemon whose run nobody trains
    storage     bytes on disk over time: the same training under three budgets, with a daemon beside each

Slow-downs are taken within one training process: it trains in blocks of some seconds, in which the daemon runs or is stopped
(SIGSTOP), in turn. What is behind when it goes on is caught up with between blocks, so that a block pays for its own steps.
Bytes are those on the disk, looked at from outside; the values below are those that the catalog keeps.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from harness import Child, measured_folder, take
from paired_timing import spread
from pictures import draw_storage

from tranlogs import EverySteps
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.log import preallocator
from tranlogs.retention import KeepAll
from tranlogs.retention.value_decay import read_evaluations, read_values

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script that runs alone has only its own folder there
from tests.support.toy import open_toy

_TICK = os.sysconf("SC_CLK_TCK")
_SECONDS_MAX = 120.0  # for a daemon to be there
_BUDGETS = (16, 32, 48)  # MiB
_SIZES = (7, 1400, 11_200)  # 100 KB of gradients a step
_STEP_SECONDS, _CHECKPOINT_STEPS = 0.1, 40
_LOOK_SECONDS = 0.05
_SHOWN = 5  # one in so many of these is kept
_CURVES = 7  # segments whose values are drawn
_QUIET_SECONDS, _QUIET_SHARE = 0.7, 0.1  # so long, a daemon took less of a processor: there is nothing to do


class Daemon:
    """`tranlogs monitor` on a run, that has evaluated it once."""

    def __init__(self, run: Path, *options: str) -> None:
        self._folder = run / "rank0"
        before = self._evaluations()
        command = [sys.executable, "-m", "tranlogs", "monitor", str(run), *options]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + _SECONDS_MAX
        while self._evaluations() == before:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                raise SystemExit(f"the monitor does not begin: {self._process.communicate()[1][-3000:]}")
            time.sleep(0.05)

    def _evaluations(self) -> list[int]:
        return [row.number for row in read_evaluations(self._folder)]

    def send(self, number: int) -> None:
        """Send it and its children a signal."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait_quiet(self) -> None:
        """Wait until it has caught up with what there was to do."""
        last = self.cpu_seconds()
        for _ in range(20):
            time.sleep(_QUIET_SECONDS)
            now = self.cpu_seconds()
            if now - last < _QUIET_SHARE * _QUIET_SECONDS:
                return
            last = now

    def cpu_seconds(self) -> float:
        """Return what it and its children have taken so far."""
        return sum(_cpu_seconds(pid) for pid in self._pids())

    def memory_bytes(self) -> int:
        """Return its resident memory."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))

    def close(self) -> None:
        """End it."""
        self.send(signal.SIGCONT)
        self._process.terminate()
        _, said = self._process.communicate()
        if self._process.returncode:
            raise SystemExit(f"the monitor ended with {self._process.returncode}: {said[-3000:]}")

    def _pids(self) -> list[int]:
        """Return it and the processes that it has started."""
        found = [self._process.pid]
        for task in Path(f"/proc/{self._process.pid}/task").glob("*/children"):
            with suppress(OSError):
                found += [int(pid) for pid in task.read_text().split()]
        return found


def _cpu_seconds(pid: int) -> float:
    """Return the time of a process and of those of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # it has ended, and its parent has its time
    return sum(int(ticks) for ticks in fields[11:15]) / _TICK


# Beside a training run.


def slowdown(quick: bool) -> dict[str, Any]:
    """Return step time with the daemon over that without, block by block."""
    models = {  # pairs of blocks, seconds of a block
        "GPT, 10.7 M parameters, batch 4": (6, 3.0),
        "perceptron, 0.1 M parameters": (12, 1.0),
    }
    found: dict[str, Any] = {}
    for title, (pairs, length) in models.items():
        with measured_folder() as place:
            run = Path(place) / "run"
            trainer = Child(_train, title.startswith("GPT"), run, quick)
            daemons = {"daemon": (), "daemon, --store": ("--store", f"file://{place}/store")}
            found[title] = {
                name: _compared(f"{title}, {name}", trainer, run, options, 1 if quick else pairs, 1.0 if quick else length)
                for name, options in daemons.items()
            }
            trainer.pipe.send(None)
            trainer.join()
    return found


def _compared(name: str, trainer: Child, run: Path, options: tuple[str, ...], pairs: int, length: float) -> dict[str, float]:
    """Train in blocks without and with a daemon, in turn; which comes first changes from pair to pair."""

    def block(length: float) -> float:
        trainer.pipe.send(length)
        return float(trainer.receive())

    ratios = []
    block(length / 3)
    daemon = Daemon(run, "--budget", "4GiB", "--interval", "1s", *options)
    try:
        for i in range(pairs):
            step = {}
            for is_beside in (False, True) if i % 2 else (True, False):
                if is_beside:
                    daemon.send(signal.SIGCONT)
                    daemon.wait_quiet()
                step[is_beside] = block(length)
                daemon.send(signal.SIGSTOP)
            ratios.append(step[True] / step[False])
    finally:
        daemon.close()
    middle, low, high = spread(ratios)
    print(f"  {name:60s} {middle:.3f} [{low:.3f}-{high:.3f}]", flush=True)
    return {"median": middle, "q25": low, "q75": high}


def _train(pipe: Any, is_gpt: bool, run: Path, quick: bool) -> None:
    """Train for as many seconds as is asked for; answer how long a step took. What is still to be synced is not counted."""
    os.environ["OMP_WAIT_POLICY"] = "passive"  # a busy machine waits by sleeping; read as torch is imported
    import torch
    from training_cases import gpt, perceptron

    from tranlogs_torch import LoggedOptimizer

    torch.set_num_threads(2)
    work = gpt(4, quick=quick) if is_gpt else perceptron()
    settings: dict[str, Any] = {"log": "gradients", "keep": 1, "fingerprint": "full", "checkpoint_every": 24}
    optimizer = LoggedOptimizer(work.optimizers[0], run, work.model, **settings)
    optimizer.recover()
    turns = optimizer.steps(10**9)
    next(turns)
    while (length := pipe.recv()) is not None:
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < length or steps < 2:
            work.compute([optimizer])
            next(turns)
            steps += 1
        taken = time.perf_counter() - start
        optimizer.training_run.journal.wait_synced()
        optimizer.training_run.journal.wait_checkpoint()
        pipe.send(taken / steps)
    optimizer.close()


# Beside nothing.


def idle(quick: bool) -> dict[str, Any]:
    """Return what two daemons take on runs that nobody trains."""
    found = {}
    with measured_folder() as place, ExitStack() as stack:
        daemons = {}
        for interval in ("1s", "10s"):
            run = Path(place) / interval
            trainer = open_toy(run, config=JournalConfig(segment_bytes=MIB), policy=EverySteps(50))
            trainer.recover()
            trainer.train(200)
            trainer.journal.close()
            daemons[interval] = Daemon(run, "--budget", "1GiB", "--interval", interval)
            stack.callback(daemons[interval].close)
        since, before = time.monotonic(), [daemon.cpu_seconds() for daemon in daemons.values()]
        time.sleep(10.0 if quick else 60.0)
        for (interval, daemon), at_first in zip(daemons.items(), before, strict=True):
            hour = (daemon.cpu_seconds() - at_first) / (time.monotonic() - since) * 3600
            found[interval] = {"cpu_seconds_an_hour": hour, "memory_bytes": daemon.memory_bytes()}
    print(f"  {found}", flush=True)
    return found


# Under a budget.


def storage(quick: bool) -> dict[str, Any]:
    """Train and look: how far above its budget each run was at most, and all that the picture shows."""
    times: list[float] = []
    nbytes: dict[int, list[int]] = {budget: [] for budget in _BUDGETS}
    with measured_folder() as place, ExitStack() as stack:
        runs = {budget: Path(place) / str(budget) for budget in _BUDGETS}
        trainers = [Child(_train_toy, run) for run in runs.values()]
        for trainer in trainers:
            trainer.receive()  # the run is there
        for budget, run in runs.items():
            options = ("--budget", f"{budget}MiB", "--interval", "0.5s", "--set", "life=20s")
            stack.callback(Daemon(run, *options).close)
        for trainer in trainers:  # all daemons are there: now
            trainer.pipe.send("go")
        start = time.time()
        while time.time() < start + (6.0 if quick else 60.0):
            times.append(time.time() - start)
            for budget, run in runs.items():
                nbytes[budget].append(_bytes_below(run))
            time.sleep(_LOOK_SECONDS)
        curves = {budget: _curves(run, start) for budget, run in runs.items()}
        for trainer in trainers:
            trainer.pipe.send("end")
            trainer.join()
    found = {}
    for budget, course in nbytes.items():
        print(f"  budget {budget} MiB: at most {max(course) / MIB:.1f} MiB on disk, {course[-1] / MIB:.1f} MiB in the end")
        found[f"{budget} MiB"] = {
            "most_bytes": max(course),
            "last_bytes": course[-1],
            "seconds": [round(at, 2) for at in times[::_SHOWN]],
            "bytes": course[::_SHOWN],
            "values": curves[budget],
        }
    return found


def _curves(run: Path, start: float) -> list[dict[str, list[float]]]:
    """Return the values over time of some segments that were pruned, evenly chosen."""
    curves: dict[int, dict[str, list[float]]] = {}
    evaluations = read_evaluations(run / "rank0")
    for row in evaluations:
        for ordinal, value in read_values(row).as_dict().items():
            curve = curves.setdefault(ordinal, {"seconds": [], "values": []})
            curve["seconds"].append(round(row.at - start, 2))
            curve["values"].append(round(value, 4))
    last = round(evaluations[-1].at - start, 2)
    gone = [curve for _, curve in sorted(curves.items()) if curve["seconds"][-1] < last and len(curve["seconds"]) > 2]
    return gone[:: max(1, len(gone) // _CURVES)]


def _train_toy(pipe: Any, run: Path) -> None:
    """Say that the run is there, wait for the word, and train a toy at an even pace until the next."""
    preallocator.SEGMENT_RECORDS_WANTED = 1  # small segments
    config = JournalConfig(segment_bytes=MIB)
    trainer = open_toy(run, sizes=_SIZES, config=config, policy=EverySteps(_CHECKPOINT_STEPS), retention=KeepAll())
    trainer.recover()
    pipe.send("ready")
    pipe.recv()
    start = time.monotonic()
    while not pipe.poll(max(0.0, start + trainer.journal.step * _STEP_SECONDS - time.monotonic())):
        trainer.train(trainer.journal.step + 1)
    trainer.journal.close()


def _bytes_below(run: Path) -> int:
    """Return what the segments and checkpoints of a run take on disk."""
    total = 0
    for kind in ("log", "checkpoints"):
        for place, _, names in os.walk(run / "rank0" / kind):
            for name in names:
                with suppress(FileNotFoundError):  # it has just gone
                    total += os.stat(os.path.join(place, name)).st_blocks * 512
    return total


def measure(*, quick: bool) -> dict[str, Any]:
    """Take all parts."""
    return {"slowdown": slowdown(quick), "idle": idle(quick), "storage": storage(quick)}


if __name__ == "__main__":
    take(__doc__, "bench_monitor", measure, draw_storage)
