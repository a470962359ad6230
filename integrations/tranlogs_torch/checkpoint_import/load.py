"""Load the parts of a source into what a script has built. Everything is compared before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tranlogs.base.errors import UsageError

from ..sharding.shards import is_part
from ..state import naming
from ..tensors.equality import have_same_bits
from ..tensors.placement import is_dtensor
from .foreign_source import ForeignParts, StartFrom, StateDict
from .matching import Match, match_names
from .optimizer_state import Unfit, fitted

_SHOWN_MAX = 12


@dataclass(frozen=True, slots=True)
class Built:
    """The objects that the script has built.

    Attributes:
        modules: modules by the prefix of their names in the log.
        optimizers: optimizers by name.
        names: names of each optimizer's parameters, by group.
        tracked: tracked objects (`load_state_dict`) by name.
    """

    modules: Mapping[str, nn.Module]
    optimizers: Mapping[str, Optimizer]
    names: Mapping[str, Sequence[Sequence[str]]]
    tracked: Mapping[str, Any]


def load(start: StartFrom, parts: ForeignParts, built: Built) -> list[str]:
    """Load the parts. Return one sentence each on what was loaded and what was not.

    Raises:
        UsageError: the source does not fit; the text lists how. Nothing was changed then.
    """
    if not built.modules:
        raise UsageError(
            f"{start.path}: a run starts from a source by the names of its weights, which need the model: "
            "LoggedOptimizer(..., model=...)"
        )
    problems: list[str] = []
    weights: dict[str, StateDict] = {}
    reading: dict[str, str] = {}
    chosen = set()  # keys of the weights that are a model's
    for prefix, module in built.modules.items():
        try:
            key = parts.key_of_model(prefix.removesuffix("."), start.model if len(built.modules) == 1 else None)
        except UsageError as error:
            raise UsageError(f"{start.path}: {error}") from None
        chosen.add(key)
        weights[prefix] = _weights(start, parts.weights[key], prefix, module, problems, reading)
    states = {} if start.only_weights or problems else _states(parts, built, reading, problems)
    if problems:
        raise UsageError(_refusal(start, problems))
    for prefix, module in built.modules.items():
        module.load_state_dict(weights[prefix], strict=False)
    for which, state in states.items():
        built.optimizers[which].load_state_dict(state)
    return [f"started from {start.path}", *_others(start, parts, built, states, chosen)]


# Weights.


def _weights(
    start: StartFrom, source: StateDict, prefix: str, module: nn.Module, problems: list[str], reading: dict[str, str]
) -> StateDict:
    """Return the state dict to load into a module. Add the log's name of each parameter to `reading`, by the source's name."""
    if any(map(is_part, module.parameters())) or any(map(is_dtensor, module.buffers())):
        raise UsageError(
            f"{start.path}: the model or its optimizer is sharded, but a source is loaded as a whole. In a fresh run, load "
            "it in the script before recover(), with torch.distributed.checkpoint.load and set_model_state_dict"
        )
    now = module.state_dict()
    actual = {short: name for name, short in naming.clean_names(now).items()}
    logged = naming.state_keys({prefix: module})[prefix]
    match = match_names(
        source, actual, same=lambda name: logged.get(name, name), may_lack=start.missing, may_drop=start.unexpected
    )
    problems += _name_problems(match)
    found = {actual[short]: source[name] for name, short in match.names.items()}
    for name, value in found.items():
        problems += _tensor_problems(name, value, now[name], may_cast=start.cast)
    given: dict[str, str] = {}
    for name, short in match.names.items():
        first = given.setdefault(logged.get(short, short), name)
        if isinstance(source[name], torch.Tensor) and not _are_same(source[first], source[name]):
            problems.append(f"{first} and {name} are one tensor in the model but differ in the source")
        if logged.get(short, "").startswith("param/"):
            reading[name] = reading[prefix + name] = logged[short].removeprefix("param/")
    return found


def _are_same(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, torch.Tensor) and have_same_bits(a, b))


def _name_problems(match: Match) -> list[str]:
    if match.is_ambiguous:
        return ["its names match in more than one way. Rename them to those of model.state_dict()"]
    problems = [f"missing: {name}" for name in match.missing]
    return problems + [f"unexpected: {name}" for name in match.unexpected]


def _tensor_problems(name: str, value: Any, now: Any, *, may_cast: bool) -> list[str]:
    if not isinstance(now, torch.Tensor) or not isinstance(value, torch.Tensor):
        return (
            []
            if isinstance(now, torch.Tensor) == isinstance(value, torch.Tensor)
            else [f"{name}: a tensor in the source or in the model, but not in both"]
        )
    if value.shape != now.shape:
        return [f"{name}: {list(value.shape)} in the source, {list(now.shape)} in the model"]
    if value.dtype != now.dtype and not may_cast:
        return [f"{name}: {_plain(value.dtype)} in the source, {_plain(now.dtype)} in the model"]
    return []


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _refusal(start: StartFrom, problems: Sequence[str]) -> str:
    shown = "".join(f"\n  - {problem}" for problem in problems[:_SHOWN_MAX])
    more = f"\n  ... and {len(problems) - _SHOWN_MAX} more" if len(problems) > _SHOWN_MAX else ""
    return (
        f"{start.path} does not fit what was built (nothing was changed):{shown}{more}\nWhat may be missing, left out or "
        "converted is named: missing=, unexpected=, cast=True, only_weights=True of StartFrom, or the options of `tranlogs "
        "import`"
    )


# Optimizers and tracked objects.


def _states(parts: ForeignParts, built: Built, reading: Mapping[str, str], problems: list[str]) -> dict[str, StateDict]:
    """Return the state dict to load into each optimizer."""
    states = {}
    for which, optimizer in built.optimizers.items():
        source = parts.optimizers.get(which)
        if source is None and len(built.optimizers) == len(parts.optimizers) == 1:
            (source,) = parts.optimizers.values()
        if source is None and parts.optimizers:
            problems.append(
                f"optimizer {which!r}: the source has no optimizer of that name; it has "
                f"{', '.join(map(repr, parts.optimizers))}"
            )
        if source is not None:
            try:
                states[which] = fitted(source, optimizer, built.names[which], reading)
            except Unfit as why:
                problems.append(f"optimizer {which!r}: {why}")
    return states


def _others(
    start: StartFrom, parts: ForeignParts, built: Built, states: Mapping[str, StateDict], chosen: set[str]
) -> list[str]:
    """Load tracked objects. Return one sentence each on what was loaded and what was not, optimizers included."""
    others = parts.others | {key: weights for key, weights in parts.weights.items() if key not in chosen}
    taken = []
    for name, thing in built.tracked.items():
        if start.only_weights or name not in others:
            continue
        try:
            thing.load_state_dict(_keyed_as(thing.state_dict(), others[name]))
        except Exception as error:
            raise UsageError(
                f"{start.path}: {name!r} did not load its state ({type(error).__name__}: {error}). The weights are already "
                "loaded: build everything again, and use only_weights=True"
            ) from error
        taken.append(name)
    came = [*(f"optimizer {which}" for which in states), *taken]
    fresh = [
        *(f"optimizer {which}" for which in built.optimizers if which not in states),
        *(name for name in built.tracked if name not in taken),
    ]
    unused = [key for key in others if key not in taken]
    unused += [] if states else [which or "optimizer" for which in parts.optimizers]
    unused += parts.left
    outcomes = {"with the weights came": came, "as built": fresh, "not used": unused}
    return [f"{what}: {', '.join(names)}" for what, names in outcomes.items() if names]


def _keyed_as(own: Any, given: Any) -> Any:
    """Return the state, with numbers for keys where the object's present state has them. Folders store them as strings."""
    if not isinstance(given, Mapping) or not isinstance(own, Mapping):
        return given
    has_numbers = bool(own) and all(isinstance(key, int) for key in own) and all(str(key).isdigit() for key in given)
    made = {int(key) if has_numbers else key: value for key, value in given.items()}
    return {key: _keyed_as(own.get(key), value) for key, value in made.items()}
