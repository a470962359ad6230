"""Names what of the script starts over at each start: found at run time, by comparing digests of plain values.

When a loop opens, digests are taken. At its boundaries 3, 10, 30, 100, ..., at ends of some epochs and of the loop they are
compared: what existed when the loop opened, has another value and is not kept has a name, its first value and the line
that keeps it. What is found goes into the log with the boundary, so that the next process says it at once. What a turn of the
loop has set before a pass over the data (the sum of an epoch) is compared within passes 1, 3, 10, ...: it misses what came
before where the pass is entered in its middle.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from ...encoding.tree import Fixed
from ...recovery.report import Restart
from ..live_report import LiveReport
from .notes import describe_unset, with_notes
from .plain_values import ATOMS, UNKNOWN, Look, is_generator, write_first
from .script_frames import Loops, loops_around, script_frames
from .script_values import VERSION, Framework, Place, ScriptValues, changed_globals, read_values

_log = logging.getLogger("tranlogs")

_NAMED_MAX = 100
_UNSET_MAX = 20
_OPENED_MAX = 500  # digests of one loop in the log
_ITEMS_MAX = 64  # of a container that may hold times
_CLOCKS: tuple[Callable[[], float], ...] = (time.time, time.perf_counter, time.monotonic)
_IMPORTED = [clock() for clock in _CLOCKS]
_TIME = re.compile(  # in a name, of which each part between dots is looked at, in lower case with a "_" before each word
    r"_time_|_(times?|timings?|timer|elapsed|secs|seconds|durations?|took|(stop)?(clock|watch)|throughputs?|fps|mfu"
    r"|per_s(ec|econd)?)$"
)
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")  # where a word begins in a name like "EpochTimer"
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
        self._undone = dict[str, tuple[bytes, int]]()  # digests and lengths before what code between loops has done was undone
        self._kept = set[int]()  # ids of objects that the run has kept since the loop was opened
        self._opened: ScriptValues | None = None
        self._looked_into = set[str]()  # keys of places where the loop, or the running pass, was opened
        self._before = dict[str, tuple[bytes, str]]()  # digest and first value where the loop was opened
        self._in_pass = dict[str, tuple[bytes, str]]()  # and of what its turn had set where the running pass was opened
        self._boundaries = self._passes = 0
        self._looks = _numbers_of_looks()
        self._next_look = next(self._looks)
        self._pass_code, self._pass_look = "", 0
        self._ending, self._epochs = "", 0
        self._named = dict[str, Restart]()
        self._number = 0  # of the loop that is open, from 0
        self._unset = dict[str, list[str]]()  # by loop: names that only its body sets, and that are read behind it
        self._left = dict[str, list[str]]()  # by loop: others that each turn sets anew, and that are read behind it
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
        self._unset, self._left, self._entered = recorded["unset"], recorded["left"], recorded["entered"]
        remembered = set(self.framework.remembered())
        tracked = {type(one).__name__ for one, _ in self.framework.tracked()}
        found = [Restart(*one) for one in recorded["named"]]
        self._name(
            [
                one
                for one in found
                if one.name not in remembered and one.name.rpartition(".")[2] not in remembered
                if not (one.code.endswith("track") and one.kind in tracked)
            ],
            is_logged=False,
        )

    @property
    def unset(self) -> str:
        """What a start of a finished run lacks, since the body of its loop does not run."""
        return describe_unset([name for names in self._unset.values() for name in names])

    def open(self, number: int = 0, *, is_logged: bool = True) -> None:
        """Take the digests: a loop opens.

        Args:
            number: of the loop, among those of the run, from 0.
            is_logged: False if the report is printed after this, with what is found here.
        """
        self._guard(lambda: self._open(number, is_logged=is_logged))

    def pass_finished(self, number: int) -> None:
        """Note that the script passes a finished loop, whose body does not run. What was set before the first one is no change.

        Args:
            number: of the loop, among those of the run, from 0.
        """
        if self._first is None:
            self._guard(self._read_first)
        self._name_left(number)

    def _name_left(self, number: int) -> None:
        """Name what code behind a loop of `LoggedOptimizer` reads of it: the body of a finished loop does not run again."""
        report = self._report.current
        unset = () if report is not None and report.end else self._unset.get(str(number), ())  # else the report names them
        left = self._left.get(str(number), ())
        if self.framework.variable == "remember":
            self._name([Restart("left remember", name, UNKNOWN) for name in (*unset, *left)])

    def _read_first(self) -> None:
        values = read_values(self.framework, self._outside, set(), opens="loop").values
        self._first = {place.key: digest for place, _, digest in values}

    def note_undoing(self) -> None:
        """Take the digests of what code between loops has set, which is going to be undone."""
        self._guard(self._note_undoing)

    def _note_undoing(self) -> None:
        values = read_values(self.framework, self._outside, set(), opens="loop").values
        self._undone = {place.key: (digest, _count(value)) for place, value, digest in values}

    def open_pass(self, *, has_epochs: bool) -> None:
        """Take the digests of what the turn of the loop has set before a pass over the data, which opens now: sums of an epoch.

        Args:
            has_epochs: True if the loop is one of `epochs()`.
        """
        self._in_pass = {}
        if self._opened is not None:
            self._passes += 1
            if _is_chosen(self._passes):
                self._guard(lambda: self._open_pass("epoch" if has_epochs else "pass"))

    def _open_pass(self, code: str) -> None:
        assert self._opened is not None
        opened, outside = self._opened, self._outside | self._opened.around
        found = read_values(self.framework, outside, self._kept | opened.seen, opens="pass")
        self._looked_into = opened.looked_into | found.looked_into
        self._in_pass = _first_of(
            one for one in found.values if one[0].key not in self._before or one[0].key.startswith("kept:")
        )
        self._pass_code, self._pass_look = code, self._boundaries + 2

    def note_end(self, *, of_loop: bool) -> None:
        """Note that the next boundary ends an epoch, or the loop. Of the epochs some are looked at: they may be short."""
        self._epochs += 1
        self._ending = "loop" if of_loop else "epoch" if self._epochs <= 10 or _is_chosen(self._epochs) else ""

    def look(self) -> None:
        """Compare the digests at a boundary, if it is one of those where that is done, before it is written."""
        if self._opened is None:
            return
        ending, self._ending = self._ending, ""
        self._boundaries += 1
        is_due = ending or self._boundaries in (self._next_look, self._pass_look)
        if self._boundaries == self._next_look:
            self._next_look = next(self._looks)
        if is_due and self._report.recheck != "pending":
            self._guard(lambda: self._compare(ending))
        elif ending == "loop":
            self._guard(self._end_loop)

    def leave(self) -> None:
        """Note that a loop ends. If nothing of it was left, what follows it is not compared."""
        if self._opened is not None and not self._boundaries:
            self._opened = None

    def close(self) -> None:
        """Compare for the last time, and keep nothing."""
        if self._opened is not None:
            self._guard(lambda: self._compare("run"))
        self._opened = None
        self._before.clear()

    def _guard(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception:  # whatever a script is made of, its training goes on
            _log.debug("what starts over is not known", exc_info=True)

    def _open(self, number: int, *, is_logged: bool) -> None:
        self._kept.clear()
        self._number = number
        opened = read_values(self.framework, self._outside, self._kept, opens="loop")
        born = _born.get(opened.code, set())
        values = [one for one in opened.values if not (one[0].key.startswith(opened.prefix) and _root(one[0]) in born)]
        self._before, self._in_pass, self._looked_into = _first_of(values), {}, opened.looked_into
        seen = opened.seen | {id(value) for _, value, _ in values if not isinstance(value, (*ATOMS, str, bytes))}
        self._opened = replace(opened, values=[], seen=seen)
        self._boundaries = self._epochs = self._passes = self._pass_look = 0
        self._looks = _numbers_of_looks()
        self._next_look = next(self._looks)
        if not number:
            self._first = self._first or {key: digest for key, (digest, _) in self._before.items()}
            return
        self._name_left(number - 1)
        plain = [(key, digest) for key, (digest, _) in self._before.items() if not digest.startswith(VERSION)]
        digests = dict(plain[:_OPENED_MAX])
        entered = self._entered.setdefault(str(number), digests)
        if entered is digests:
            self._record()
            return
        first, code = self._first or {}, f"again {self.framework.variable}"
        undone, self._undone = self._undone, {}
        changed = [
            Restart(code, place.name, UNKNOWN)
            for place, value, now in values
            for digest, count in (undone.get(place.key, (now, _count(value))),)
            if entered.get(place.key, digest) != digest and first.get(place.key) != digest and place.name
            if not place.tracked and not _is_of_clock(place, None, value)  # The run has put back what is tracked.
            # The run has put a remembered value back. What was made of it before may be wrong: a data set, of its elements.
            if not place.key.startswith("kept:") or count == _count(value) > 1
        ]
        self._name(changed, is_logged=is_logged)

    def _compare(self, ending: str) -> None:
        assert self._opened is not None
        look = Look(self.framework.read_array)
        changed = [(place, value, look.digest(value) or b"") for place, value in changed_globals(self._opened.imported)]
        known = self._before | _first_of(changed) | ({} if ending else self._in_pass)
        digests = {key: digest for key, (digest, _) in known.items()}
        now = read_values(self.framework, self._outside, self._kept, digests, self._looked_into)
        kept = {place.key: digest for place, _, digest in now.values if place.key.startswith("kept:")}
        copies = {(one[key][0], digest) for one in (self._before, known) for key, digest in kept.items() if key in one}
        states: dict[int, _State] | None = None
        found = list[Restart]()
        for place, value, digest in now.values:
            before, first = known.get(place.key, (digest, ""))
            if digest == before or place.key in kept or place.name in self._named or (before, digest) in copies:
                continue
            if _is_of_clock(place, first, value):
                continue
            if states is None:
                states = {id(one): self._read_state(one, read) for one, read in self.framework.tracked()}
                for other in (other for other, _, _ in now.values if other.tracked in states):
                    states[other.tracked].attributes.add(_attribute(other))
            if is_generator(value):
                is_kept = any(digest == other for state in states.values() for _, other in state.digests)
            else:
                is_kept = any(state.has(place, digest, is_own=place.tracked == one) for one, state in states.items())
            if not is_kept:
                found.append(self._restart(place, first, of_pass=place.key in self._in_pass and place.key not in self._before))
        self._name(found)
        if ending == "loop":
            self._end_loop(now)

    def _end_loop(self, now: ScriptValues | None = None) -> None:
        """Note which names only the body of the loop has set. What follows the loop runs again at each start."""
        now = now or read_values(self.framework, self._outside, self._kept, {}, ())
        if self._opened is not None and now.code == self._opened.code:
            names = sorted(name for name in now.names - self._opened.names if not name.startswith("_"))
            _born.setdefault(now.code, set()).update(names)
            number, anew = str(self._number), sorted(now.set_by_turn & self._opened.names & now.read_later)
            self._unset[number] = [name for name in names if name in now.read_later][:_UNSET_MAX] or self._unset.get(number, [])
            self._left[number] = anew[:_UNSET_MAX] or self._left.get(number, [])
            self._record()
        self._opened = None

    def _read_state(self, thing: Any, read: Callable[[], Any]) -> _State:
        look, found, state = Look(self.framework.read_array), _State(), read()
        waiting: list[tuple[str, Any, bool]] = [("", state, False)]
        while waiting:
            key, value, is_of_part = waiting.pop()
            if (digest := look.digest(value)) is not None:
                found.digests.add((key, digest))
                if not is_of_part:
                    found.own.add((key, digest))
            if isinstance(value, dict):
                waiting += [
                    (str(name), one, is_of_part or (value is state and _has_part(thing, str(name))))
                    for name, one in value.items()
                ]
            elif isinstance(value, (list, tuple)) and len(value) < 20:
                waiting += [(key, one, is_of_part) for one in value]
        return found

    def _restart(self, place: Place, first: str, *, of_pass: bool) -> Restart:
        framework = self.framework
        code = framework.thing if place.owner else framework.variable
        if place.tracked and framework.thing == "track":
            code = "buffer" if place.name == place.owner else "extra" if place.is_module else "state"
        code = f"{self._pass_code} {code}" if of_pass else code
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
        self.recorded = Fixed({"named": named, "unset": {**self._unset}, "left": {**self._left}, "entered": {**self._entered}})


@dataclass(slots=True)
class _State:
    """What the state of a tracked object has.

    Attributes:
        digests: of its values, each with the key under which it stands.
        own: those that are not in the state of a part of the object, which has a `state_dict` of its own.
        attributes: names of the attributes of the object, and of objects in it.
    """

    digests: set[tuple[str, bytes]] = field(default_factory=set)
    own: set[tuple[str, bytes]] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)

    def has(self, place: Place, digest: bytes, *, is_own: bool) -> bool:
        """Return True if the state has the value of an attribute: by its name, or under a name that no other attribute has."""
        names = {_attribute(place), _attribute(place).removeprefix("_")}
        if not is_own:
            return any((name, digest) in self.digests for name in names)
        digests = self.own if place.is_direct else self.digests
        return bool(names & {key for key, _ in digests}) or any(
            one == digest and key not in self.attributes and f"_{key}" not in self.attributes for key, one in digests
        )


def _has_part(thing: Any, name: str) -> bool:
    """Return True if an attribute of an object has a state of its own, which stands under this key in the object's."""
    found = vars(thing) if hasattr(thing, "__dict__") else {}
    return any(hasattr(found.get(attribute), "state_dict") for attribute in (name, f"_{name}"))


