"""What the log costs processes that train together, and how long it takes from a SIGKILL to the next step under torchrun.

Bytes and step time a rank for W = 1, 2, 4, with one copy of each share and with two; a step with the log over one without, both
in the same processes and in turns. Then one rank of each group is killed: the time until the first new step, split into what
torchrun's agent, the start of the processes, loading and redoing take, and the steps that were lost.
Results go to experiments/results/distributed.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BORN = time.time()  # before torch is imported, which is a part of the start

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from harness import Circumstances, command_line, measured_folder, write_results  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from tranlogs_torch import LoggedOptimizer  # noqa: E402

WIDTH, WIDTH_QUICK = 1000, 200  # of a layer: 2.0 M and 0.1 M parameters in two
ROUNDS, STEPS = 5, 12
KILLED_AT, CHECKPOINT_EVERY = 95, 60


class Bench:
    """One worker's model, wrapped, and batches for it."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.model = DistributedDataParallel(layers)
        self.inner = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.x = torch.randn(16, width)

    def step(self, optimizer: Any) -> None:
        self.model(self.x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def steady(width: int, run: str, copies: int, out: Path) -> None:
    """Steps with and without the log, in turns."""
    plain, logged = Bench(width), Bench(width)
    times: dict[str, list[float]] = {"plain": [], "logged": []}
    with LoggedOptimizer(
        logged.inner, run, logged.model, checkpoint_every=10**9, durability="process", copies=copies
    ) as optimizer:
        optimizer.recover()
        turns = optimizer.steps(ROUNDS * STEPS)
        before = 0
        for number in range(ROUNDS):
            for _ in range(STEPS):
                times["plain"].append(_timed(lambda: plain.step(plain.inner)))
            for _ in range(STEPS):
                start = time.perf_counter()
                next(turns)
                logged.step(optimizer)
                times["logged"].append(time.perf_counter() - start)
            if number == 0:
                before = optimizer.training_run.journal.log_bytes  # what is written once, and first pages, do not count
                times = {"plain": [], "logged": []}
        nbytes = optimizer.training_run.journal.log_bytes - before
        told: list[Any] = [None] * dist.get_world_size()
        # Not as the last thing of all: Gloo's thread lets go of its tensors a little later, and where Python ends meanwhile,
        # it aborts the process (seen with torch 2.15, once in eight).
        dist.all_gather_object(told, (nbytes / (ROUNDS - 1) / STEPS, *(statistics.median(times[name]) for name in times)))
    if dist.get_rank() == 0:
        out.write_text(json.dumps(told))


def _timed(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def killed(width: int, run: str, copies: int, out: Path) -> None:
    """Train; the last rank dies once, and what follows tells the time."""
    bench, rank = Bench(width), dist.get_rank()
    built = time.time()
    with LoggedOptimizer(
        bench.inner, run, bench.model, checkpoint_every=CHECKPOINT_EVERY, durability="process", copies=copies
    ) as optimizer:
        report = optimizer.recover()
        recovered = time.time()
        for number in optimizer.steps(KILLED_AT + 20, stateless=True):
            if number == KILLED_AT and report.checkpoint_step is None and rank == dist.get_world_size() - 1:
                optimizer.training_run.journal.wait_checkpoint()
                Path(f"{out}.killed").write_text(json.dumps([time.time(), number]))
                os.kill(os.getpid(), signal.SIGKILL)
            bench.step(optimizer)
            if report.checkpoint_step is not None and rank == 0 and not out.exists():
                at, step = json.loads(Path(f"{out}.killed").read_text())
                out.write_text(
                    json.dumps(
                        {
                            "agent": BORN - at,
                            "start": built - BORN,
                            "load": recovered - built - report.seconds_replay,
                            "replay": report.seconds_replay,
                            "first step": time.time() - recovered,
                            "replayed": report.replayed,
                            "steps lost": step - report.step,
                            "exact": report.exact,
                        }
                    )
                )


def torchrun(world: int, what: str, width: int, copies: int, folder: Path) -> Any:
    """Run workers to their end; what they told."""
    out = folder / f"{what}-{world}-{copies}"
    agent = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(world),
        "--max-restarts",
        "1" if what == "killed" else "0",
    ]
    command = [*agent, "--monitor-interval", "0.1", __file__, "--worker", what, str(width), str(copies), str(out)]
    told = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env={**os.environ, **told}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return json.loads(out.read_text())


def measure(*, quick: bool = False) -> dict[str, Any]:
    """All figures; told while they are taken."""
    width = WIDTH_QUICK if quick else WIDTH
    found: dict[str, Any] = {"parameters": 2 * width * (width + 1), "steady": list(_steady(width, quick)), "killed": []}
    for world, copies in [(2, 1)] if quick else [(2, 1), (4, 1), (4, 2)]:
        with measured_folder() as folder:
            row = {"world": world, "copies": copies, **torchrun(world, "killed", width, copies, Path(folder))}
        found["killed"].append(row)
        parts = ", ".join(f"{name} {row[name]:.2f} s" for name in ("agent", "start", "load", "replay", "first step"))
        print(f"  W = {world}, copies {copies}: from SIGKILL: {parts}; {row['steps lost']} steps lost, exact: {row['exact']}")
    return found


def _steady(width: int, quick: bool) -> Iterator[dict[str, Any]]:
    for world, copies in [(1, 1), (2, 1)] if quick else [(1, 1), (2, 1), (4, 1), (2, 2), (4, 2)]:
        with measured_folder() as folder:
            ranks = torchrun(world, "steady", width, copies, Path(folder))
        nbytes = statistics.mean(rank[0] for rank in ranks)
        plain, logged = (statistics.median(rank[i] for rank in ranks) for i in (1, 2))
        whole = nbytes * world / copies
        print(
            f"  W = {world}, copies {copies}: {nbytes / 1e6:.3f} MB a rank and step, x W / copies {whole / 1e6:.3f}; a step "
            f" {plain * 1e3:.1f} ms, with the log {logged * 1e3:.1f} ms ({logged / plain:.2f}x)"
        )
        yield {
            "world": world,
            "copies": copies,
            "bytes": nbytes,
            "bytes x W / copies": whole,
            "seconds plain": plain,
            "seconds logged": logged,
        }


def main() -> None:
    parser = command_line(__doc__, "a small model and few groups: checks the script, not the claim", out="distributed")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        what, width, copies, out = arguments.worker
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        {"steady": steady, "killed": killed}[what](int(width), f"{out}.run", int(copies), Path(out))
        dist.destroy_process_group()
        return
    begun = Circumstances()
    write_results(arguments.out, measure(quick=arguments.quick), begun)


if __name__ == "__main__":
    main()
