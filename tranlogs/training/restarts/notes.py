"""Notes on values of the script that start over, with the line that keeps them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...base.notes import Note
from ...recovery.report import Restart
from .plain_values import UNKNOWN

_NAMES_MAX = 20  # in a note
_NO_NAME = re.compile(r"\W+")  # what a keyword cannot have
_LINES = {
    "fit": "make {them} {attributes} of a callback of this fit",
    "exportable": "make {them} {attributes} of a TrainerCallback that is also an ExportableState, and return {it} in state()",
    "lightning": "make {them} {attributes} of the LightningModule or of a callback",
    "state": "return {it} in state_dict() of {kind}, and set {it} in load_state_dict()",
    "extra": "return {it} in get_extra_state() of {kind}, and set {it} in set_extra_state(state)",
    "weights": "save it inside the loop, in its last epoch, or only where it is missing",
    "buffer": "let {kind} register its buffers as persistent ones, or return them in get_extra_state()",
}
_LINES_OF_MODULES = {
    "fit": "make each variable of {them}.variables an attribute of a callback of this fit, by setattr",
    "exportable": "make {them} a part of the model",
    "lightning": "make {them} an attribute of the LightningModule",
}


def describe_restarts(restarts: Sequence[Restart]) -> list[str]:
    """Return what starts over, a text for each group of values that one line keeps."""
    found = []
    for group in _groups(restarts):
        first, names = group[0], [one.name for one in group]
        when, _, line = first.code.rpartition(" ")
        if line == "weights":
            what = "was read before a loop, by code that runs at each start, after a crash on the newest state"
            found.append(
                f"{listed(names)} {what}: a file or a module that is made of it is then not what it was (what goes into "
                "remember(...) is)"
            )
            continue
        if when == "left":
            what = f"{listed(names)} {'is' if len(names) == 1 else 'are'} read behind a loop that sets {_it(names)}, whose body"
            found.append(f"{what} does not run again once it is finished")
            continue
        if when == "again":
            loop = "fit" if line == "fit" else "loop"
            what = f"{listed(names)}: another value than when this {loop} was first entered, since code between {loop}s ran "
            found.append(f"{what}again, on the newest state")
            continue
        if first.owner:
            what = listed([_attribute(one) for one in group])
            changed = (
                f": state_dict() of {first.kind} lacks {what}" if line in ("state", "extra") else f": training changes {what}"
            )
            if _is_module(first):
                changed = f": state_dict() of {first.kind} lacks a buffer that is not persistent" if line == "buffer" else ""
            names = list(dict.fromkeys(map(name_of, group)))
        else:
            changed = ""
        is_one = len(names) == 1
        if when:
            what = f"{'misses' if is_one else 'miss'}, in the epoch of a crash, the batches before it"
        else:
            what = f"{'starts' if is_one else 'start'} over at each start"
        found.append(f"{listed(names)} {what}{changed}")
    return found


def with_notes(restarts: Sequence[Restart]) -> list[Restart]:
    """Return values with their notes: what starts over, and the line that keeps it."""
    found = []
    for group in _groups(restarts):
        it = _it(group)
        note = Note("starts-over", describe_restarts(group)[0], f"To keep {it}: {lines_of(group)[0]}")
        found += [replace(one, note=note) for one in group]
    return found


def describe_weights_read() -> list[Restart]:
    """Return the note on code before a loop that reads the weights."""
    return with_notes([Restart("again weights", "state_dict() of the model", UNKNOWN)])


def lines_of(restarts: Sequence[Restart]) -> list[str]:
    """Return the lines that let the run keep values, one for each group."""
    found = []
    for group in _groups(restarts):
        first, it = group[0], _it(group)
        when, _, code = first.code.rpartition(" ")
        epochs = "take the epochs from optimizer.epochs(...), and " if when == "pass" else ""
        if code in _LINES:
            line = _LINES_OF_MODULES.get(code, _LINES[code]) if _is_module(first) else _LINES[code]
            them = first.owner if _is_module(first) else listed([_attribute(one) for one in group]) if first.owner else it
            attributes = "an attribute" if it == "it" else "attributes"
            found.append(line.format(it=it, them=them, attributes=attributes, kind=first.kind))
            continue
        names = list(dict.fromkeys(one.owner if code == "track" else one.name for one in group))
        keys = _keys(names)
        again = " where the epoch begins (a resume in its middle undoes that)"
        if code == "track":
            states = "" if first.has_state else f"give {first.kind} state_dict() and load_state_dict(state), and "
            is_made = when or (_is_module(first) and first.first)
            made = f"make {listed(names)} and " if is_made else ""
            given = ", ".join(f"{key}={name}" for key, name in zip(keys, names, strict=True))
            line = f"{states}{made}optimizer.track({given}) before recover()"
            line += f", and set its attributes back{again}" if when else ""
        else:
            values = ["None" if when in ("again", "left") else one.first for one in group]
            given = ", ".join(f"{key}={value}" for key, value in zip(keys, values, strict=True))
            line = f"state = optimizer.remember({given}) before recover()"
            line += f", with the first value for {UNKNOWN}" if UNKNOWN in values else ""
            at = next((at for at, key in enumerate(keys) if key != names[at]), 0)  # of the one that is hardest to follow
            key, name, value = keys[at], names[at], values[at]
            if when == "left":
                line += f", state.{key} = {name} in the loop, and state.{key} behind it"
            elif when == "again":
                line += f", and `if state.{key} is None:` before the code that sets it"
                line += " (if it runs for several phases: a dict with a value for each)"
            else:
                line += f", and state.{key} in the loop{f' in place of {name}' if key != name else ''}"
            line += f", with state.{key} = {value}{again}" if when in ("epoch", "pass") else ""
        found.append(f"{epochs}{line}")
    return found


def describe_unset(names: Sequence[str]) -> str:
    """Return what a start of a finished run lacks, since the body of its loop does not run; "" if that is nothing."""
    quoted = [f"`{name}`" for name in names]
    return f"the loop body did not run, so {listed(quoted)} {'is' if len(names) == 1 else 'are'} unset" if quoted else ""


def name_of(restart: Restart) -> str:
    """Return the name of a value that starts over; of an attribute of an object, that of the object with its class."""
    return f"{restart.owner} ({restart.kind})" if restart.owner else restart.name


def listed(names: Sequence[str]) -> str:
    """Return names as one writes them: "a, b and c"."""
    shown = [*names[:_NAMES_MAX], *([f"{len(names) - _NAMES_MAX} more"] if len(names) > _NAMES_MAX else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _it(things: Sequence[Any]) -> str:
    return "it" if len(things) == 1 else "them"


def _attribute(restart: Restart) -> str:
    return restart.name.removeprefix(f"{restart.owner}.")


def _is_module(restart: Restart) -> bool:
    """Return True for a module, which is a value itself; an object is known by its attributes."""
    return restart.name == restart.owner


def _groups(restarts: Sequence[Restart]) -> list[list[Restart]]:
    found = dict[tuple[str, str], list[Restart]]()
    for one in restarts:
        is_tracked = _is_module(one) and one.code == "track"  # one line keeps several that exist where it stands
        found.setdefault((one.code, f"modules {one.first}" if is_tracked else one.owner), []).append(one)
    return list(found.values())


def _keys(names: Sequence[str]) -> list[str]:
    """Return a keyword for each name: its last part, or all of it where two would have the same."""
    last = [_as_keyword(name.rpartition(".")[2]) for name in names]
    return [key if last.count(key) == 1 else _as_keyword(name) for key, name in zip(last, names, strict=True)]


def _as_keyword(name: str) -> str:
    return _NO_NAME.sub("_", name).strip("_") or "value"
