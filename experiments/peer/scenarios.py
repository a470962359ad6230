"""Faults, the same for all peers, and what they cost: steps that are lost, and whether what comes back is right."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from peer.adapters import clear_flash
from peer.job import digits
from peer.life import Life
from peer.processes import can_mount, kill, small_disk
from peer.registry import PEERS
from peer.watch import Outcome, run

EVERY, CRASH, AFTER = 4, 14, 3  # steps between saves, done when the trainer dies, trained after that
_DISK_BYTES = 1 << 30
_FILLED, _FILLED_DEAD = 9, 150  # steps done when the disk is full, and when the trainer dies


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fault.

    Attributes:
        title: in tables.
        change: of the life: how the trainer dies.
        damage: what is done to the newest save before the restart.
        is_full: the disk is a small one, which root can mount, and full from a step on.
    """

    title: str
    change: dict[str, Any]
    damage: Callable[[Path], None] | None = None
    is_full: bool = False


def _flip(path: Path) -> None:
    """A byte near the end of what is used: in a log, one that the newest steps need."""
    with open(path, "r+b") as file:
        file.seek(_used(path) * 15 // 16)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 0x10]))


def _used(path: Path) -> int:
    return len(path.read_bytes().rstrip(b"\0"))


SCENARIOS: dict[str, Scenario] = {
    "between": Scenario("SIGKILL between steps", {"way": "head"}),
    "flip": Scenario("a bit of it flipped", {"way": "all", "settles": True}, _flip),
    "full": Scenario("disk full", {"way": "head", "fill": _FILLED, "crash": _FILLED_DEAD}, is_full=True),
}


class Lab:
    """Tries faults on peers, with a network of a width, in a folder."""

    def __init__(self, folder: Path, width: int, seed: int) -> None:
        self._folder, self._width, self._chance, self._lives = folder, width, random.Random(seed), 0
        digits()  # read once, before any fork
        self.reference: list[str] = []

    def take_reference(self, steps: int) -> None:
        """The uninterrupted run, without any saving: what the state is before each step."""
        outcome = run(replace(self._life("none", 1), until=steps, looks=True), self._chance)
        if outcome.exit:
            raise SystemExit(f"the uninterrupted run failed: {outcome.error}")
        self.reference = [head["digest"] for head in outcome.heads]

    def try_fault(self, peer: str, name: str) -> list[dict[str, Any]]:
        """A row for each try; damage is tried on each kind of file."""
        scenario = SCENARIOS[name]
        if scenario.is_full and not can_mount():
            return []
        life = replace(self._life(peer, EVERY), **{"crash": CRASH, **scenario.change})
        kinds = len(PEERS[peer].adapter.kinds) if scenario.damage else 1
        return [self._try(replace(life, folder=self._place(peer)), scenario, kind) for kind in range(kinds)]

    def crash_at(self, peer: str, every: int, crash: int) -> dict[str, Any]:
        """One SIGKILL at a random moment of the step after so many."""
        life = replace(self._life(peer, every), crash=crash, way="random")
        return self._try(life, SCENARIOS["between"], 0)

    def crashes_at(self, peer: str, every: int, crashes: Sequence[int]) -> dict[str, Any]:
        """The same at several steps, in a run of its own each; what became of them all."""
        rows = [self.crash_at(peer, every, crash) for crash in crashes]
        return {"lost": [row["lost"] for row in rows if "lost" in row], "verdicts": Counter(row["verdict"] for row in rows)}

    def _life(self, peer: str, every: int) -> Life:
        return Life(peer, self._place(peer), self._width, every, until=1_000_000)

    def _place(self, peer: str) -> Path:
        self._lives += 1
        return self._folder / f"{peer}-{self._lives}"

    def _try(self, life: Life, scenario: Scenario, kind: int) -> dict[str, Any]:
        """Die, be damaged, start again."""
        life.folder.mkdir(parents=True)
        orphans: list[int] = []
        try:
            with ExitStack() as mounts:
                if scenario.is_full:
                    mounts.enter_context(small_disk(life.folder, _DISK_BYTES))
                return self._twice(life, scenario, kind, orphans)
        finally:
            kill(orphans)
            clean(life.folder)

    def _twice(self, life: Life, scenario: Scenario, kind: int, orphans: list[int]) -> dict[str, Any]:
        damaged = None
        dead = run(life, self._chance)
        orphans += dead.orphans
        if not dead.heads:  # no fault was tried: it is not to be judged by that
            return {"verdict": "did not start", "error": dead.error or f"exit {dead.exit}"}
        (life.folder / "filler").unlink(missing_ok=True)
        if scenario.damage is not None:
            files = PEERS[life.peer].adapter.newest(life.folder)
            if not files:
                return {"finished": dead.finished, "verdict": "nothing on disk"}
            damaged = files[kind]
            scenario.damage(damaged)
        until = dead.finished + AFTER
        again = run(replace(life, crash=None, way="head", fill=None, until=until), self._chance)
        orphans += [*dead.orphans, *again.orphans]
        row = self._score(dead, again)
        return row if damaged is None else {**row, "damaged": damaged.suffix or damaged.name}

    def _score(self, dead: Outcome, again: Outcome) -> dict[str, Any]:
        finished = dead.finished
        row: dict[str, Any] = {"finished": finished, "orphans": len(dead.orphans), "helpers": len(dead.helpers)}
        if dead.exit != -9:
            row["died"] = dead.error or f"exit {dead.exit}"
        if dead.hung:
            row["died"] = "it hung"
        if again.hung or not again.heads or again.exit:
            return {**row, "verdict": "hung" if again.hung else "refused", "error": again.error or f"exit {again.exit}"}
        first, last = again.heads[0], again.heads[-1]
        seconds = next(head["seconds"] for head in again.heads if head["head"] >= finished)
        if last["head"] >= len(self.reference):  # a save that took long, beside steps that did not
            self.take_reference(2 * last["head"])
        is_exact = all(head["digest"] == self.reference[head["head"]] for head in (first, last))
        return {
            **row,
            "verdict": "exact" if is_exact else "wrong",
            "resumed": first["head"],
            "lost": max(0, finished - first["head"]),
            "seconds_back": first["seconds"],
            "seconds": seconds,
        }


def clean(folder: Path) -> None:
    """Delete a run, and what it has left elsewhere."""
    shutil.rmtree(folder, ignore_errors=True)
    clear_flash(folder)
