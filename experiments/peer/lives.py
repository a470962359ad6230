"""Processes that train, die and start again, the same for all peers; what that costs, and whether what comes back is right."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness import Child
from peer.adapters import PEERS, Adapter, clear_flash, digits

EVERY, CRASH, AFTER = 4, 14, 3  # steps between saves, done when the trainer dies, trained after that
FAULTS = ("flip", "full")  # a bit of the newest save is flipped; the disk is full from a step on
_DISK_BYTES = 1 << 30
_FILLED, _FILLED_DEAD = 9, 150  # steps done when the disk is full, and when the trainer dies
_SECONDS_MAX = 180.0  # of a life: one that has not ended then hangs
_GRACE_SECONDS = 2.0  # for helpers to notice that their trainer is dead


@dataclass(frozen=True, slots=True)
class Life:
    """What one process does.

    Attributes:
        way: of dying: "head" between two steps, "all" with all its helpers once what was saved is there, "random" while this
            step or the next goes on.
    """

    peer: str  # that saves; empty for none
    folder: Path  # of its saves
    width: int  # of the network
    every: int  # steps between saves
    until: int = 1_000_000  # steps that are done when it ends by itself; it looks at the state then
    crash: int | None = None  # steps that are done when it dies; None if it does not
    way: str = "head"
    fill: int | None = None  # fill the disk that the folder is on when so many steps are done
    looks: bool = False  # look at the state before each step, and not only at the first and the last


@dataclass(slots=True)
class Outcome:
    """What became of it.

    Attributes:
        heads: moments before a step: its number, seconds since the adapter was made, a digest where it was looked at.
    """

    heads: list[dict[str, Any]] = field(default_factory=list)
    exit: int = 0  # code, negative for a signal
    error: str = ""  # what it said when it gave up
    helpers: list[int] = field(default_factory=list)  # processes that it had when it died
    hung: bool = False  # it had to be ended


class Lab:
    """Tries faults on peers, with a network of a width, in a folder."""

    def __init__(self, folder: Path, width: int, seed: int) -> None:
        self._folder, self._width, self._chance, self._lives = folder, width, random.Random(seed), 0
        digits()  # read once, before any fork
        self.reference: list[str] = []

    def take_reference(self, steps: int) -> None:
        """Train without interruption and without any saving: what the state is before each step."""
        outcome = run(replace(self._life("", 1), until=steps, looks=True), self._chance)
        if outcome.exit:
            raise SystemExit(f"the uninterrupted run failed: {outcome.error}")
        self.reference = [head["digest"] for head in outcome.heads]

    def try_fault(self, peer: str, fault: str) -> list[dict[str, Any]]:
        """Return a row for each try; damage is tried on each kind of file. Only root can mount the disk that is full."""
        if fault == "flip":
            kinds = range(len(PEERS[peer].adapter.kinds))
            return [self._try(replace(self._life(peer, EVERY), crash=CRASH, way="all"), kind) for kind in kinds]
        if os.geteuid() != 0:
            return []
        return [self._try(replace(self._life(peer, EVERY), crash=_FILLED_DEAD, fill=_FILLED))]

    def crash_at(self, peer: str, every: int, crash: int) -> dict[str, Any]:
        """Kill once at a random moment of the step after so many."""
        return self._try(replace(self._life(peer, every), crash=crash, way="random"))

    def crashes_at(self, peer: str, every: int, crashes: Sequence[int]) -> dict[str, Any]:
        """Do the same at several steps, in a run of its own each; return what became of them all."""
        rows = [self.crash_at(peer, every, crash) for crash in crashes]
        return {"lost": [row["lost"] for row in rows if "lost" in row], "verdicts": Counter(row["verdict"] for row in rows)}

    def _life(self, peer: str, every: int) -> Life:
        self._lives += 1
        return Life(peer, self._folder / f"{peer}-{self._lives}", self._width, every)

    def _try(self, life: Life, damaged_kind: int | None = None) -> dict[str, Any]:
        """Let it die, damage it, start it again."""
        life.folder.mkdir(parents=True)
        helpers: list[int] = []
        try:
            with _small_disk(life.folder, is_wanted=life.fill is not None):
                return self._twice(life, damaged_kind, helpers)
        finally:
            kill(helpers)
            clean(life.folder)

    def _twice(self, life: Life, damaged_kind: int | None, helpers: list[int]) -> dict[str, Any]:
        dead = run(life, self._chance)
        helpers += dead.helpers
        if not dead.heads:  # no fault was tried: it is not to be judged by that
            return {"verdict": "did not start", "error": dead.error or f"exit {dead.exit}"}
        finished = int(dead.heads[-1]["head"])
        (life.folder / "filler").unlink(missing_ok=True)
        if damaged_kind is not None:
            files = PEERS[life.peer].adapter.newest(life.folder)
            if not files:
                return {"finished": finished, "verdict": "nothing on disk"}
            _flip(files[damaged_kind])
        again = run(replace(life, crash=None, fill=None, until=finished + AFTER), self._chance)
        helpers += again.helpers
        return self._score(dead, again, finished)

    def _score(self, dead: Outcome, again: Outcome, finished: int) -> dict[str, Any]:
        row: dict[str, Any] = {"finished": finished}
        if dead.hung or dead.exit != -signal.SIGKILL:
            row["died"] = "it hung" if dead.hung else dead.error or f"exit {dead.exit}"
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


def _flip(path: Path) -> None:
    """Flip a bit near the end of what is used: in a log, one that the newest steps need."""
    with open(path, "r+b") as file:
        file.seek(len(path.read_bytes().rstrip(b"\0")) * 15 // 16)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 0x10]))


def clean(folder: Path) -> None:
    """Delete a run, and what it has left elsewhere."""
    shutil.rmtree(folder, ignore_errors=True)
    clear_flash(folder)


@contextmanager
def _small_disk(folder: Path, *, is_wanted: bool) -> Iterator[None]:
    """Mount a small file system on a folder."""
    if not is_wanted:
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def run(life: Life, chance: random.Random) -> Outcome:
    """Start a life, kill it when its time has come, and wait until it has ended."""
    life.folder.mkdir(parents=True, exist_ok=True)
    child = Child(_live, life, is_fork=True)
    outcome, pid, end = Outcome(), child.process.pid, time.monotonic() + _SECONDS_MAX
    while child.process.is_alive() or child.pipe.poll():
        if time.monotonic() > end and not outcome.hung:
            outcome.hung = True
            outcome.helpers = descendants(pid)
            kill([pid, *outcome.helpers])
        event = child.receive() if child.pipe.poll(0.02) else {}
        if event is None:
            break
        outcome.error = event.get("error", outcome.error)
        if "head" in event:
            outcome.heads.append(event)
        if event.get("head") == life.crash is not None and life.way == "random":
            outcome.helpers = descendants(pid)
            time.sleep(chance.random() * event["seconds"] / len(outcome.heads))  # within a step of the mean length
            kill([pid])
        elif "is_ready_to_die" in event:
            outcome.helpers = descendants(pid)
            kill([pid, *outcome.helpers] if life.way == "all" else [pid])
    child.process.join()
    child.pipe.close()
    outcome.exit = child.process.exitcode or 0
    grace = time.monotonic() + _GRACE_SECONDS
    while any(map(_is_alive, outcome.helpers)) and time.monotonic() < grace:
        time.sleep(0.05)
    return outcome


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that these have."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def _is_alive(pid: int) -> bool:
    """True if it runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill(pids: list[int]) -> None:
    """Kill all of them by SIGKILL."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# The process that dies.


def _live(pipe: Any, life: Life) -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    try:
        _train(pipe, life)
    except BaseException as error:
        said = re.sub(r"/[^\s'\":]*/", "…/", f"{type(error).__name__}: {error}")  # whose folders these are matters to nobody
        pipe.send({"error": said[:600]})
        raise


def _train(pipe: Any, life: Life) -> None:
    make = PEERS[life.peer].adapter if life.peer else Adapter
    adapter = make(life.width, life.folder, life.every)
    begun = time.perf_counter()
    first = step = adapter.open()
    for batch in adapter.batches(life.until + 1):
        seconds = time.perf_counter() - begun
        seen = {"digest": adapter.job.digest(batch)} if life.looks or step in (first, life.until) else {}
        pipe.send({"head": step, "seconds": seconds, **seen})
        if step == life.until:
            break
        if step == life.fill:
            _fill(life.folder)
        if step == life.crash and life.way != "random":
            if life.way == "all":
                adapter.wait()
            pipe.send({"is_ready_to_die": True})
            signal.pause()
        adapter.job.step(*batch)
        step += 1
        if step % life.every == 0:
            adapter.save(step)
    adapter.close()


def _fill(folder: Path) -> None:
    """Fill the disk to the last byte."""
    with open(folder / "filler", "wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(b"\1" * size)
            except OSError:
                size //= 2
