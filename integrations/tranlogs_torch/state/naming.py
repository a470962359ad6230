"""Stable names for parameters and buffers: the module's own, without the prefixes that wrappers add."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from ..sharding import fsdp
from ..tensors.arrays import local

_WRAPPERS = ("_orig_mod.", "module.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")

Models = nn.Module | Mapping[str, nn.Module] | Sequence[nn.Module] | None


def clean(name: str) -> str:
    """Return a name without wrapper prefixes, wherever they stand."""
    for wrapper in _WRAPPERS:
        if name.startswith(wrapper):
            name = name[len(wrapper) :]
        name = name.replace("." + wrapper, ".")
    return name


def clean_names(names: Iterable[str]) -> dict[str, str]:
    """Return the name without wrapper prefixes for each name. Names that would become equal are kept as they are."""
    cleaned = {name: clean(name) for name in names}
    times = Counter(cleaned.values())
    return {name: short if times[short] == 1 else name for name, short in cleaned.items()}


def as_modules(models: Models) -> dict[str, nn.Module]:
    """Return modules by prefix; a single one has the prefix ""."""
    if models is None:
        return {}
    if isinstance(models, nn.Module):
        return {"": models}
    if isinstance(models, Mapping):
        return {f"{name}.": module for name, module in models.items()}
    return {f"{i}.": module for i, module in enumerate(models)}


def named_parameters(modules: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    """Return all parameters by name: a shared (tied) one once, under its first name, and FSDP's sharded ones."""
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    sharded = fsdp.sharded_for(modules)
    for prefix, module in modules.items():
        named = {name: sharded.get(id(p), p) for name, p in module.named_parameters()}
        for name, short in clean_names(named).items():
            if id(named[name]) not in seen:
                seen.add(id(named[name]))
                found[prefix + short] = named[name]
    return found


def named_buffers(modules: Mapping[str, nn.Module]) -> dict[str, torch.Tensor]:
    """Return all buffers by name. They are looked up each time, since code may replace them."""
    found: dict[str, torch.Tensor] = {}
    for prefix, module in modules.items():
        named = dict(module.named_buffers())
        found |= {prefix + short: named[name] for name, short in clean_names(named).items()}
    return found


def state_keys(modules: Mapping[str, nn.Module]) -> dict[str, dict[str, str]]:
    """Return for each module the keys of its `state_dict()`, with all names of tied tensors, and the tensor logged for each."""
    logged = {id(p): f"param/{name}" for name, p in named_parameters(modules).items()}
    logged |= {whole: logged[id(p)] for whole, p in fsdp.sharded_for(modules).items() if id(p) in logged}
    for name, buffer in named_buffers(modules).items():
        logged.setdefault(id(buffer), f"buffer/{name}")
    found: dict[str, dict[str, str]] = {}
    for prefix, module in modules.items():
        keys: dict[str, str] = {}
        for at, owner in module.named_modules(remove_duplicate=False):
            kept = {key: b for key, b in owner._buffers.items() if key not in owner._non_persistent_buffers_set}
            for key, tensor in [*owner._parameters.items(), *kept.items()]:
                if id(tensor) in logged:
                    keys[f"{at}.{key}" if at else key] = logged[id(tensor)]
        found[prefix] = {short: keys[key] for key, short in clean_names(keys).items()}
    return found


def buffer_places(modules: Mapping[str, nn.Module]) -> dict[str, tuple[nn.Module, str]]:
    """Return the module and key of each buffer, by name; a buffer that is registered as None is included."""
    found: dict[str, tuple[nn.Module, str]] = {}
    for prefix, root in modules.items():
        places = {
            f"{path}.{key}" if path else key: (module, key) for path, module in root.named_modules() for key in module._buffers
        }
        found |= {prefix + short: places[name] for name, short in clean_names(places).items()}
    return found


def set_buffers(modules: Mapping[str, nn.Module], values: Mapping[str, torch.Tensor]) -> None:
    """Set buffers to recorded values. A buffer that was created while training (in a forward pass) is registered again."""
    places = buffer_places(modules)
    owners = {prefix + clean(path): module for prefix, root in modules.items() for path, module in root.named_modules()}
    for name, value in values.items():
        path, _, key = name.rpartition(".")
        owner = owners.get(path, owners.get(path + "."))  # the root of a module with a prefix
        if name in places:
            _set_buffer(*places[name], value)
        elif owner is not None and not hasattr(owner, key):
            owner.register_buffer(key, value.clone())


def _set_buffer(module: nn.Module, key: str, value: torch.Tensor) -> None:
    """Set a buffer in place if the value fits, else as a new tensor (the buffer grew, or was None)."""
    held = module._buffers[key]
    now = None if held is None else local(held)
    with torch.no_grad():
        if now is not None and now.shape == value.shape and now.dtype == value.dtype:
            now.copy_(value)
        else:
            module._buffers[key] = value.clone() if now is None else value.to(now.device, copy=True)


def name_parameters(
    modules: Mapping[str, nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]
) -> dict[str, torch.Tensor]:
    """Return every tensor to be logged by name: the modules' parameters, then those that only an optimizer has."""
    found: dict[str, torch.Tensor] = dict(named_parameters(modules))
    known = {id(p) for p in found.values()}
    for which, optimizer in optimizers.items():
        for i, group in enumerate(optimizer.param_groups):
            given = group.get("param_names")
            for j, parameter in enumerate(group["params"]):
                if id(parameter) not in known:
                    known.add(id(parameter))
                    name = clean(given[j]) if given else f"{which}.group{i}.param{j}"
                    found[name if name not in found else f"{which}.{name}"] = parameter
    return found
