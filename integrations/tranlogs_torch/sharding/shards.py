"""Tensors of which this process holds a part: DTensors (FSDP2, tensor parallelism).

The update of a sharded parameter is taken element by element on its part, so a part is all that is logged, put into
checkpoints and redone, each with its place in the whole. Only `settled` communicates with other processes.

Private name of torch that this module uses: `compute_local_shape_and_global_offset` of `torch.distributed.tensor._utils`.

Other ways to shard a training are refused by name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from tranlogs.base.errors import UsageError
from tranlogs.base.types import AnyArray, Array, Piece, TensorSpec

from ..tensors import arrays
from ..tensors.arrays import Place, is_dtensor, local, to_array

_PLACE = "_tranlogs_place"  # on a plain tensor that was made from a part, without its script
_SCALARS = {"step", "eta", "mu", "mu_product"}  # state of torch's optimizers that is one number whatever the parameter is

# Optimizers of torch whose update of an element depends on no other element; all state is by element, or a count of steps.
_BY_ELEMENT = frozenset({"SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD"})


def place_of(parameter: torch.Tensor) -> Place | None:
    """Return the place of this process's part of a parameter; None if this process holds all of it.

    Raises:
        UsageError: its layout is not supported.
    """
    if not is_dtensor(parameter):
        return getattr(parameter, _PLACE, None)
    whole: Any = parameter
    found = _box(tuple(whole.shape), whole.device_mesh, tuple(whole.placements))
    if found is not None and found.piece.length != tuple(local(parameter).shape):
        raise UsageError(
            f"a DTensor of shape {found.whole} with the placements {whole.placements}: the part in this process, "
            f"{tuple(local(parameter).shape)}, is not a box of the tensor"
        )
    return found


@lru_cache(maxsize=100_000)
def _box(shape: tuple[int, ...], mesh: Any, placements: tuple[Any, ...]) -> Place | None:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if any(placement.is_partial() for placement in placements):
        raise UsageError(
            f"a DTensor with the placements {placements}: a parameter that is a sum over processes cannot be logged"
        )
    length, offset = compute_local_shape_and_global_offset(shape, mesh, placements)
    return None if tuple(length) == shape else Place(shape, Piece("box", tuple(offset), tuple(length)))


def shape_of(parameter: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of the whole parameter."""
    place = place_of(parameter)
    return tuple(parameter.shape) if place is None else place.whole


def put_place(parameter: torch.Tensor, place: Place) -> None:
    """Note where a plain tensor lies in the parameter that it is a part of."""
    setattr(parameter, _PLACE, place)


def array_of(
    tensor: torch.Tensor, parameter: torch.Tensor, convert: Callable[[torch.Tensor], AnyArray] | None = None
) -> AnyArray:
    """Return the bytes of a tensor in a parameter's layout (its gradient, its state), with their place in the whole.

    `convert` makes an array of a tensor: `arrays.to_array` if it is None.
    """
    return placed((convert or to_array)(tensor), parameter)


def spec_of(name: str, tensor: torch.Tensor, parameter: torch.Tensor) -> TensorSpec:
    """Return the description of what is laid out as a parameter: `array_of` without its bytes."""
    spec, place = arrays.spec_of(name, tensor), place_of(parameter)
    if place is None or spec.shape != place.piece.length or tensor.layout is not torch.strided:
        return spec
    return replace(spec, shape=place.whole, piece=place.piece)


def placed(content: AnyArray, parameter: torch.Tensor) -> AnyArray:
    """Add the place in the whole to the bytes of a tensor in a parameter's layout."""
    place = place_of(parameter)
    if place is not None and isinstance(content, Array) and content.shape == place.piece.length:
        content.whole, content.piece = place
    return content


