"""The note on what starts over at each start, and the lines that let the run keep it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...recovery.report import OVER_AT_EACH_START

_NAMES_MAX = 20  # in the first part of the note
_TO_KEEP = " To keep "
_NEXT_LINE = re.compile(r"; (?=give \w+ state_dict|optimizer\.track\(|make |count )")
_NO_NAME = re.compile(r"\W+")  # what a keyword cannot have
_FILL_IN = "..."  # what a variable begins with, where it is not known
_SUBJECT = re.compile(r"(?:^|; )([^;]+?) (?:is a variable of|are variables of|starts? over at each start:)")


@dataclass(frozen=True, slots=True)
class UnkeptVariable:
    """A variable that a loop carries from turn to turn, and that the run does not keep.

    Attributes:
        name: the variable, or the attribute of one ("self.best").
        begins_with: what it begins with, as the source has it; None if that is not simple. "..." if it has no name where the
            optimizer is made, either.
        within: the function that carries it from call to call; "" if the loop itself does.
    """

    name: str
    begins_with: str | None = None
    within: str = ""


@dataclass(frozen=True, slots=True)
class UnkeptObject:
    """An object of the script's own class whose methods the loop calls, and that the run does not keep.

    Attributes:
        name: the variable that holds it, or the attribute of one ("self.stopper").
        kind: the name of its class.
        attributes: attributes that the methods carry from call to call.
        has_state: True if it has `state_dict` and `load_state_dict`.
        is_made_anew: True if an outer loop makes it anew in each of its turns.
    """

    name: str
    kind: str
    attributes: tuple[str, ...]
    has_state: bool = False
    is_made_anew: bool = False


@dataclass(frozen=True, slots=True)
class UnkeptIterator:
    """An iterator from which the loop takes the next value, and that begins anew.

    Attributes:
        name: the variable that holds it.
        kind: what it is: "generator".
    """

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class UnkeptNumber:
    """A variable by which `enumerate` numbers batches from 0 at each start, and by which the loop decides what a turn does.

    Attributes:
        name: the variable.
    """

    name: str


Unkept = UnkeptVariable | UnkeptObject | UnkeptIterator | UnkeptNumber


@dataclass(frozen=True, slots=True)
class UnkeptNote:
    """A note on variables that a loop loses, taken apart.

    Attributes:
        subject: the first part: what starts over.
        names: the variables and objects.
        lines: lines that let the run keep them.
    """

    subject: str
    names: list[str]
    lines: list[str]


def describe_unkept(found: Sequence[Unkept]) -> str:
    """Return a text on what starts over at each start, with the lines that let the run keep it."""
    variables = [one for one in found if isinstance(one, UnkeptVariable)]
    objects = _by_kind(one for one in found if isinstance(one, UnkeptObject))
    parts = [_describe_variables(variables)] if variables else []
    parts += [_describe_objects(ones) for ones in objects]
    iterators = [one for one in found if isinstance(one, UnkeptIterator)]
    parts += [_describe_iterator(one) for one in iterators]
    numbers = [one for one in found if isinstance(one, UnkeptNumber)]
    parts += [_describe_number(one) for one in numbers]
    lines = [_remembering(variables)] if variables else []
    lines += [_tracking(ones) for ones in objects]
    lines += [_counting(iterators)] if iterators else []
    lines += [_numbering(numbers)] if numbers else []
    it = "it" if len(found) == 1 else "them"
    return f"{'; '.join(parts)}.{_TO_KEEP}{it}: {'; '.join(lines)}"


def read_unkept(note: str) -> UnkeptNote | None:
    """Take a note of `describe_unkept` apart; return None for another text."""
    subject, found, line = note.partition(f".{_TO_KEEP}")
    if not found:
        return None
    names = [name for part in _SUBJECT.findall(subject) for name in re.split(r", | and ", part.rpartition(": ")[2])]
    return UnkeptNote(f"{subject}.", names, _NEXT_LINE.split(line.partition(": ")[2]))


def listed(names: Sequence[str]) -> str:
    """Return names as one writes them: "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _by_kind(objects: Iterable[UnkeptObject]) -> list[list[UnkeptObject]]:
    """Return objects in groups of the same class, which are described and kept in the same way."""
    found = dict[tuple[str, bool], list[UnkeptObject]]()
    for one in objects:
        found.setdefault((one.kind, one.is_made_anew), []).append(one)
    return list(found.values())


