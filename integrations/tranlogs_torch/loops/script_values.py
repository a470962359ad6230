"""Which values of a script PyTorch and the run keep, for the search of what starts over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler

from tranlogs.training import Framework, LoopState

from ..capture.optimizer_hooks import OptimizerHooks
from ..data.generators import generators_in
from ..state import naming
from ..state.auxiliary import Auxiliary

_DEPTH_MAX = 4  # of datasets within each other
_PARTS_MAX = 64  # of a list that a tracked object has, such as the schedulers of a SequentialLR
_DEVICE_BYTES_MAX = 1 << 10  # of a tensor that is copied from a device


def make_framework(modules: dict[str, torch.nn.Module], hooks: dict[str, OptimizerHooks], auxiliary: Auxiliary) -> Framework:
    """Return what PyTorch knows of the values of a script."""
    storages, known = set[int](), set[int]()  # of tensors that the run keeps; ids of modules

    def read_array(value: Any) -> np.ndarray[Any, Any] | None:
        if not isinstance(value, torch.Tensor) or isinstance(value, torch.nn.Parameter) or value.layout is not torch.strided:
            return None
        try:
            if _storage(value) in storages:
                return None
            found = value.detach()
            if found.device.type != "cpu":
                if found.nbytes > _DEVICE_BYTES_MAX:
                    return None
                found = found.cpu()
            found = found.resolve_conj().resolve_neg()
            is_known = found.dtype.is_complex or found.dtype in (torch.bool, torch.float16, torch.float32, torch.float64)
            if not is_known and found.dtype.is_floating_point:
                found = found.view({1: torch.uint8, 2: torch.int16}[found.element_size()])
            array: np.ndarray[Any, Any] = found.numpy()
        except (RuntimeError, TypeError, KeyError, NotImplementedError):
            return None
        return array

    def kept() -> Iterator[Any]:
        trained = [p for one in hooks.values() for p in one.parameters()]
        tensors = [*naming.named_parameters(modules).values(), *naming.named_buffers(modules).values(), *trained]
        things = [thing for thing in auxiliary.tracked.values() if not isinstance(thing, LoopState)]
        others = [one for thing in things for one in (thing, *getattr(thing, "__dict__", {}).values())]
        others += [one for several in others if isinstance(several, (list, tuple)) for one in several[:_PARTS_MAX]]
        kept_modules = [m for one in (*modules.values(), *others) if isinstance(one, torch.nn.Module) for m in one.modules()]
        known.clear()
        known.update(map(id, (*kept_modules, *tensors, *others)))
        tensors += [tensor for module in kept_modules for tensor in _tensors_of(module)]
        storages.clear()
        storages.update(map(_storage, tensors))
        storages.discard(0)
        for one in hooks.values():
            yield from (one.inner, one.inner.param_groups, *one.inner.param_groups, one.inner.state)
        for state in auxiliary.tracked.values():
            yield from state.objects if isinstance(state, LoopState) else filter(None, (getattr(state, "generator", None),))
        for position in auxiliary.loaders.values():
            yield from (position.loader, position.loader.sampler, position.loader.batch_sampler, *position.source.generators)
            yield from (generator for _, generator in generators_in(position.loader.dataset, ""))

    def read_version(value: Any) -> bytes | None:
        if isinstance(value, torch.amp.GradScaler):
            return b"" if id(value) in known else repr(value.state_dict()).encode()
        if isinstance(value, LRScheduler):
            return b"" if id(value) in known else str(value.last_epoch).encode()
        if not isinstance(value, torch.nn.Module):
            return None
        others = [tensor for module in value.modules() for tensor in _all_tensors_of(module)]
        found = [(id(one), _version(one)) for one in others if id(one) not in known and _storage(one) not in storages]
        return blake2b(repr(found).encode(), digest_size=8).digest() if found else b""

    def tracked() -> Iterator[tuple[Any, Any]]:
        for thing in auxiliary.tracked.values():
            if not isinstance(thing, LoopState):
                yield thing, thing.state_dict

    def remembered() -> Mapping[str, Any]:
        return {
            name: value
            for state in auxiliary.tracked.values()
            if isinstance(state, LoopState)
            for name, value in vars(state.namespace).items()
        }

    def others() -> Iterable[tuple[str, Any]]:
        for name, position in auxiliary.loaders.items():
            if not position.loader.num_workers:
                yield from _datasets_in(position.loader.dataset, f"{name}.dataset")

    return Framework(read_array, kept, tracked, remembered, others, read_version=read_version)


def _tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield the tensors of a module itself that its state_dict has."""
    yield from (one for one in module._parameters.values() if one is not None)
    left_out = module._non_persistent_buffers_set
    yield from (one for name, one in module._buffers.items() if one is not None and name not in left_out)


def _all_tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from (one for one in (*module._parameters.values(), *module._buffers.values()) if one is not None)


def _storage(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _datasets_in(dataset: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield a dataset with the datasets that it wraps."""
    for _ in range(_DEPTH_MAX):
        if dataset is None:
            return
        yield path, dataset
        for at, one in enumerate(list(getattr(dataset, "datasets", None) or ())[:_DEPTH_MAX]):
            yield f"{path}.datasets[{at}]", one
        dataset, path = getattr(dataset, "dataset", None), f"{path}.dataset"