def is_alike(key: str, value: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Return True if an optimizer's state `key` is laid out, and thus sharded, like its parameter."""
    return has_layout(key, local(value).shape, local(parameter).shape)


def has_layout(key: str, shape: tuple[int, ...], parameter: tuple[int, ...]) -> bool:
    """Return the same, given the shapes of a state `key` and of its parameter."""
    return shape == parameter and (len(shape) > 0 or key not in _SCALARS)


def like(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Wrap this process's part like its parameter: in a DTensor, or not at all."""
    if not is_dtensor(parameter) or is_dtensor(value):
        return value
    from torch.distributed.tensor import DTensor

    whole: Any = parameter
    with torch.no_grad():
        return DTensor.from_local(
            value, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
        )


def settled(parameter: torch.Tensor) -> torch.Tensor | None:
    """Return a parameter's gradient in the parameter's own layout.

    Under tensor parallelism a sum over processes may be pending, which the step would take. All processes take it here, and the
    gradient keeps it.
    """
    gradient: Any = parameter.grad
    if is_dtensor(gradient) and is_dtensor(parameter):
        wanted = parameter.placements  # type: ignore[attr-defined]
        if gradient.placements != wanted:
            gradient = parameter.grad = gradient.redistribute(placements=wanted)
    return gradient  # type: ignore[no-any-return]


def is_part(parameter: torch.Tensor) -> bool:
    """Return True if this process may hold only a part of the parameter."""
    return is_dtensor(parameter) or place_of(parameter) is not None


def describe(parameters: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return the layout of parameters over the processes, as plain values; empty if none is sharded.

    `meshes` has each mesh's dimensions, sizes and the ranks in C order; `tensors` by name [mesh, shape of the whole, placement
    in each dimension of the mesh].
    """
    meshes: list[dict[str, Any]] = []
    tensors: dict[str, list[Any]] = {}
    for name, parameter in parameters.items():
        whole: Any = parameter
        if not is_dtensor(parameter) or whole.device_mesh.size() == 1:
            continue
        mesh = _described(whole.device_mesh)
        if mesh not in meshes:
            meshes.append(mesh)
        tensors[name] = [meshes.index(mesh), list(whole.shape), [_words(p) for p in whole.placements]]
    return {"meshes": meshes, "tensors": tensors} if tensors else {}


def _described(mesh: Any) -> dict[str, Any]:
    return {"names": list(mesh.mesh_dim_names or ()), "shape": list(mesh.mesh.shape), "ranks": mesh.mesh.flatten().tolist()}


def _words(placement: Any) -> str:
    """`Shard(0)`, `Replicate()`, or as torch names a shard of a shard."""
    is_plain = placement.is_shard() and type(placement).__name__ == "Shard"
    return f"Shard({placement.dim})" if is_plain else repr(placement)


def is_relaid(parameters: Mapping[str, torch.Tensor], recorded: Mapping[str, Any]) -> bool:
    """Return True if the layout of a parameter differs from the recorded one (from `describe`)."""
    now = describe(parameters)
    return any(_layout(now, name) != _layout(recorded, name) for name in parameters)


def _layout(sharding: Mapping[str, Any], name: str) -> Any:
    mesh, _, placements = sharding.get("tensors", {}).get(name, (None, (), ()))
    return None if mesh is None else (sharding["meshes"][mesh], list(placements))


def differences(parameters: Mapping[str, torch.Tensor], recorded: Mapping[str, Iterable[Any] | None]) -> list[str]:
    """Return the parameters of which this process holds another part than was recorded ([kind, offset, whole] by name)."""
    found = []
    for name, about in recorded.items():
        if name not in parameters:
            continue
        place = place_of(parameters[name])
        now = None if place is None else [place.piece.kind, list(place.piece.offset), list(place.whole)]
        was = None if about is None else list(about)
        if now != was:
            found.append(f"parameter {name}: this process had {_words_of(was)} and now has {_words_of(now)}")
    return found


def _words_of(piece: list[Any] | None) -> str:
    return "all of it" if piece is None else f"the part of shape {piece[2]} at offset {piece[1]}"


def is_by_element(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if an optimizer is of one of these classes of torch, and not of a subclass or a namesake."""
    kind = type(optimizer)
    return kind.__name__ in _BY_ELEMENT and getattr(torch.optim, kind.__name__, None) is kind


def demand_known_modules(modules: Mapping[str, nn.Module]) -> None:
    """Refuse modules under the wrapper class FullyShardedDataParallel.

    Raises:
        UsageError: there is one.
    """
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # who has not imported it has none
    kind = getattr(fsdp, "FullyShardedDataParallel", None)
    if kind is not None and any(isinstance(m, kind) for root in modules.values() for m in root.modules()):
        raise UsageError(
            "FullyShardedDataParallel is not logged: it hides each parameter in a flat one. Use its successor, "
            "torch.distributed.fsdp.fully_shard(model)"
        )


def demand_known_optimizer(optimizer: Any) -> None:
    """Refuse a ZeroRedundancyOptimizer.

    Raises:
        UsageError: it is one.
    """
    known: Any = sys.modules.get("torch.distributed.optim")
    kind = getattr(known, "ZeroRedundancyOptimizer", None)
    if kind is not None and isinstance(optimizer, kind):
        raise UsageError(
            "ZeroRedundancyOptimizer is not logged: each rank steps only some of the parameters. Shard parameters and "
            "optimizer with torch.distributed.fsdp.fully_shard(model), or use the plain optimizer"
        )