def _shown(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_MAX
    return listed([*names[:_NAMES_MAX], *([f"{more} more"] if more > 0 else [])])


def _describe_variables(variables: Sequence[UnkeptVariable]) -> str:
    what, it = (
        ("is a variable of the loop that starts", "it")
        if len(variables) == 1
        else ("are variables of the loop that start", "them")
    )
    return f"{_shown([one.name for one in variables])} {what} {OVER_AT_EACH_START}, since the run does not keep {it}"


def _describe_objects(objects: Sequence[UnkeptObject]) -> str:
    """Tell of objects of one class."""
    names = [f"{one.name} ({one.kind})" for one in objects]
    attributes = list(dict.fromkeys(name for one in objects for name in one.attributes))
    start, its, it = ("starts", "its", "it") if len(objects) == 1 else ("start", "their", "them")
    why = f"an outer loop makes {it} anew, and {its}" if objects[0].is_made_anew else its
    return f"{_shown(names)} {start} {OVER_AT_EACH_START}: {why} methods change {_shown(attributes)}"


def _describe_iterator(one: UnkeptIterator) -> str:
    return f"{one.name} ({one.kind}) starts {OVER_AT_EACH_START}: next({one.name}) gives its first value again"


def _describe_number(one: UnkeptNumber) -> str:
    return (
        f"{one.name} starts {OVER_AT_EACH_START}: enumerate() counts anew in the rest of an epoch, and the loop decides by it"
    )


def _tracking(objects: Sequence[UnkeptObject]) -> str:
    """Return the line that lets the run keep objects of one class."""
    given = ", ".join(f"{key}={one.name}" for key, one in zip(_keys(objects), objects, strict=True))
    line = f"optimizer.track({given}) before recover()"
    states = "" if objects[0].has_state else f"give {objects[0].kind} state_dict() and load_state_dict(state), "
    if objects[0].is_made_anew:
        it, one = ("it", "a new one is") if len(objects) == 1 else ("them", "new ones are")
        return (
            f"{states}make {_shown([one.name for one in objects])} once, with {line}, and let the outer loop reset {it}: "
            f"{one} not what is tracked"
        )
    return f"{states}and {line}" if states else line


def _counting(iterators: Sequence[UnkeptIterator]) -> str:
    """Return the line by which the loop counts with a number that the run keeps."""
    keys = _keys(iterators)
    given, nexts = ", ".join(f"{key}=0" for key in keys), listed([f"next({one.name})" for one in iterators])
    line = f"state = optimizer.remember({given}) before recover(), and state.{keys[0]} += 1 in the loop"
    return f"count in place of {nexts}: {line}"


def _numbering(numbers: Sequence[UnkeptNumber]) -> str:
    """Return the line by which the loop gets the true numbers of batches."""
    return (
        f"count {listed([one.name for one in numbers])} by epoch.enumerate() in a loop over optimizer.epochs(...), or by "
        "optimizer.batches(..., enumerate=True)"
    )


def _remembering(variables: Sequence[UnkeptVariable]) -> str:
    """Return the line that lets the run keep variables, and how the loop names them then."""
    keys = _keys(variables)
    given = ", ".join(f"{key}={one.begins_with or one.name}" for key, one in zip(keys, variables, strict=True))
    where = f"in place of {variables[0].name} in {variables[0].within}()" if variables[0].within else "in the loop"
    filled = f", with the first value for {_FILL_IN}" if any(one.begins_with == _FILL_IN for one in variables) else ""
    return f"state = optimizer.remember({given}) before recover(){filled}, and state.{keys[0]} {where}"


def _as_keyword(name: str) -> str:
    return _NO_NAME.sub("_", name).strip("_") or "value"


def _keys(found: Sequence[Unkept]) -> list[str]:
    """Return a keyword for each: the last part of its name, or all of its name where two would have the same."""
    used = {one.name for one in found if "." not in one.name}
    keys = []
    for one in found:
        key = one.name
        if not key.isidentifier():
            last = _as_keyword(key.rpartition(".")[2])
            key = last if last not in used else _as_keyword(key)
            while key in used:
                key += "_"
        used.add(key)
        keys.append(key)
    return keys
