"""Write a replayed state for other programs. What was written is read back and compared before it is published.

FILE.safetensors  one tensor each under the keys that `model.load_state_dict` wants (several models: "g.weight");
                  optimizer state as "optimizer/NAME/PARAMETER/KEY"
FILE.pt           a dict for `torch.load(weights_only=True)`:
                    "step"        optimizer updates applied
                    "model"       the model's state_dict; with several models "models", a dict of them by name
                    "parameters"  what no model holds, by the names in the log
                    "optimizers"  by name, as `optimizer.load_state_dict` wants them
                    "tracked"     by name, as `load_state_dict` of what was tracked wants them
FOLDER            of torch.distributed.checkpoint: see export_dcp.py
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

import tranlogs
from tranlogs.base.atomic_files import publishing
from tranlogs.base.errors import UsageError
from tranlogs.base.types import Extension
from tranlogs.training import Progress

from ..tensors.equality import demand_equal
from . import export_dcp

StateDict = dict[str, torch.Tensor]
_FORMATS = ("dcp", "pt", "safetensors")


@dataclass(frozen=True, slots=True)
class Exported:
    """The content of the exported file.

    Attributes:
        step: optimizer updates applied.
        models: state dicts by the prefix that their tensors have in the log ("" for a single model).
        parameters: what no model holds.
        optimizers: by name.
        names: of their parameters, by identity.
        tracked: states of tracked objects by name.
    """

    step: int
    models: Mapping[str, StateDict]
    parameters: StateDict
    optimizers: Mapping[str, Optimizer]
    names: Mapping[int, str]
    tracked: Mapping[str, Any]


def check_target(path: Path, form: str | None = None) -> None:
    """Check that the state can be written to a path, in the format named, or else in that of the file's name.

    Raises:
        UsageError: it cannot.
    """
    if form is not None and form not in _FORMATS:
        raise UsageError(f"{form!r}: this is a run of PyTorch, which can be written as {', '.join(_FORMATS)}")
    if form is None and path.name.endswith(".weights.h5"):
        raise UsageError(f"{path}: this is a run of PyTorch, and files of that type are Keras's. Use .safetensors or .pt")
    if form is None and path.suffix not in (".pt", ".safetensors"):
        raise UsageError(
            f"{path}: the name must end in .safetensors or .pt (for a folder of torch.distributed.checkpoint: "
            "`tranlogs replay RUN --format dcp --out FOLDER`)"
        )
    if _format_of(path, form) == "safetensors" and importlib.util.find_spec("safetensors") is None:
        raise UsageError(f"{path}: this format needs a package: pip install safetensors")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} does not exist")
    if _format_of(path, form) == "dcp":
        export_dcp.check_target(path)
    elif path.is_dir():
        raise UsageError(f"{path} is a folder")


def write(path: Path, state: Exported, form: str | None = None, progress: Progress | None = None) -> list[str]:
    """Write it, all or nothing; returns what the file does not hold, one sentence each."""
    check_target(path, form)
    form = _format_of(path, form)
    if form == "safetensors":
        return _write_safetensors(path, state, progress)
    content, notes = _content(state)
    if form == "dcp":
        return [*notes, *export_dcp.write(path, content, state.optimizers, state.names, progress)]
    with publishing(path) as temporary:
        torch.save(content, temporary)
        demand_equal(path, content, _loaded(temporary, path), progress)
    return notes


def _format_of(path: Path, form: str | None) -> str:
    return form or path.suffix.removeprefix(".")


def _content(state: Exported) -> tuple[dict[str, Any], list[str]]:
    """Return everything as plain values, and the differences from the run."""
    notes: list[str] = []
    content: dict[str, Any] = {"tranlogs": tranlogs.__version__, "step": state.step}
    if set(state.models) == {""}:
        content["model"] = state.models[""]
    elif state.models:
        content["models"] = {prefix.removesuffix("."): tensors for prefix, tensors in state.models.items()}
    if state.parameters:
        content["parameters"] = state.parameters
    content["optimizers"] = {name: optimizer.state_dict() for name, optimizer in state.optimizers.items()}
    content["tracked"] = {name: _portable(value, f"tracked object {name!r}", notes) for name, value in state.tracked.items()}
    return content, list(dict.fromkeys(notes))


def _loaded(file: Path, path: Path) -> Any:
    """Load the written file, before it is published, as users will load it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that sparse tensors take time to check
        try:
            return torch.load(file, weights_only=True, mmap=True)
        except Exception as error:
            raise UsageError(f"{path}: the state contains values that weights_only=True does not load: {error}") from None


def _portable(value: Any, path: str, notes: list[str]) -> Any:
    """Convert a value to one that `weights_only=True` loads: numpy's arrays become tensors, its numbers Python's."""
    if isinstance(value, np.ndarray):
        notes.append(f"{path} contains numpy arrays, which become tensors in the file")
        return torch.from_numpy(value.copy())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_portable(item, path, notes) for item in value)
    if isinstance(value, dict):
        made = type(value)()
        for key, item in value.items():
            made[key] = _portable(item, path, notes)
        return made
    if isinstance(value, (frozenset, Extension, slice)):
        raise UsageError(f"{path} contains a {type(value).__name__}, which weights_only=True does not load. Use .safetensors")
    return value


def _write_safetensors(path: Path, state: Exported, progress: Progress | None) -> list[str]:
    from safetensors.torch import load_file, save_file

    notes = []
    tensors: StateDict = {}
    for prefix, held in state.models.items():
        tensors |= {prefix + key: value for key, value in held.items()}
    tensors |= state.parameters
    for which, optimizer in state.optimizers.items():
        for parameter, values in optimizer.state.items():
            for key, value in values.items():
                if isinstance(value, torch.Tensor):
                    tensors[f"optimizer/{which}/{state.names.get(id(parameter), '')}/{key}"] = value
                else:
                    notes.append(f"optimizer {which}: {key} is not a tensor and is left out; .pt stores it")
    if state.tracked:
        notes.append("tracked objects (" + ", ".join(sorted(state.tracked)) + ") are left out; .pt holds them")
    for name, value in tensors.items():
        if value.layout is not torch.strided:
            raise UsageError(f"{path}: {name} is a sparse tensor, which this format cannot store. Use .pt")
    about = {"format": "pt", "tranlogs": tranlogs.__version__, "step": str(state.step)}
    with publishing(path) as temporary:
        save_file(_apart(tensors), temporary, about)
        demand_equal(path, tensors, load_file(temporary), progress)
    return list(dict.fromkeys(notes))


def _apart(tensors: StateDict) -> StateDict:
    """Contiguous, and none sharing memory with another: the format refuses tied tensors."""
    seen: set[int] = set()
    made = {}
    for name, value in tensors.items():
        value = value.contiguous()
        if value.numel() and value.data_ptr() in seen:
            value = value.clone()
        seen.add(value.data_ptr())
        made[name] = value
    return made
