"""Names what of the script starts over at each start: found at run time, by comparing digests of plain values.

When a loop opens, digests are taken. At its boundaries 3, 10, 30, 100, ..., at ends of epochs and of the loop they are
compared: what existed when the loop opened, has another value and is not kept has a name, its first value and the line
that keeps it. What is found goes into the log with the boundary, so that the next process says it at once.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable
from typing import Any

from ...encoding.tree import Fixed
from ...recovery.report import Restart
from ..live_report import LiveReport
from .notes import describe_unset, with_notes
from .plain_values import UNKNOWN, Look, write_first
from .script_frames import Loops, loops_around, script_frames
from .script_values import Framework, Place, ScriptValues, read_values

_log = logging.getLogger("tranlogs")

_NAMED_MAX = 100
_UNSET_MAX = 20
_OPENED_MAX = 500  # digests of one loop in the log
_CLOCKS: tuple[Callable[[], float], ...] = (time.time, time.perf_counter, time.monotonic)
_IMPORTED = [clock() for clock in _CLOCKS]
_TIMES = re.compile(r"(^|_)time_|(time|elapsed|seconds?|secs|duration|took|clock|(^|_|\.)(t0|tic|toc|start))$")
_ROOT = re.compile(r"^\w*")

_born = dict[tuple[str, int], set[str]]()  # names that only bodies of loops have set, by file and first line of their function


class Restarts:
    """The values of one script that start over, of one run.

    Args:
        report: receives notes.
        framework: knows what the run keeps.

    Attributes:
        framework: as given; a trainer may put its own in its place.
        recorded: what a boundary stores; None if there is nothing.
    """

    def __init__(self, report: LiveReport, framework: Framework) -> None:
        self._report, self.framework = report, framework
        self._outside: Loops = frozenset()
        self._first: dict[str, bytes] | None = None  # digests when this process entered its first loop, finished or not
        self._kept = set[int]()  # ids of objects that the run has kept since the loop was opened
        self._number = 0
        self._opened: ScriptValues | None = None
        self._before = dict[str, tuple[bytes, str]]()  # digest and first value
        self._boundaries, self._next_look = 0, 3
        self._ending = ""
        self._named = dict[str, Restart]()
        self._unset: list[str] = []
        self._entered = dict[str, dict[str, bytes]]()  # digests with which each later loop was first entered
        self.recorded: Fixed | None = None

    @property
    def is_open(self) -> bool:
        """True while a loop is compared."""
        return self._opened is not None

    def note_start(self) -> None:
        """Leave out the loops that are running now: the run begins in their body."""
        self._guard(lambda: setattr(self, "_outside", loops_around(script_frames())))

    def resume(self, recorded: dict[str, Any] | None) -> None:
        """Name what the run has recorded, except what the script keeps by now."""
        if recorded is None:
            return
        self._unset, self._entered = recorded["unset"], recorded["entered"]
        remembered = set(self.framework.remembered())
        tracked = {type(one).__name__ for one, _ in self.framework.tracked()}
        found = [Restart(*one) for one in recorded["named"]]
        self._name(
            [
                one
                for one in found
                if one.name not in remembered and one.name.rpartition(".")[2] not in remembered
                if not (one.code == "track" and one.kind in tracked)
            ],
            is_logged=False,
        )

    @property
    def unset(self) -> str:
        """What a start of a finished run lacks, since the body of its loop does not run."""
        return describe_unset(self._unset)

    def open(self, number: int = 0, *, is_logged: bool = True) -> None:
        """Take the digests: a loop opens.

        Args:
            number: of the loop, among those of the run, from 0.
            is_logged: False if the report is printed after this, with what is found here.
        """
        self._guard(lambda: self._open(number, is_logged=is_logged))

    def pass_finished(self) -> None:
        """Note that the script comes to a finished loop. What was set before the first one is no change."""
        if self._first is None:
            self._guard(self._read_first)

    def _read_first(self) -> None:
        found = read_values(self.framework, self._outside, set())
        self._first = {place.key: digest for place, _, digest in found.values}

    def note_end(self, *, of_loop: bool) -> None:
        """Note that the next boundary ends an epoch, or the loop."""
        self._ending = "loop" if of_loop else "epoch"

    def look(self) -> None:
        """Compare the digests at a boundary, if it is one of those where that is done, before it is written."""
        if self._opened is None:
            return
        ending, self._ending = self._ending, ""
        self._boundaries += 1
        if (not ending and self._boundaries < self._next_look) or self._report.recheck == "pending":
            return
        while self._next_look <= self._boundaries:
            self._next_look = self._next_look * 10 // 3 if str(self._next_look)[0] == "3" else self._next_look * 3
        self._guard(lambda: self._compare(is_over=ending == "loop"))

    def close(self) -> None:
        """Compare for the last time, and keep nothing."""
        if self._opened is not None:
            self._guard(lambda: self._compare(is_over=False))
        self._opened = None
        self._before.clear()

    def _guard(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception:  # whatever a script is made of, its training goes on
            _log.debug("what starts over is not known", exc_info=True)

    def _open(self, number: int, *, is_logged: bool) -> None:
        self._kept.clear()
        opened = read_values(self.framework, self._outside, self._kept)
        born = _born.get(opened.code, set())
        self._before = {
            place.key: (digest, write_first(value))
            for place, value, digest in opened.values
            if not (place.key.startswith(opened.prefix) and _root(place) in born)
        }
        self._opened, self._number, self._boundaries, self._next_look = ScriptValues([], *_rest(opened)), number, 0, 3
        if not number:
            self._first = self._first or {key: digest for key, (digest, _) in self._before.items()}
            return
        now = {key: digest for key, (digest, _) in list(self._before.items())[:_OPENED_MAX]}
        entered = self._entered.setdefault(str(number), now)
        if entered is now:
            self._record()
            return
        places = {place.key: place for place, _, _ in opened.values}
        changed = [
            key
            for key, digest in now.items()
            if entered.get(key, digest) != digest and (self._first or {}).get(key) != digest and not key.startswith("kept:")
        ]
        variable = self.framework.variable
        code = "again" if variable == "remember" else f"again {variable}"
        self._name([Restart(code, places[key].name, UNKNOWN) for key in changed if places[key].name], is_logged=is_logged)

    def _compare(self, *, is_over: bool) -> None:
        now = read_values(self.framework, self._outside, self._kept, self._before)
        kept = {place.key: digest for place, _, digest in now.values if place.key.startswith("kept:")}
        copies = {(self._before[key][0], digest) for key, digest in kept.items() if key in self._before}
        states: list[tuple[int, set[str], set[bytes]]] | None = None
        found = list[Restart]()
        for place, value, digest in now.values:
            before, first = self._before.get(place.key, (digest, ""))
            if digest == before or place.key in kept or place.name in self._named or (before, digest) in copies:
                continue
            if type(value) is float and _is_of_clock(place.name, first, value):
                continue
            if states is None:
                states = [(id(one), *self._read_state(read)) for one, read in self.framework.tracked()]
            attribute = place.name.rpartition(".")[2]
            if any(
                (digest in digests and attribute in names)
                or (place.tracked == one and (digest in digests or attribute in names))
                for one, names, digests in states
            ):
                continue
            found.append(self._restart(place, first))
        self._name(found)
        if is_over and self._opened is not None and now.code == self._opened.code:
            names = sorted(name for name in now.names - self._opened.names if not name.startswith("_"))
            _born.setdefault(now.code, set()).update(names)
            self._unset = names[:_UNSET_MAX] or self._unset
            self._record()
        if is_over:  # what follows the loop runs again at each start
            self._opened = None

    def _read_state(self, read: Callable[[], Any]) -> tuple[set[str], set[bytes]]:
        """Return the names and the digests of the values that a state of a tracked object has."""
        look, names, digests = Look(self.framework.read_array), set[str](), set[bytes]()
        waiting: list[Any] = [read()]
        while waiting:
            value = waiting.pop()
            if (digest := look.digest(value)) is not None:
                digests.add(digest)
            if isinstance(value, dict):
                names |= {key for key in value if isinstance(key, str)} | {f"_{key}" for key in value}
                waiting += value.values()
            elif isinstance(value, (list, tuple)) and len(value) < 20:
                waiting += value
        return names, digests

    def _restart(self, place: Place, first: str) -> Restart:
        framework = self.framework
        if place.tracked and framework.thing == "track":
            return Restart("extra" if place.is_module else "state", place.name, first, place.owner, place.kind, True)
        code = framework.thing if place.owner else framework.variable
        return Restart(code, place.name, first, place.owner, place.kind, place.has_state)

    def _name(self, found: list[Restart], *, is_logged: bool = True) -> None:
        found = list({one.name: one for one in reversed(found) if one.name not in self._named}.values())[::-1]
        found = found[: max(_NAMED_MAX - len(self._named), 0)]
        if found:
            self._named |= {one.name: one for one in found}
            self._report.name_restarts(with_notes(found), is_logged=is_logged)
            self._record()

    def _record(self) -> None:
        named = [[one.code, one.name, one.first, one.owner, one.kind, one.has_state] for one in self._named.values()]
        self.recorded = Fixed({"named": named, "unset": self._unset, "entered": {**self._entered}})


def _rest(opened: ScriptValues) -> tuple[set[str], tuple[str, int], str]:
    return opened.names, opened.code, opened.prefix


def _root(place: Place) -> str:
    found = _ROOT.match(place.name)
    return found.group() if found is not None else place.name


def _is_of_clock(name: str, first: str, value: float) -> bool:
    """Return True for a number that a clock has given before the loop and in it, or that is called like a time."""
    try:
        before = float(first)
    except ValueError:
        before = math.nan
    is_read = any(then <= before < value <= clock() for then, clock in zip(_IMPORTED, _CLOCKS, strict=True))
    return is_read or _TIMES.search(name) is not None