def _first_of(values: Iterable[tuple[Place, Any, bytes]]) -> dict[str, tuple[bytes, str]]:
    """Return digests and first values by key. A generator is remembered as it is."""
    return {
        place.key: (digest, "" if digest.startswith(VERSION) else place.name if is_generator(value) else write_first(value))
        for place, value, digest in values
    }


def _is_chosen(number: int) -> bool:
    """Return True for 1, 3, 10, 30, 100, ..."""
    return str(number).rstrip("0") in ("1", "3")


def _numbers_of_looks() -> Iterator[int]:
    """Yield 3, 10, 30, 100, ..."""
    number = 3
    while True:
        yield number
        number = number // 3 * 10 if str(number)[0] == "3" else number * 3


def _count(value: Any) -> int:
    """Return the number of elements of an array or a list; 0 of any other value."""
    if isinstance(value, (list, tuple)):
        return len(value)
    shape = getattr(value, "shape", None)
    return math.prod(shape) if isinstance(shape, tuple) and all(isinstance(size, int) for size in shape) else 0


def _attribute(place: Place) -> str:
    return place.name.rpartition(".")[2]


def _root(place: Place) -> str:
    found = _ROOT.match(place.name)
    return found.group() if found is not None else place.name


def _is_of_clock(place: Place, first: str | None, value: Any) -> bool:
    """Return True for numbers that a clock has given, also before the loop if it is known, or that are called like a time."""
    parts = [re.sub(r"\[.*?\]", "", part) for part in place.name.split(".")]
    if place.owner and type(value) in (int, float) and any(is_called_like_a_time(one) for one in (place.owner, place.kind)):
        return True  # the count of a meter of times, too
    numbers = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, deque)) else (value,)
    if not all(type(one) is float for one in islice(numbers, _ITEMS_MAX)):
        return False
    if any(map(is_called_like_a_time, (*parts, place.kind))):
        return True
    if parts[-1].lower().endswith(("runtime", "walltime", "uptime")):
        return True
    try:
        before = -math.inf if first is None else float(first)
    except ValueError:
        return False
    if type(value) is not float:
        return False
    return _IMPORTED[0] <= value <= time.time() or any(
        value <= clock() and (then <= value if first is None else then <= before < value)
        for then, clock in zip(_IMPORTED, _CLOCKS, strict=True)
    )


def is_called_like_a_time(name: str) -> bool:
    """Return True for a name such as `batch_time`, of what a script measures."""
    return _TIME.search("_" + _WORD.sub("_", name).lower()) is not None
