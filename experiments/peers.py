"""Other systems beside TranLogs: the same model, the same machine, the same faults, one run.

    python experiments/peers.py [--quick] [--only PEER ...] [--minutes 10] [--out FILE]

What saving costs a step: a training that saves and one that does not take turns in one process. What a crash costs: real
processes die by SIGKILL (experiments/peer/scenarios.py), and are started again. Each peer is used as its own documentation
says, and handed everything the rest of the training depends on. A peer that is not installed is left out, and the report says
so: `pip install '.[peers]'`, experiments/README.md. --quick tries torch.save alone.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from harness import Circumstances, command_line, measured_folder, write_results
from peer import cost
from peer.adapters import clear_flash
from peer.job import Job
from peer.registry import PEERS, Peer
from peer.scenarios import AFTER, CRASH, SCENARIOS, Lab, clean
from pictures import draw_peers

_SEED = 7
_COST_SECONDS_MAX = 120
_FORK = multiprocessing.get_context("fork")
T = TypeVar("T")


class Size:
    """How much is done."""

    def __init__(self, *, quick: bool) -> None:
        self.width, self.width_faults = (128, 128) if quick else (1400, 256)
        self.blocks = {1: 1} if quick else {1: 10, 10: 15, 100: 25}
        self.crashes = {1: 9} if quick else {1: 23, 10: 37, 100: 127}
        self.kills = {1: 1} if quick else {1: 10, 10: 10, 100: 10}  # tries
        self.scenarios = ("between", "flip") if quick else tuple(SCENARIOS)


class Measurement:
    """All peers that are here, in a folder; what does not begin in time is left out, and named."""

    def __init__(self, names: list[str], folder: Path, size: Size) -> None:
        self._folder, self._size = folder, size
        self._here = {name: PEERS[name] for name in names if not PEERS[name].missing}
        self.missing = {PEERS[name].title: PEERS[name].missing for name in names if name not in self._here}
        self.late: list[str] = []
        self.failed: list[str] = []
        self.peers: dict[str, dict[str, Any]] = {}
        for name, peer in self._here.items():
            self.peers[name] = {"title": peer.title, "version": peer.version, "logs_steps": peer.logs_steps}

    def costs(self, end: float) -> None:
        """Step times and bytes, interval by interval."""
        for every, blocks in self._size.blocks.items():
            for name, peer in self._here.items():
                if peer.logs_steps and every != min(self._size.blocks):
                    continue  # a log costs the same at all intervals
                interval = 100 if peer.logs_steps else every
                work = partial(_in_child, name, self._folder, self._size.width, interval, blocks)
                if found := self._taken(end, f"cost of {peer.title}, every {every}", work):
                    self.peers[name].setdefault("cost", {})[str(interval)] = found
                    print(f"  {peer.title:45s} every {interval:3d}: {_told(found)}", flush=True)

    def crashes(self, end: float) -> None:
        """A SIGKILL at a random moment, interval by interval."""
        lab = Lab(self._folder / "crashes", self._size.width, _SEED)
        lab.take_reference(max(self._size.crashes.values()) + 6)
        for every, crash in self._size.crashes.items():
            for name, peer in self._tried().items():
                if peer.logs_steps and every != max(self._size.crashes):
                    continue
                work = partial(lab.crash_at, name, 100 if peer.logs_steps else every, crash)
                if row := self._taken(end, f"a SIGKILL of {peer.title}, every {every}", work):
                    self.peers[name].setdefault("crash", {})["100" if peer.logs_steps else str(every)] = row
                    print(f"  {peer.title:45s} every {every:3d}: {row}", flush=True)

    def kills(self, end: float) -> None:
        """A SIGKILL at random moments of random steps, of a small network; the same steps for all peers."""
        lab, chance = Lab(self._folder / "kills", self._size.width_faults, _SEED), random.Random(_SEED)
        lab.take_reference(4 * max(self._size.kills))
        for every, tries in self._size.kills.items():
            steps = [chance.randrange(max(5, every + 1), max(25, 3 * every)) for _ in range(tries)]
            for name, peer in self._tried().items():
                if peer.logs_steps and every != max(self._size.kills):
                    continue
                work = partial(lab.crashes_at, name, 100 if peer.logs_steps else every, steps)
                if found := self._taken(end, f"kills of {peer.title}, every {every}", work):
                    self.peers[name].setdefault("kills", {})["100" if peer.logs_steps else str(every)] = found
                    print(f"  {peer.title:45s} every {every:3d}: {found}", flush=True)

    def faults(self, end: float) -> None:
        """Scenario by scenario; those that take long to start come last."""
        lab = Lab(self._folder / "faults", self._size.width_faults, _SEED)
        lab.take_reference(CRASH + AFTER)
        units = [(name, scenario) for scenario in self._size.scenarios for name in self._tried()]
        for name, scenario in sorted(units, key=lambda unit: PEERS[unit[0]].is_slow):
            title = self.peers[name]["title"]
            work = partial(lab.try_fault, name, scenario)
            if rows := self._taken(end, f"{SCENARIOS[scenario].title}, {title}", work):
                self.peers[name].setdefault("faults", {})[scenario] = rows
                for row in rows:
                    print(f"  {title:45s} {SCENARIOS[scenario].title:26s} {row}", flush=True)

    def _tried(self) -> dict[str, Peer]:
        return {name: peer for name, peer in self._here.items() if not peer.is_variant}

    def _taken(self, end: float, what: str, work: Callable[[], T]) -> T | None:
        """What `work` finds; None where the time is up, or the script itself fails, which costs this measurement alone."""
        if time.monotonic() > end:
            self.late.append(what)
            return None
        try:
            return work()
        except Exception as error:
            traceback.print_exc()
            self.failed.append(f"{what}: {error!r}")
            return None


def measure(names: list[str], *, quick: bool, minutes: float) -> dict[str, Any]:
    """Faults in the first part of the time, which bear a busy machine; then crashes; costs in the rest."""
    size, begun = Size(quick=quick), time.monotonic()
    with measured_folder() as folder:
        made = Measurement(names, Path(folder), size)
        for part, share in (
            (made.faults, 0.4),
            (made.kills, 0.6),
            (made.crashes, 0.65),
            (made.costs, 1.0),
        ):
            part(begun + share * minutes * 60)
        parameters = sum(p.numel() for p in Job(size.width).model.parameters())
    return {
        "parameters": parameters,
        "missing": made.missing,
        "late": made.late,
        "failed": made.failed,
        "peers": made.peers,
        "scenarios": {name: SCENARIOS[name].title for name in size.scenarios},
    }


def _told(found: dict[str, Any]) -> str:
    if "error" in found:
        return f"failed: {found['error']}"
    return (
        f"mean {found['mean']:.2f}, median {found['median']:.2f}, p99 {found['p99']:.2f} of {found['plain_ms']:.1f} ms; "
        f"{found['written_per_step'] / 1e6:.2f} MB a step"
    )


def _in_child(name: str, folder: Path, width: int, every: int, blocks: int) -> dict[str, Any]:
    """cost.measure in a process of its own, which may fail."""
    place, out, said = folder / f"{name}-cost-{every}", folder / "cost.json", folder / "said"

    def work() -> None:
        log = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        out.write_text(json.dumps(cost.measure(name, place, width, every, blocks)))

    out.unlink(missing_ok=True)
    process = _FORK.Process(target=work)
    process.start()
    process.join(_COST_SECONDS_MAX)
    is_slow = process.is_alive()
    process.kill()
    process.join()
    clean(place)
    clear_flash(place / f"{place.name}-saved")
    if is_slow or not out.exists():
        return {"error": f"not done after {_COST_SECONDS_MAX} s" if is_slow else said.read_text()[-500:]}
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def main() -> None:
    parser = command_line(__doc__, "torch.save alone, a small model: checks the script, not the claims", out="peers")
    parser.add_argument("--only", nargs="+", choices=[name for name in PEERS if name != "none"], help="some peers")
    parser.add_argument("--minutes", type=float, default=10, help="what does not begin in this time is left out")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # with more, products may round otherwise from process to process, and a fork has no pool
    names = arguments.only or (["torch-save"] if arguments.quick else [name for name in PEERS if name != "none"])
    begun = Circumstances()
    results = measure(names, quick=arguments.quick, minutes=arguments.minutes)
    write_results(arguments.out, results, begun)
    draw_peers(arguments.out.with_suffix(".png"), results)
    if results["failed"]:
        raise SystemExit("\n".join(["these measurements failed:", *results["failed"]]))


if __name__ == "__main__":
    main()
