"""What a run pays for its log and its checkpoints, and what it would pay with others (pure, from what it has measured).

A failure costs loading a checkpoint and, on average, the replay of half an interval. The time to start a process is left out,
because it is the same whatever is logged. What is not known is None, and is named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..base.quantities import count, format_bytes, format_seconds, parse_seconds
from ..catalog import MeasuredRow
from .checkpoint_interval import best_interval, checkpoint_cost, observe_mtbf

MTBFS = {"1 h": 3600.0, "6 h": 21_600.0, "1 day": 86_400.0, "1 week": 604_800.0}
DISK_ENDURANCE_BYTES = 600 * 10**12  # A usual disk of 1 TB may be written to so much.
NO_TENSORS = ("inputs", "awaiting", "plain")  # phases of `log="auto"` in which steps are logged without tensors
_INTERVALS = ("auto", "1min", "10min", "1h")
_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Choice:
    """What a run pays with one setting of `log` and one of `checkpoint_every`.

    Attributes:
        log: "gradients", "weights" or "inputs".
        log_share: what logging costs, as a share of a step.
        bytes_a_day: bytes of log and checkpoints that are written in a day of training.
        disk_years: how long a disk of `DISK_ENDURANCE_BYTES` lasts.
        crash_seconds: time to load a checkpoint and to replay a whole interval.
        waste: by `MTBFS`, what the log, checkpoints and failures cost together, as a share of training.
        expected_waste: the same with the run's own mean time between two failures.
    """

    log: str
    every: str
    interval_seconds: float | None
    log_share: float | None
    checkpoint_share: float | None
    bytes_a_day: float | None
    disk_years: float | None
    crash_seconds: float | None
    waste: dict[str, float | None]
    expected_waste: float | None


@dataclass(frozen=True, slots=True)
class Advice:
    """What a run pays, and would pay.

    Attributes:
        best: the choice that wastes the least; None if too little is known.
        line: what to write in the script.
        unknown: what is not measured, one sentence each.
    """

    recorded: str
    now: Choice
    choices: tuple[Choice, ...]
    best: Choice | None
    line: str
    mtbf_seconds: float
    failures: int
    trained_seconds: float
    unknown: tuple[str, ...]

    def describe(self) -> dict[str, str]:
        """Return what is recorded, how often the run fails, and what wastes the least, in words."""
        seen = f"{count(self.failures, 'interruption')} in {format_seconds(self.trained_seconds)} of training"
        found = {"recorded": self.recorded, "failures": f"{seen}; one in {format_seconds(self.mtbf_seconds)} is expected"}
        if self.best is None:
            return found | {"best": f"not known; {self.line} measures what it depends on"}
        pays = _describe(self.now.expected_waste, _describe_share)
        waste = _describe(self.best.expected_waste, _describe_share)
        is_present = (self.best.log, self.best.interval_seconds) == (self.now.log, self.now.interval_seconds)
        if is_present:
            return found | {"best": f"{self.line}, as it is: the run wastes {waste}"}
        return found | {"best": f"{self.line}: the run wastes {waste}; it wastes {pays} now"}


def advise(row: MeasuredRow, state_bytes: int, at: float, *, world: int = 1) -> Advice:
    """Return what a run pays, and what it would pay.

    Args:
        at: time up to which the last process has trained, in seconds since 1970.
    """
    trained = row.trained_seconds + (max(0.0, at - row.since) if row.since else 0.0)
    mtbf = row.mtbf_seconds or observe_mtbf(trained, row.failures)
    tensors = row.tensors or "gradients"
    rungs = {log: _Rung.of(log, row, state_bytes) for log in ("gradients", "weights", "inputs")}
    choices = tuple(rung.choose(every, mtbf) for rung in rungs.values() for every in _INTERVALS)
    present = rungs["inputs" if row.phase in NO_TENSORS else tensors]
    now = present.choose("auto" if row.interval_seconds is None else "now", mtbf)
    allowed = (tensors,) if row.is_settled or world > 1 else (tensors, "inputs")
    candidates = [one for one in choices if one.every == "auto" and one.log in allowed]
    is_known = all(one.expected_waste is not None for one in candidates)
    best = min(candidates, key=lambda one: one.expected_waste or 0.0) if is_known else None
    log, every = best.log if best is not None else "auto", f"mtbf={row.mtbf_seconds:g}s" if row.mtbf_seconds else "auto"
    line = f'log="{log}", checkpoint_every="{every}"'
    unknown = _list_unknown(row, tensors)
    if len(allowed) == 1:
        why = "several processes train together" if world > 1 else "its steps do not repeat themselves, or lie outside of loops"
        unknown.append(f'log="inputs" is not for this run: {why}')
    recorded = describe_recording(row, now.crash_seconds)
    return Advice(recorded, replace(now, every="now"), choices, best, line, mtbf, row.failures, trained, tuple(unknown))


COLUMNS = (
    *("log", "checkpoints", "one in", "log\ncosts", "they\ncost", "writes\na day", "600 TB\nlast", "after\na crash"),
    *(f"waste at\n{name}" for name in MTBFS),
)


def list_choices(advice: Advice) -> list[tuple[str, ...]]:
    """Return what the run pays now, and what it would pay, in words for each of `COLUMNS`; nothing for what is not known."""
    return [describe_choice(one) for one in (advice.now, *advice.choices) if one.bytes_a_day is not None]


def describe_choice(choice: Choice) -> tuple[str, ...]:
    """Return a choice in words, for each of `COLUMNS`."""
    return (
        choice.log,
        choice.every,
        _describe(choice.interval_seconds, format_seconds),
        _describe(choice.log_share, _describe_share),
        _describe(choice.checkpoint_share, _describe_share),
        _describe(choice.bytes_a_day, lambda nbytes: format_bytes(int(nbytes))),
        _describe(choice.disk_years, lambda years: f"{years:.1f} years" if years < 100 else "> 100 years"),
        _describe(choice.crash_seconds, format_seconds),
        *(_describe(waste, _describe_share) for waste in choice.waste.values()),
    )


def _describe(value: float | None, words: Callable[[float], str]) -> str:
    return "-" if value is None else words(value)


def _describe_share(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def describe_recording(row: MeasuredRow, crash_seconds: float | None) -> str:
    """Return in words what is logged now, why, and what a crash costs at most."""
    tensors, has_none = row.tensors or "gradients", row.phase in NO_TENSORS
    longest = "" if crash_seconds is None else "less than 1 s" if crash_seconds < 1 else f"up to {crash_seconds:.0f} s"
    crash = f"; a crash costs {longest} of " if longest else ""
    other_bits = "" if row.is_repeatable else ", which gives other bits, since the arithmetic does not repeat itself"
    crash += (f"computing{other_bits}" if has_none else "redo") if crash else ""
    when = " from the next checkpoint on" if row.phase == "awaiting" else ""
    if row.is_settled:
        return f"{tensors} are logged{when} whatever they cost: training would not compute the same steps again{crash}"
    if row.phase in ("trial", "plain"):
        return f"what {tensors} cost is being measured"
    if row.cost is None or row.overhead is None:
        return f"{'no tensors' if has_none else tensors} are logged{when}{crash}"
    cost, allowed = f"{100 * max(row.cost, 0.0):.0f} %", f"{100 * row.overhead:g} %"
    if row.phase == "inputs":
        return f"{tensors} would cost {cost} of a step, and {allowed} are allowed: no tensors are logged{crash}"
    crash = "" if when else crash
    return f"{tensors} cost {cost} of a step, and {allowed} are allowed: they are logged{when}{crash}"


def _list_unknown(row: MeasuredRow, tensors: str) -> list[str]:
    other = "weights" if tensors == "gradients" else "gradients"
    missing = {
        "the time of a step (known at the second checkpoint, or when the run is closed)": not row.step_seconds,
        "what a checkpoint costs (known once a process has taken one)": not row.writing_seconds,
        f"{tensors}, since none were logged": not row.tensors,
        f'what {tensors} cost in a step (log="auto" tries it)': bool(row.tensors) and row.cost is None,
        f"{other}, since none were logged": True,
        "redo, since no crash was recovered from: the time of the optimizer's own step stands for it": bool(row.tensors)
        and not row.is_redo_measured,
        "loading a checkpoint: the time of writing one stands for it": not row.load_seconds,
    }
    return [f"not measured: {what}" for what, is_missing in missing.items() if is_missing]


@dataclass(frozen=True, slots=True)
class _Rung:
    """What is known of one setting of `log`. `replay_share` is the time of replay as a share of the time that training took."""

    log: str
    row: MeasuredRow
    state_bytes: int
    step_seconds: float | None
    log_share: float | None
    replay_share: float | None
    step_bytes: int | None

    @classmethod
    def of(cls, log: str, row: MeasuredRow, state_bytes: int) -> _Rung:
        share = max(row.cost or 0.0, 0.0)
        plain = row.step_seconds / (1.0 if row.phase in NO_TENSORS else 1.0 + share) or None
        if log == "inputs":
            return cls(log, row, state_bytes, plain, 0.0, 1.0, 0)
        if log != row.tensors or plain is None:
            return cls(log, row, state_bytes, plain, None, None, state_bytes if log == "weights" else None)
        seconds, cost = plain * (1.0 + share), None if row.cost is None else share
        return cls(log, row, state_bytes, seconds, cost, row.redo_seconds / seconds or None, row.step_bytes or None)

    def choose(self, every: str, mtbf_seconds: float) -> Choice:
        """Return what the rung costs with one setting of `checkpoint_every`; "now" is the interval that the run has."""
        interval, cost = self._find_interval(every, mtbf_seconds), self._checkpoint_seconds
        bytes_a_day: float | None = None
        if interval and self.step_seconds and self.step_bytes is not None:
            bytes_a_day = _DAY * (self.step_bytes / self.step_seconds + self.state_bytes / interval)
        return Choice(
            self.log,
            every,
            interval,
            self.log_share,
            cost / interval if interval and cost else None,
            bytes_a_day,
            DISK_ENDURANCE_BYTES / bytes_a_day / 365.25 if bytes_a_day else None,
            self._load_seconds + self.replay_share * interval if interval and self.replay_share else None,
            {name: self._find_waste(every, mtbf) for name, mtbf in MTBFS.items()},
            self._find_waste(every, mtbf_seconds),
        )

    @property
    def _checkpoint_seconds(self) -> float | None:
        return checkpoint_cost(self.row.stall_seconds, self.row.writing_seconds) or None

    @property
    def _load_seconds(self) -> float:
        return self.row.load_seconds or self.row.writing_seconds

    def _find_interval(self, every: str, mtbf_seconds: float) -> float | None:
        if every == "now":
            return self.row.interval_seconds or None
        if every != "auto":
            return parse_seconds(every, "checkpoint_every")
        if self._checkpoint_seconds is None or self.replay_share is None:
            return None
        interval = best_interval(self._checkpoint_seconds, mtbf_seconds, self.replay_share)
        if self.step_bytes and self.step_seconds and self.row.log_bytes_max:
            interval = min(interval, self.row.log_bytes_max * self.step_seconds / self.step_bytes)
        return interval

    def _find_waste(self, every: str, mtbf_seconds: float) -> float | None:
        interval, cost = self._find_interval(every, mtbf_seconds), self._checkpoint_seconds
        if interval is None or cost is None or self.log_share is None or self.replay_share is None:
            return None
        return self.log_share + cost / interval + (self._load_seconds + self.replay_share * interval / 2) / mtbf_seconds
