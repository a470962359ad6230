"""What a training run can start from: a file or folder, and which parts of it are what.

FILE.pt           whatever torch.save made of plain values and tensors; read by torch.load(weights_only=True) alone
FILE.safetensors  weights; of `tranlogs export` the optimizer's tensors, too
FOLDER            of torch.distributed.checkpoint
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tranlogs.errors import UsageError
from tranlogs.recovery.recover import Progress

from . import dcp

StateDict = dict[str, Any]

_MODELS = ("model", "model_state_dict", "state_dict", "module", "net", "weights")
_OPTIMIZERS = ("optimizer", "optimizer_state_dict", "optim")
_OWN_OPTIMIZER = "optimizer/"  # in a .safetensors file of `tranlogs export`
_ABOUT_OWN = ("tranlogs", "step")  # what `tranlogs export` says of its files; training counts anew


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a source.

    Attributes:
        weights: what looks like a module's state dict, by its key; "" where the source is nothing else.
        optimizers: state dicts by name; "" where the source names none.
        others: what else may be a state, by name: schedulers, scalers.
        left: names of what is none of these.
    """

    weights: dict[str, StateDict] = field(default_factory=dict)
    optimizers: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    left: tuple[str, ...] = ()

    def key_of_model(self, name: str, wanted: str | None) -> str:
        """The key of a model's weights.

        Args:
            name: of the model; "" if there is only one.
            wanted: what the user says.

        Raises:
            UsageError: it cannot be told.
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
        raise UsageError(f"it cannot be told which weights are those of {whose}: {what}. Name the key: --model KEY (model=KEY)")


def read_parts(path: Path, *, is_trusted: bool = False, progress: Progress | None = None) -> Parts:
    """Read a source.

    Args:
        path: of the file or folder.
        is_trusted: whether the pickles in a folder of torch.distributed.checkpoint may run code.
        progress: told what is done.

    Raises:
        UsageError: it cannot be read, is damaged, or would run code.
    """
    if path.suffix == ".safetensors":
        return _of_safetensors(path)
    if not path.is_dir():
        return _parts_of(path, _of_pt(path))
    if not dcp.is_folder(path):
        raise UsageError(f"{path}: it is no folder of torch.distributed.checkpoint (there is no .metadata). Of a run of "
                         "TranLogs `tranlogs export` writes one")  # fmt: skip
    return _parts_of(path, dcp.read_folder(path, is_trusted=is_trusted, progress=progress))


def _of_pt(path: Path) -> Any:
    if path.name.endswith((".h5", ".keras")):
        raise UsageError(
            f"{path}: such files are Keras's. Call model.load_weights before fit: the run starts from what it finds"
        )
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UsageError(f"{path}: it cannot be read ({error.strerror or error})") from None
    except Exception as error:  # whatever torch makes of a damaged or foreign file
        why = str(error).partition("\n")[0].partition(". ")[0]
        raise UsageError(f"{path}: torch.load(weights_only=True) does not read it ({type(error).__name__}: {why}). If you know "
                         "who wrote it, load it in a script of your own and save the state_dicts alone") from None  # fmt: skip


def _of_safetensors(path: Path) -> Parts:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise UsageError(f"{path}: this format needs a package: pip install safetensors") from None
    try:
        with safe_open(path, framework="pt") as file:
            is_own = "tranlogs" in (file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise UsageError(f"{path}: it cannot be read ({error.strerror or error})") from None
    except (SafetensorError, ValueError) as error:
        raise UsageError(f"{path}: it is damaged, or no safetensors file ({error})") from None
    if not is_own:
        return Parts(weights={"": tensors})
    optimizers: dict[str, Any] = {}
    for name in [name for name in tensors if name.startswith(_OWN_OPTIMIZER)]:
        which, _, rest = name.removeprefix(_OWN_OPTIMIZER).partition("/")
        parameter, _, slot = rest.rpartition("/")
        state = optimizers.setdefault(which, {"state": {}})["state"]
        state.setdefault(parameter, {})[slot] = tensors.pop(name)
    return Parts(weights={"": tensors}, optimizers=optimizers)


def _parts_of(path: Path, content: Any) -> Parts:
    if not isinstance(content, Mapping):
        raise UsageError(f"{path}: it holds a {type(content).__name__}, not a dict")
    if is_weights(content):
        return Parts(weights={"": dict(content)})
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
        elif not ("tranlogs" in content and name in _ABOUT_OWN):
            left.append(name)
    return Parts(weights, optimizers, others, tuple(left))


def is_weights(value: Any) -> bool:
    """Whether this looks like a module's state dict: tensors by name."""
    return (isinstance(value, Mapping) and any(isinstance(item, torch.Tensor) for item in value.values())
            and all(isinstance(key, str) for key in value)
            and all(isinstance(item, torch.Tensor) or key.endswith("_extra_state") for key, item in value.items()))  # fmt: skip


def is_optimizer(value: Any) -> bool:
    """Whether this looks like an optimizer's state dict: torch's, or that of torch.distributed.checkpoint.state_dict."""
    if not isinstance(value, Mapping):
        return False
    return "param_groups" in value or any(str(key).startswith("param_groups.") for key in value)


def short(name: str) -> str:
    """A key without what says that it is a state dict."""
    return name.removesuffix("_state_dict").removesuffix("_state")
