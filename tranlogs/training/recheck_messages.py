"""Messages of a recheck: the difference, its usual cause, and the line to add."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..base.notes import Note
from ..base.quantities import count
from ..recovery.history import LastUnit
from .comparison import Difference
from .restarts import is_called_like_a_time

PENDING = Note(
    "proof-pending", "the newest unit before the crash is being computed again, to prove that this script resumes exactly"
)
NO_UNIT = "the log does not hold the newest one with a step, or a timeline began behind it"
NOTHING_RECORDED = "nothing was recorded behind the newest checkpoint"
SHOWS_NO_TENSORS = 'the log has the tensors of the newest steps, and this script (log="inputs") shows none'
CHANGED_BEFORE = "the script had changed weights, hyper-parameters or other state before its loop, in that unit"

_NAMES_MAX = 5
_SETTING = re.compile(r"hyper\[(?P<group>\d+)\]\.(?P<name>.+)")
_NAMESPACE = "remember(...)"  # the name under which the namespace of a loop is tracked
_REMEMBERED = "tracked.remember(...).values."
_OBJECTS = "tracked.remember(...).objects."
REMEMBERED_NAMES = "tracked.remember(...).given"  # the names that the script of a process gives: no state
_FIRST_NAME = re.compile(r"\w+")  # of the path below it
# A larger ratio is another batch or another state, and not another order of additions: some thousand times the rounding error.
_ROUNDING_MAX = {"float64": 1e-12, "float32": 5e-4, "float16": 3e-2, "bfloat16": 1e-1}

CAUSES = {
    "gradients": "The loop had other data or another state: keep what it takes from batch to batch (a batch fetched ahead, a "
    "counter, an environment) in optimizer.remember(name=...), and count batches by epoch.enumerate()",
    "weights": "Something else than the optimizer's step writes to them: optimizer.track(name=...) what decides over it",
    "settings": "The script sets it from something that starts anew: optimizer.track(scheduler=...), or a counter in "
    "optimizer.remember(name=...)",
    "state": "It depends on something that starts anew: optimizer.remember(name=...), or track(name=...) what has a state_dict",
    "order": "The loop decides by something that starts anew: optimizer.remember(name=...), or epoch.enumerate() for batches",
}
_TIME = "All else is equal: a measured time is never the same twice; any other number means that another state came back"
_MEASURED = "A time that the script measures is never the same twice: leave out of track(...) what measures times"
_ROUNDING = (
    "This is mostly rounding: torch.use_deterministic_algorithms(True) or "
    "tf.config.experimental.enable_op_determinism() makes the arithmetic repeat itself. If it stays, a number starts over: "
    "optimizer.remember(name=...)"
)

_OTHER_BITS = (
    "The arithmetic here does not repeat itself; with torch.use_deterministic_algorithms(True) it does. If it still differs, "
    "the loop had other data or another state: optimizer.remember(name=...)"
)


def describe_difference(
    difference: Difference,
    units: str = "batch",
    causes: Mapping[str, str] = CAUSES,
    starts_over: Sequence[str] = (),
    recomputed: LastUnit | None = None,
    *,
    is_repeatable: bool = True,
) -> Note:
    """Return the note on what differs, what usually causes that, and what to do.

    Args:
        difference: the difference.
        units: what a unit is to the user.
        causes: usual causes and what to do, by kind of difference.
        starts_over: names of values of the script that start over.
        recomputed: the steps that are computed again because the log has no tensors of them; None if it has them.
        is_repeatable: False if the arithmetic of a step gives other bits each time.
    """
    name = difference.name.removeprefix("grad/").removeprefix("param/")
    setting = _SETTING.fullmatch(name)
    what = f"the gradient of {name}" if difference.kind == "gradients" else name
    if setting is not None:
        what = f"{setting['name']} of parameter group {setting['group']}"
    kind = "gradients" if recomputed is not None and difference.kind == "weights" else difference.kind  # none are in the log
    is_measured = difference.kind == "state" and any(map(is_called_like_a_time, name.removeprefix("tracked.").split(".")))
    cause = _ROUNDING if is_rounding(difference) else _TIME if difference.may_be_time else causes[kind]
    if recomputed is not None and difference.kind == "weights" and not is_repeatable:
        cause = _OTHER_BITS
    if is_measured and not difference.may_be_time:
        cause = _MEASURED
    elif starts_over:
        more = " and others" if len(starts_over) > _NAMES_MAX else ""
        cause = f"It may be what starts over here: {', '.join(starts_over[:_NAMES_MAX])}{more}. Or else: {cause}"
    remembered = difference.name.partition(_REMEMBERED)[2]
    if remembered:
        what = f"state.{remembered}"
        cause = _tell_remembered(remembered, may_be_time=difference.ratio is not None, is_outside=difference.is_outside)
    if recomputed is not None:
        then = f"Training goes on with what the loop computes now: {_count_others(recomputed, difference)} others than before"
        text = f"steps that were finished before the crash were computed again, and at step {difference.step} {what} "
        return Note("different", f"{text}{difference.text}", f"{cause}. {then} the crash")
    text = f"the last {units} before the crash (step {difference.step}) was computed again, and {what} {difference.text}"
    return Note("different", text, f"{cause}. The recorded state holds, so no finished step is lost")


def _count_others(recomputed: LastUnit, difference: Difference) -> str:
    """Return how many finished steps are not what they were, with the verb: those that the log tells of."""
    others = max(recomputed.end.step - difference.step + 1, 1)
    return f"at least {count(others, 'finished step')} {'is' if others == 1 else 'are'}"


def _tell_remembered(path: str, *, may_be_time: bool, is_outside: bool) -> str:
    """Return why a remembered value differs, and what to do: it comes back, so something else has set it."""
    name = _FIRST_NAME.match(path)
    key = path if name is None else name[0]
    cause = (
        "It is remembered, so it came back. The script assigns it after recover(), or computes it from something that starts "
        "over, or it is a part of a parameter: give its first value to "
        f"optimizer.remember({key}=...) alone, and remember what it is computed from, or a clone of the parameter"
    )
    if is_outside:
        cause = (
            "It is remembered, and a unit of a loop of the script's own ends at the forward pass of the next turn: after a "
            f"crash the loop changes once more what it changes before that pass. Change state.{key} after optimizer.step(), "
            f"or take turns from optimizer.steps(until=...). If the script sets it after recover(), give its first value to "
            f"optimizer.remember({key}=...) alone"
        )
    if may_be_time:
        cause += f". A time that the script measures is never the same twice: give it to optimizer.remember_times({key}=...)"
    return cause


def describe_steps(first: int, last: int) -> str:
    """Return the words for some steps: "step 7", "steps 7 to 12"."""
    return f"step {last}" if first >= last else f"steps {first} to {last}"


def describe_recomputing(unit: LastUnit) -> Note:
    """Return the note on steps that are being computed again, because the log has no tensors of them."""
    steps = describe_steps(unit.start.step + 1, unit.end.step)
    text = f"{steps}, finished before the crash, {_verb(unit)} being computed again and compared with the log"
    return Note("proof-pending", text)


def _verb(unit: LastUnit) -> str:
    return "is" if unit.end.step <= unit.start.step + 1 else "are"


def describe_equal(step: int, ranks: int = 1, times: Collection[str] = (), *, first: int | None = None) -> str:
    """Return a text on a unit that is equal to its record on all ranks. It claims no more than was compared.

    Args:
        step: the step.
        ranks: number of processes that have computed it.
        times: what was not compared, since the script measures it.
        first: the first of several steps that were computed again because the log has no tensors of them.
    """
    where = f" on all {ranks} ranks" if ranks > 1 else ""
    but = f" (without the times {', '.join(sorted(times))})" if times else ""
    if first is not None:
        return (
            f"{describe_steps(first, step)} {'was' if first == step else 'were'} computed again{where}: the weights and all "
            f"that the run keeps{but} are equal to those before the crash, bit for bit"
        )
    return (
        f"step {step} was computed again{where}: its gradients, the weights and all that the run keeps{but} are equal to those "
        "before the crash, bit for bit"
    )


def name_missing_unit(*, is_logged: bool) -> str:
    """Return why there is no unit to be computed again, as a clause.

    Args:
        is_logged: True if all steps are logged with their tensors.
    """
    return NO_UNIT if is_logged else NOTHING_RECORDED


def describe_not_computed(why: str) -> Note:
    """Return the note on a resume after which no unit is computed again.

    Args:
        why: the reason, as a clause.
    """
    return Note("no-proof", f"no unit is computed again, because {why}: that the script's loop resumes exactly is not proven")


def describe_superseded(unit: LastUnit, where: str = "") -> Note:
    """Return the note on a recorded unit that is trained anew, because the script has changed the state before it.

    Args:
        unit: the unit.
        where: " on rank 1"; empty for a process that trains alone.
    """
    steps = describe_steps(unit.start.step + 1, unit.end.step)
    return Note(
        "trained-again",
        f"{steps} {_verb(unit)} trained again with what the script has changed since recover(){where}, in place of the record "
        "that was made before the crash: that the script's loop resumes exactly is not proven",
    )


def describe_unfinished(run: Path, unit: LastUnit) -> Note:
    """Return the note on a script that ended before its loop had computed the unit."""
    first = unit.start.step + 1 if unit.is_covered else unit.end.step
    return Note(
        "unfinished",
        f"the script ended before its loop had computed {describe_steps(first, unit.end.step)} again, so what it has used or "
        f"saved is the state of step {unit.start.step}",
        "The log has no tensors of these steps: only the loop can compute them"
        if unit.is_covered
        else "The log has the newest step: a script that does not train (an evaluation) recovers it with recheck=False, and "
        f"`tranlogs replay {run} --out FILE` writes it to a file",
    )


def path_of_remembered(name: str) -> str:
    """Return the path of a remembered attribute in the body of a boundary."""
    return _REMEMBERED + name


def find_strangers(recorded: Mapping[str, Any], tracked: Mapping[str, Any]) -> set[str]:
    """Return the paths, in the body of a boundary, of tracked objects and remembered attributes that one of both lacks.

    Args:
        recorded: states of the tracked objects of a boundary, by name.
        tracked: the objects that the script tracks, by name.
    """
    found = {f"tracked.{name}" for name in recorded.keys() ^ tracked.keys()}
    if _NAMESPACE in recorded and _NAMESPACE in tracked:
        for names in tracked[_NAMESPACE].names_apart(recorded[_NAMESPACE]):
            found.update(part + name for name in names for part in (_REMEMBERED, _OBJECTS))
    return found


def is_rounding(difference: Difference) -> bool:
    """Return True if the two computations differ by so little that it can only be rounding."""
    most = _ROUNDING_MAX.get(difference.dtype, _ROUNDING_MAX["float32"])
    return difference.kind == "gradients" and difference.ratio is not None and difference.ratio < most
