"""Other systems beside TranLogs: the same model, the same machine, the same faults, one run.

    python experiments/peers.py [--quick] [--only PEER ...] [--minutes 8] [--out FILE]

What saving costs a step: a training that saves and one that does not take turns in one process. What a crash costs: real
processes die by SIGKILL (experiments/peer/scenarios.py), and are started again. Each peer is used as its own documentation
says, and handed everything the rest of the training depends on. A peer that is not installed is left out, and the report says
so: `pip install '.[peers]'`, docs/peers.md. --quick tries torch.save alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from circumstances import Circumstances, write_results
from peer import cost
from peer.registry import PEERS, Peer
from peer.scenarios import EPOCH, SCENARIOS, Lab, clean
from peer.waste import HOURS, Large
from peer_pictures import draw_peers

_SEED = 7
_FORK = multiprocessing.get_context("fork")


class Size:
    """How much is done."""

    def __init__(self, *, quick: bool) -> None:
        self.width, self.width_faults = (128, 128) if quick else (1400, 512)
        self.blocks = {1: 1} if quick else {1: 4, 10: 6, 100: 10}
        self.crashes = {1: 9} if quick else {1: 23, 10: 37, 100: 127}
        self.scenarios = ("between", "cut") if quick else tuple(SCENARIOS)


def measure(names: list[str], *, quick: bool, minutes: float) -> dict[str, Any]:
    """All peers that are here; what does not fit into the time is left out, and named."""
    size, end = Size(quick=quick), time.monotonic() + 60 * minutes
    results: dict[str, Any] = {
        "missing": {},
        "late": [],
        "peers": {},
        "scenarios": {n: SCENARIOS[n].title for n in size.scenarios},
    }
    here = {name: PEERS[name] for name in names if not PEERS[name].missing}
    results["missing"] = {PEERS[name].title: PEERS[name].missing for name in names if name not in here}
    for peer in here.values():
        peer.adapter_class()  # imported before the forks
    with tempfile.TemporaryDirectory(dir=os.environ.get("TRANLOGS_BENCH_DIR")) as folder:
        lab = Lab(Path(folder), size.width, _SEED)
        lab.take_reference(max(size.crashes.values()) + 6)
        results["parameters"] = sum(p.numel() for p in PEERS["none"].make(size.width, Path(folder), 1).job.model.parameters())
        small = Lab(Path(folder) / "faults", size.width_faults, _SEED)
        small.take_reference(EPOCH + 6)
        for part, here_in in ((_costs, lab), (_crashes, lab), (_faults, small)):
            for name, peer in here.items():
                about = {"title": peer.title, "version": peer.version, "logs_steps": peer.logs_steps}
                found = results["peers"].setdefault(name, about)
                if time.monotonic() < end:
                    part(here_in, Path(folder), size, name, peer, found)
                elif not (peer.is_variant and part is not _costs):
                    results["late"].append(f"{part.__name__.strip('_')} of {peer.title}")
    results["large"] = {
        "parameters": asdict(Large()),
        "lost": {str(hours): Large().simulate(3600 * hours, _SEED) for hours in HOURS},
    }
    return results


def _costs(lab: Lab, folder: Path, size: Size, name: str, peer: Peer, found: dict[str, Any]) -> None:
    """Step times and bytes by interval."""
    intervals = {100: size.blocks.get(10, 1)} if peer.logs_steps else size.blocks
    found["cost"] = {str(every): _in_child(name, folder, size.width, every, blocks) for every, blocks in intervals.items()}
    for every, cost_of in found["cost"].items():
        print(f"  {peer.title:45s} every {every:>3}: {_told(cost_of)}", flush=True)


def _told(found: dict[str, Any]) -> str:
    if "error" in found:
        return f"failed: {found['error']}"
    return (f"mean {found['mean']:.2f}, median {found['median']:.2f}, p99 {found['p99']:.2f} of {found['plain_ms']:.1f} ms; "
            f"{found['written_per_step'] / 1e6:.2f} MB a step")  # fmt: skip


def _in_child(name: str, folder: Path, width: int, every: int, blocks: int) -> dict[str, Any]:
    """cost.measure in a process of its own, which may fail."""
    place, out = folder / f"{name}-cost-{every}", folder / "cost.json"

    def work() -> None:
        log = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        out.write_text(json.dumps(cost.measure(name, place, width, every, blocks)))

    out.unlink(missing_ok=True)
    process = _FORK.Process(target=work)
    process.start()
    process.join()
    clean(place)
    if process.exitcode or not out.exists():
        return {"error": (folder / "said").read_text()[-500:]}
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def _crashes(lab: Lab, folder: Path, size: Size, name: str, peer: Peer, found: dict[str, Any]) -> None:
    """A SIGKILL at a random moment, by interval."""
    if peer.is_variant or name == "none":
        return
    crashes = {100: max(size.crashes.values())} if peer.logs_steps else size.crashes
    found["crash"] = {str(every): lab.crash_at(name, every, crash) for every, crash in crashes.items()}
    for every, row in found["crash"].items():
        print(f"  {peer.title:45s} every {every:>3}: {row}", flush=True)


def _faults(lab: Lab, folder: Path, size: Size, name: str, peer: Peer, found: dict[str, Any]) -> None:
    """All scenarios."""
    if peer.is_variant or name == "none":
        return
    found["faults"] = {}
    for scenario in size.scenarios:
        found["faults"][scenario] = lab.try_fault(name, scenario)
        for row in found["faults"][scenario]:
            print(f"  {peer.title:45s} {SCENARIOS[scenario].title:26s} {row}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="torch.save alone, a small model: checks the script, not the claims"
    )
    parser.add_argument("--only", nargs="+", choices=[name for name in PEERS if name != "none"], help="some peers")
    parser.add_argument("--minutes", type=float, default=8, help="what does not begin in this time is left out")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "peers.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # with more, products may round otherwise from process to process, and a fork has no pool
    names = arguments.only or (["torch-save"] if arguments.quick else [name for name in PEERS if name != "none"])
    begun = Circumstances()
    results = measure(names, quick=arguments.quick, minutes=arguments.minutes)
    write_results(arguments.out, results, begun)
    draw_peers(arguments.out.with_suffix(".png"), results)


if __name__ == "__main__":
    main()
