"""Random states that data read, and validation data whose position is not brought back."""

from __future__ import annotations

import dis
import inspect
import logging
import random
import sys
from types import CodeType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np

_KINDS = (np.random.Generator, np.random.RandomState, random.Random)
_FUNCTIONS_MAX = 200
_TORCH_DRAWS = {"bernoulli", "multinomial", "normal", "rand", "randint", "randn", "randperm"}

States = dict[int, str]  # the name under which a random generator was found, by its id


def random_states_of(data: Any) -> States:
    """Return the random generators that a Python generator refers to, or that a data set holds as attributes."""
    reach = _Reach()
    if isinstance(data, GeneratorType):
        reach.note_frame(data.gi_frame)
    elif not isinstance(data, (tuple, list, dict, np.ndarray)) and hasattr(data, "__dict__"):
        for name, value in vars(data).items():
            reach.note_random(name, value)
    return reach.found


def global_states() -> States:
    """Return the random generators behind the functions of numpy.random, random and torch."""
    functions = {"numpy.random": np.random.rand, "random": random.random}
    found: States = {id(getattr(function, "__self__", None)): name for name, function in functions.items()}
    torch = sys.modules.get("torch")
    return found | ({} if torch is None else {id(torch.default_generator): "torch"})


class _Reach:
    def __init__(self) -> None:
        self.found: States = {}
        self._seen: set[int] = set()

    def note_frame(self, frame: FrameType | None) -> None:
        if frame is not None:
            self._look_into(frame.f_code, dict(frame.f_locals), frame.f_globals)

    def note_random(self, name: str, value: Any) -> None:
        """Note a random generator, or the one to which a function belongs."""
        owner = value if isinstance(value, _KINDS) else getattr(value, "__self__", None)
        if isinstance(owner, _KINDS):
            self.found.setdefault(id(owner), global_states().get(id(owner), name))
        torch = sys.modules.get("torch")
        if torch is not None and name in _TORCH_DRAWS and value is getattr(torch, name, None):
            self.found.setdefault(id(torch.default_generator), "torch")

    def _look_into(self, code: CodeType, names: dict[str, Any], outer: dict[str, Any]) -> None:
        if id(code) in self._seen or len(self._seen) > _FUNCTIONS_MAX:
            return
        self._seen.add(id(code))
        value: Any = None
        for instruction in dis.get_instructions(code):
            name = instruction.argval[-1] if isinstance(instruction.argval, tuple) else instruction.argval
            kind = instruction.opname
            if kind.startswith(("LOAD_FAST", "LOAD_DEREF")):
                value = names.get(name)
            elif kind in ("LOAD_GLOBAL", "LOAD_NAME"):
                value = outer.get(name)
            elif kind in ("LOAD_ATTR", "LOAD_METHOD"):
                value = _attribute(value, name)
            else:
                value = None
            if value is not None:
                self._note(name, value)
        for inner in code.co_consts:
            if isinstance(inner, CodeType):  # lambdas, comprehensions and functions that are defined inside
                self._look_into(inner, names, outer)

    def _note(self, name: str, value: Any) -> None:
        self.note_random(name, value)
        if isinstance(value, GeneratorType):
            self.note_frame(value.gi_frame)
        function = value.__func__ if isinstance(value, MethodType) else value
        if not isinstance(function, FunctionType) or _is_of_library(function):
            return
        names = dict(inspect.getclosurevars(function).nonlocals)
        if isinstance(value, MethodType) and function.__code__.co_varnames:
            names[function.__code__.co_varnames[0]] = value.__self__
        self._look_into(function.__code__, names, function.__globals__)


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute without running code of the owner's; None if there is none."""
    if owner is None or isinstance(owner, type):
        return None
    held = getattr(owner, "__dict__", {})
    if name in held or isinstance(owner, ModuleType):
        return held.get(name)
    found = inspect.getattr_static(type(owner), name, None)
    return MethodType(found, owner) if isinstance(found, FunctionType) else None


def _is_of_library(function: FunctionType) -> bool:
    top = (function.__module__ or "").partition(".")[0]
    return top in sys.stdlib_module_names or "site-packages" in function.__code__.co_filename


_log = logging.getLogger("tranlogs")

_PEEKED = 2  # Keras looks at so many batches of a generator, and each validation begins with these again

_GENERATOR = (
    "validation takes its batches from a Python generator, which begins anew after a resume: validation metrics, and callbacks "
    "that use them, may differ. Give arrays, a PyDataset or a tf.data.Dataset"
)
_GLOBAL = (
    "the generator of the validation data draws from the global random numbers of {names}, and Keras draws its first batches "
    "when it validates for the first time in a process: a resume sees other ones. Let the generator draw from a random "
    "generator of its own"
)
_SHARED = (
    "training and validation data draw from one random generator ({names}), and after a resume the batches of training are "
    "drawn again without those of validation in between: give each of them a random generator of its own"
)


def doubts_about_validation(training: Any, data: Any, steps: int | None) -> list[str]:
    """Return why the fit may see other batches after a resume; nothing if it sees the same.

    Keras opens all kinds of validation data but generators anew for each validation.

    Args:
        training: `x` of the fit.
        data: `validation_data` of the fit.
        steps: `validation_steps` of the fit.
    """
    found = [_GENERATOR] if inspect.isgenerator(data) and (steps is None or steps > _PEEKED) else []
    try:
        return found + _doubts_about_random_numbers(training, data)
    except Exception as error:  # whatever the code of a generator looks like
        _log.debug("the generators could not be looked into: %s", error)
        return found


def _doubts_about_random_numbers(training: Any, data: Any) -> list[str]:
    validation, shared = random_states_of(data), {}
    if inspect.isgenerator(training):
        states = random_states_of(training)
        shared = {state: name for state, name in states.items() if state in validation and state not in global_states()}
    drawn = {state: name for state, name in validation.items() if state in global_states()} if inspect.isgenerator(data) else {}
    doubts = ((_GLOBAL, drawn), (_SHARED, shared))
    return [text.format(names=" and ".join(sorted(set(held.values())))) for text, held in doubts if held]
