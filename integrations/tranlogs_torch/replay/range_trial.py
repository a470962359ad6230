"""A trial of whether an optimizer gives a range of elements the bits that it gives whole tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..capture.single_step import step_of
from ..tensors.arrays import NAMES
from .ranges import VECTOR_BYTES, Extent, divide
from .tensor_bundles import RangeBundle, constructor_defaults

_STEPS = 3
_ELEMENTS = 4096  # of a range
_known: dict[tuple[object, ...], bool] = {}


def gives_same_bits(optimizer: torch.optim.Optimizer, group: int, dtype: torch.dtype) -> bool:
    """Take steps of small tensors and of one that threads divide, as a whole and in ranges, and compare all bits.

    Args:
        optimizer: of the class, and with the defaults, that is tried.
        group: index of the parameter group whose options are taken.
        dtype: of the parameters.
    """
    threads = torch.get_num_threads()
    options = {k: v for k, v in optimizer.param_groups[group].items() if k not in ("params", "param_names")}
    key = type(optimizer), dtype, threads, repr(sorted(options.items()))
    if key not in _known:
        _known[key] = _try(optimizer, options, dtype, threads)
    return _known[key]


def _try(optimizer: torch.optim.Optimizer, options: dict[str, Any], dtype: torch.dtype, threads: int) -> bool:
    unit = VECTOR_BYTES // dtype.itemsize
    counts = [unit, 5 * unit, unit + 3, 3, 2 * unit, 32_768 * min(threads, 8) + unit * threads * 3]
    chance = torch.Generator().manual_seed(0)
    start = [_random(count, dtype, chance) for count in counts]
    gradients = [[_random(count, dtype, chance) for count in counts] for _ in range(_STEPS)]
    whole, in_ranges = (_twin(optimizer, options, start) for _ in range(2))
    for given in gradients:
        for parameter, gradient in zip(_parameters(whole), given, strict=True):
            parameter.grad = gradient.clone()
        step_of(type(whole))(whole)
        _step_in_ranges(in_ranges, given, threads)
    return all(
        a.dtype == b.dtype and torch.equal(_bits(a), _bits(b)) for a, b in zip(_all(whole), _all(in_ranges), strict=True)
    )


def _step_in_ranges(optimizer: torch.optim.Optimizer, given: list[torch.Tensor], threads: int) -> None:
    parameters, extents, offset = _parameters(optimizer), [], 0
    for i, parameter in enumerate(parameters):
        extents.append(Extent(str(i), tuple(parameter.shape), NAMES[parameter.dtype], offset))
        offset = extents[-1].end
    payload, itemsize = torch.cat(given), parameters[0].itemsize
    bundles = []
    for range_ in divide(extents, _ELEMENTS, threads):
        bundle = RangeBundle(optimizer, "", 0, range_, [parameters[int(part.name)] for part in range_.parts])
        begin = extents[int(range_.parts[0].name)].offset // itemsize + range_.parts[0].begin
        bundle.set_gradients({range_: payload[begin : begin + range_.elements].clone()})
        bundles.append(bundle)
    for bundle in bundles:
        step_of(type(optimizer))(bundle.optimizer)
    for bundle in bundles:
        bundle.finish()


def _twin(optimizer: torch.optim.Optimizer, options: dict[str, Any], start: list[torch.Tensor]) -> torch.optim.Optimizer:
    parameters = [torch.nn.Parameter(tensor.clone()) for tensor in start]
    return type(optimizer)([{"params": parameters, **options}], **constructor_defaults(optimizer))


def _random(count: int, dtype: torch.dtype, chance: torch.Generator) -> torch.Tensor:
    return torch.randn(count, generator=chance).to(dtype)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    found: list[torch.Tensor] = optimizer.param_groups[0]["params"]
    return found


def _all(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield parameters and their state."""
    for parameter in _parameters(optimizer):
        yield parameter.detach()
        for value in optimizer.state.get(parameter, {}).values():
            if value is not None:
                yield value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float64)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
