"""Other systems beside TranLogs: the same model, the same machine, the same faults, one run.

    python experiments/peers.py [--quick] [--out FILE]

What saving costs a step: a training that saves and one that does not take turns in one process. What a crash costs: real
processes die by SIGKILL (experiments/peer/lives.py), and are started again. Each peer is used as its own documentation
says, and handed everything the rest of the training depends on. A peer that is not installed is left out, and named:
`pip install '.[peers]'`, experiments/README.md. --quick tries torch.save alone.
"""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import Child, Circumstances, command_line, measured_folder, write_results
from peer.adapters import PEERS, Job, clear_flash
from peer.cost import measure_cost
from peer.lives import AFTER, CRASH, FAULTS, Lab, clean
from pictures import draw_peers

_SEED = 7
_COST_SECONDS_MAX = 120
_LOG_INTERVAL = 100  # steps between the checkpoints of a peer that logs each step; it is measured at that interval alone


class Size:
    """How much is done."""

    def __init__(self, *, quick: bool) -> None:
        self.width, self.width_faults = (128, 128) if quick else (1400, 256)
        self.blocks = {1: 1} if quick else {1: 10, 10: 15, 100: 25}  # by interval, as those below
        self.crashes = {1: 9} if quick else {1: 23, 10: 37, 100: 127}  # the step
        self.kills = {1: 1} if quick else {1: 10, 10: 10, 100: 10}  # tries
        self.faults = FAULTS[:1] if quick else FAULTS


class Measurement:
    """All peers that are here, in a folder."""

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self._folder, self._size = folder, Size(quick=quick)
        self.failed: list[str] = []
        self.peers: dict[str, dict[str, Any]] = {}
        for name, peer in PEERS.items():
            if quick and name != "torch-save":
                continue
            if peer.is_here:
                self.peers[name] = {"title": peer.title, "logs_steps": peer.logs_steps}
            else:
                print(f"  {peer.title}: left out, it is not installed", flush=True)
        self.parameters = sum(p.numel() for p in Job(self._size.width).model.parameters())

    def faults(self) -> None:
        """Damage the newest save; fill the disk."""
        lab = Lab(self._folder / "faults", self._size.width_faults, _SEED)
        lab.take_reference(CRASH + AFTER)
        for fault in self._size.faults:
            for name in self.peers:
                if not PEERS[name].is_variant:
                    self._note(name, "faults", fault, partial(lab.try_fault, name, fault))

    def kills(self) -> None:
        """Kill at random moments of random steps, of a small network; the same steps for all peers."""
        lab, chance = Lab(self._folder / "kills", self._size.width_faults, _SEED), random.Random(_SEED)
        lab.take_reference(4 * max(self._size.kills))
        for every, tries in self._size.kills.items():
            steps = [chance.randrange(max(5, every + 1), max(25, 3 * every)) for _ in range(tries)]
            self._at(every, "kills", lambda name, every, steps=steps: lab.crashes_at(name, every, steps))

    def crashes(self) -> None:
        """Kill once at a random moment of a step."""
        lab = Lab(self._folder / "crashes", self._size.width, _SEED)
        lab.take_reference(max(self._size.crashes.values()) + 6)
        for every, crash in self._size.crashes.items():
            self._at(every, "crash", lambda name, every, crash=crash: lab.crash_at(name, every, crash))

    def costs(self) -> None:
        """Take step times and bytes."""
        for every, blocks in self._size.blocks.items():
            self._at(every, "cost", lambda name, every, blocks=blocks: self._cost(name, every, blocks))

    def _at(self, every: int, part: str, work: Callable[[str, int], Any]) -> None:
        """Measure all peers at an interval; what logs each step at the last one, and variants for what they cost alone."""
        for name in self.peers:
            peer = PEERS[name]
            if (part == "cost" or not peer.is_variant) and (not peer.logs_steps or every == max(self._size.blocks)):
                interval = _LOG_INTERVAL if peer.logs_steps else every
                self._note(name, part, str(interval), partial(work, name, interval))

    def _note(self, name: str, part: str, key: str, work: Callable[[], Any]) -> None:
        """Note what `work` finds. If the script itself fails, that costs this measurement alone."""
        try:
            found = work()
        except Exception as error:
            traceback.print_exc()
            self.failed.append(f"{part} {key} of {name}: {error!r}")
            return
        self.peers[name].setdefault(part, {})[key] = found
        print(f"  {PEERS[name].title}, {part} {key}: {found}", flush=True)

    def _cost(self, name: str, every: int, blocks: int) -> dict[str, Any]:
        """Measure the cost in a process of its own, which may fail."""
        place = self._folder / f"{name}-cost-{every}"
        child = Child(_answer_cost, name, place, self._size.width, every, blocks, is_fork=True)
        found = child.receive() if child.pipe.poll(_COST_SECONDS_MAX) else None
        child.process.kill()
        child.process.join()
        clean(place)
        clear_flash(place / f"{place.name}-saved")
        if found is None:
            raise RuntimeError(f"no answer; {_COST_SECONDS_MAX} s are allowed")
        return dict(found)


def _answer_cost(pipe: Any, *given: Any) -> None:
    pipe.send(measure_cost(*given))


def main() -> None:
    arguments = command_line(__doc__, "peers").parse_args()
    torch.set_num_threads(1)  # with more, products may round otherwise from process to process, and a fork has no pool
    begun = Circumstances()
    with measured_folder() as folder:
        made = Measurement(Path(folder), quick=arguments.quick)
        for part in (made.faults, made.kills, made.crashes, made.costs):
            part()
    results = {"parameters": made.parameters, "peers": made.peers}
    write_results(arguments.out, results, begun)
    draw_peers(arguments.out.with_suffix(".png"), results)
    if made.failed:
        sys.exit("\n".join(["these measurements failed:", *made.failed]))


if __name__ == "__main__":
    main()
