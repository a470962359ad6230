"""A source that a run can start from: a file or folder of another program, and which of its parts are what.

FILE.safetensors  weights; one of `tranlogs export` has the optimizer's tensors, too
FOLDER            of torch.distributed.checkpoint (dcp.py)
any other file    of torch.save, if torch.load(weights_only=True) reads it (weights_only.py)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import torch

from tranlogs.base.errors import UsageError
from tranlogs.training import Progress

from . import weights_only
from .dcp_metadata import METADATA

StateDict = dict[str, Any]

_MODELS = ("model", "model_state_dict", "state_dict", "module", "net", "weights")
_OPTIMIZERS = ("optimizer", "optimizer_state_dict", "optim")
_EXPORTED_OPTIMIZER = "optimizer/"  # prefix in a .safetensors file of `tranlogs export`
_EXPORTED_FACTS = ("tranlogs", "step")  # keys that `tranlogs export` adds; a run counts its steps from 0


@dataclass(frozen=True, slots=True)
class StartFrom:
    """Source from which a fresh run starts, for `recover(start_from=...)`.

    Attributes:
        path: a file of torch.save, a .safetensors file, or a folder of torch.distributed.checkpoint.
        model: key of the model's weights in the source, if several could be it.
        missing: patterns (`head.*`) of names that the source may lack; those parts of the model stay as built.
        unexpected: patterns of names in the source that the model may lack.
        cast: True to convert weights of another dtype to the model's.
        only_weights: True to leave out the states of optimizers, schedulers and so on.
        trust: True to execute whatever the pickles of a torch.distributed.checkpoint folder name.
    """

    path: str | Path
    _: KW_ONLY
    model: str | None = None
    missing: Sequence[str] = ()
    unexpected: Sequence[str] = ()
    cast: bool = False
    only_weights: bool = False
    trust: bool = False


@dataclass(frozen=True, slots=True)
class ForeignParts:
    """The parts of a source.

    Attributes:
        weights: state dicts of modules, by their keys; the key is "" if the source is a single state dict.
        optimizers: state dicts of optimizers by name; the name is "" if the source gives none.
        others: what else may be a state, by name: schedulers, scalers.
        left: names of all else.
    """

    weights: dict[str, StateDict] = field(default_factory=dict)
    optimizers: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    left: tuple[str, ...] = ()

    def key_of_model(self, name: str, wanted: str | None) -> str:
        """Return the key of a model's weights.

        Args:
            name: of the model; "" if there is only one.
            wanted: the key that the user gives.

        Raises:
            UsageError: no key, or more than one, could be it.
        """
        keys = list(self.weights)
        if wanted is not None:
            found = [key for key in keys if key == wanted]
        elif name:
            found = [key for key in keys if short(key) == name]
        else:
            found = [key for key in keys if key in _MODELS] or keys
        if len(found) == 1:
            return found[0]
        what = f"weights lie under {', '.join(map(repr, keys))}" if keys else "no weights are in it"
        whose = f"model {name!r}" if name else "the model" if wanted is None else f"{wanted!r}"
        raise UsageError(f"the weights of {whose} cannot be identified: {what}. Name their key: --model KEY (model=KEY)")


def read_parts(path: Path, *, is_trusted: bool = False, progress: Progress | None = None) -> ForeignParts:
    """Read a source.

    Args:
        path: of the file or folder.
        is_trusted: True to execute whatever the pickles of a folder name. It has no effect on files.
        progress: called with what is done.

    Raises:
        UsageError: the source cannot be read, is damaged, or would execute code.
    """
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if not path.is_dir():
        return _sort(path, _read_file(path))
    if not (path / METADATA).is_file():
        raise UsageError(
            f"{path}: not a folder of torch.distributed.checkpoint (.metadata is missing). `tranlogs export` writes such a "
            "folder from a run of TranLogs"
        )
    from .dcp import read_folder  # importing torch.distributed.checkpoint takes a second

    return _sort(path, read_folder(path, is_trusted=is_trusted, progress=progress))


def _read_file(path: Path) -> Any:
    if path.name.endswith((".h5", ".keras")):
        raise UsageError(
            f"{path}: this is a file of Keras. Call model.load_weights before fit; the run starts from the weights that it "
            "finds"
        )
    try:
        return weights_only.load(path)
    except OSError as error:
        raise UsageError(f"{path}: the file cannot be read ({error.strerror or error})") from None
    except Exception as error:  # whatever torch makes of a damaged or foreign file
        raise UsageError(
            f"{path}: {weights_only.reason(error)}. If you trust the file, load it in your own script and save only the "
            "state_dicts, or load them before recover()"
        ) from None


def _read_safetensors(path: Path) -> ForeignParts:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise UsageError(f"{path}: this format needs a package: pip install safetensors") from None
    try:
        with safe_open(path, framework="pt") as file:
            is_exported = "tranlogs" in (file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise UsageError(f"{path}: the file cannot be read ({error.strerror or error})") from None
    except (SafetensorError, ValueError) as error:
        raise UsageError(f"{path}: the file is damaged or is not a safetensors file ({error})") from None
    if not is_exported:
        return ForeignParts(weights={"": tensors})
    optimizers: dict[str, Any] = {}
    for name in [name for name in tensors if name.startswith(_EXPORTED_OPTIMIZER)]:
        which, _, rest = name.removeprefix(_EXPORTED_OPTIMIZER).partition("/")
        parameter, _, slot = rest.rpartition("/")
        state = optimizers.setdefault(which, {"state": {}})["state"]
        state.setdefault(parameter, {})[slot] = tensors.pop(name)
    return ForeignParts(weights={"": tensors}, optimizers=optimizers)


def _sort(path: Path, content: Any) -> ForeignParts:
    if not isinstance(content, Mapping):
        raise UsageError(f"{path}: expected a dict, found a {type(content).__name__}")
    if is_weights(content):
        return ForeignParts(weights={"": dict(content)})
    weights: dict[str, StateDict] = {}
    optimizers: dict[str, Mapping[str, Any]] = {}
    others: dict[str, Any] = {}
    left = []
    for key, value in content.items():
        name = str(key)
        several = value if isinstance(value, Mapping) else {}
        if name == "models" and all(map(is_weights, several.values())):
            weights |= {str(which): dict(one) for which, one in several.items()}
        elif name == "optimizers" and all(map(is_optimizer, several.values())):
            optimizers |= {str(which): one for which, one in several.items()}
        elif name == "optimizer_states" and isinstance(value, list) and len(value) == 1 and is_optimizer(value[0]):  # Lightning
            optimizers[""] = value[0]
        elif name == "tracked":
            others |= {str(which): one for which, one in several.items()}
        elif is_weights(value):
            weights[name] = dict(value)
        elif is_optimizer(value):
            optimizers["" if name in _OPTIMIZERS else short(name)] = value
        elif several:
            others[short(name)] = value
        elif not ("tranlogs" in content and name in _EXPORTED_FACTS):
            left.append(name)
    return ForeignParts(weights, optimizers, others, tuple(left))


def is_weights(value: Any) -> bool:
    """Return True if this looks like a module's state dict: tensors by name."""
    return (
        isinstance(value, Mapping)
        and any(isinstance(item, torch.Tensor) for item in value.values())
        and all(isinstance(key, str) for key in value)
        and all(isinstance(item, torch.Tensor) or key.endswith("_extra_state") for key, item in value.items())
    )


def is_optimizer(value: Any) -> bool:
    """Return True if this looks like an optimizer's state dict: torch's, or that of torch.distributed.checkpoint.state_dict."""
    if not isinstance(value, Mapping):
        return False
    return "param_groups" in value or any(str(key).startswith("param_groups.") for key in value)


def short(name: str) -> str:
    """Return a key without its suffix `_state_dict` or `_state`."""
    return name.removesuffix("_state_dict").removesuffix("_state")
