"""Torch's values <-> the core's arrays: bytes in storage order, strides kept, sparse order kept.

Private name of torch that this module uses: `DTensor._local_tensor`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from tranlogs.base.types import ITEMSIZE, AnyArray, Array, Bytes, Extension, Piece, SparseArray, TensorSpec
from tranlogs.records import to_numpy
from tranlogs.training import join_torch, split_torch

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEMSIZE if hasattr(torch, name)}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
_RNG = "torch.mt19937"  # tag of the state of a generator of the CPU


def to_array(tensor: torch.Tensor) -> AnyArray:
    """Return a tensor's bytes: a view if it is dense in CPU memory, else a copy. Of a DTensor, return this process's part.

    Raises:
        TypeError: the tensor has a layout or dtype that the format does not hold (CSR, quantized, ...).
    """
    tensor = local(tensor).detach()
    if tensor.layout is torch.sparse_coo:
        indices, values = to_array(tensor._indices()), to_array(tensor._values())
        assert isinstance(indices, Array)
        assert isinstance(values, Array)
        return SparseArray(tuple(tensor.shape), indices, values, tensor.is_coalesced())
    if tensor.layout is not torch.strided or tensor.dtype not in NAMES:
        raise TypeError(f"a tensor of layout {tensor.layout} and dtype {tensor.dtype}")
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    name, shape = NAMES[tensor.dtype], tuple(tensor.shape)
    if tensor.is_contiguous():
        return Array(name, shape, flat_bytes(tensor), odd_strides(tensor) if 1 in shape else None)
    ordered = _in_storage_order(tensor)
    if ordered is None:  # gaps or overlaps: keep the values and the order of the dimensions
        tensor = tensor.clone(memory_format=torch.preserve_format)
        ordered = _in_storage_order(tensor)
    if ordered is None:
        return Array(name, shape, flat_bytes(tensor.contiguous()))
    return Array(name, shape, flat_bytes(ordered), odd_strides(tensor))


def spec_of(name: str, tensor: torch.Tensor) -> TensorSpec:
    """Return the description that `to_array` would give a tensor, without a look at its bytes.

    Raises:
        TypeError: as `to_array`.
    """
    tensor = local(tensor).detach()
    if tensor.layout not in (torch.strided, torch.sparse_coo) or tensor.dtype not in NAMES:
        raise TypeError(f"a tensor of layout {tensor.layout} and dtype {tensor.dtype}")
    shape = tuple(tensor.shape)
    if tensor.layout is torch.sparse_coo:
        return TensorSpec(name, NAMES[tensor.dtype], shape)
    if _in_storage_order(tensor) is None:
        tensor = torch.empty_like(tensor, device="meta")  # with the strides of a clone
    strides = odd_strides(tensor) if _in_storage_order(tensor) is not None else None
    return TensorSpec(name, NAMES[tensor.dtype], shape, strides if 1 in shape or not tensor.is_contiguous() else None)


def flat_bytes(tensor: torch.Tensor) -> Bytes:
    """Return a contiguous CPU tensor's memory as uint8, without a copy."""
    if tensor.numel() == 0:
        return np.empty(0, np.uint8)
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))  # a single element may have any stride, which reshape keeps
    return flat.view(torch.uint8).numpy()


def odd_strides(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Strides other than those of C order; also in dimensions of size 1, where a contiguous channels_last tensor has them."""
    expected, size = [], 1
    for length in reversed(tensor.shape):
        expected.append(size)
        size *= max(1, length)
    strides = tuple(tensor.stride())
    return None if strides == tuple(reversed(expected)) else strides


def memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with its dimensions in the order of memory."""
    strides, shape = tensor.stride(), tensor.shape
    return tensor.permute(sorted(range(tensor.dim()), key=lambda d: (-strides[d], -shape[d])))


def _in_storage_order(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor in the order of memory, if that makes it contiguous."""
    permuted = memory_order(tensor)
    return permuted if permuted.is_contiguous() else None


def from_array(array: AnyArray) -> torch.Tensor:
    """Return the tensor of an array. It shares the array's memory if that is writable."""
    if isinstance(array, SparseArray):
        return torch.sparse_coo_tensor(
            from_array(array.indices),
            from_array(array.values),
            array.shape,
            is_coalesced=array.is_coalesced,
            check_invariants=False,
        )
    dtype = DTYPES[array.dtype]
    if array.nbytes == 0:
        return torch.empty(array.shape, dtype=dtype)
    data = array.data if array.data.flags.writeable else array.data.copy()
    flat = torch.frombuffer(data, dtype=dtype)
    return flat.view(array.shape) if array.strides is None else flat.as_strided(array.shape, array.strides)


def adapt(value: Any) -> Any:
    """Convert torch's plain values to arrays and extensions, for `tree.encode`; return anything else unchanged."""
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            return value
        if value.dtype is torch.uint8 and value.device.type == "cpu" and (split := split_torch(value.numpy())) is not None:
            return Extension(_RNG, split)
        try:
            return to_array(value)
        except TypeError:
            return value
    if isinstance(value, torch.dtype):
        return Extension("torch.dtype", str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return Extension("torch.device", str(value))
    if type(value) is torch.Size:
        return Extension("torch.Size", tuple(value))
    if type(value) is slice:
        return Extension("slice", (value.start, value.stop, value.step))
    return value


def make_array(array: AnyArray) -> Any:
    """Make a tensor, or a numpy array if it was one, for `tree.decode`."""
    if isinstance(array, Array) and not array.is_tensor:
        return to_numpy(array)
    return from_array(array)


def make_extension(extension: Extension) -> Any:
    """Invert `adapt`, for `tree.decode`; return unknown extensions unchanged."""
    value = extension.value
    if extension.tag == "torch.dtype" and isinstance(getattr(torch, str(value), None), torch.dtype):
        return getattr(torch, value)
    if extension.tag == "torch.device":
        return torch.device(value)
    if extension.tag == "torch.Size":
        return torch.Size(value)
    if extension.tag == "slice":
        return slice(*value)
    if extension.tag == _RNG:
        return torch.from_numpy(join_torch(*value))
    return extension


def is_stored_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return True if two tensors of one shape would be recorded with the same order of memory.

    A tensor with gaps is recorded without them, so it is alike one that is dense.
    """
    if a.layout is not torch.strided or b.layout is not torch.strided:
        return True
    return spec_of("", a).strides == spec_of("", b).strides


def write_into(target: torch.Tensor, array: AnyArray) -> None:
    """Give a tensor recorded values, and the recorded order of memory, through `.data`: a parameter may require gradients.

    Values are copied into the tensor's memory if shape and order are as recorded. A parameter that was transposed or resized
    while training gets new memory. This process's part of a sharded parameter is always copied: its memory is the sharding's.
    """
    value, data = from_array(array), target.data
    is_own = type(target) in (torch.Tensor, torch.nn.Parameter)
    if is_own and (data.shape != value.shape or not is_stored_alike(data, value)):
        target.data = value.to(data.device, copy=True)
    else:
        data.copy_(value)


def write_or_make(old: Any, array: AnyArray, device: torch.device) -> torch.Tensor:
    """Return a tensor with recorded values: `old` if its dtype, shape and strides fit, else a new tensor on the device."""
    value = from_array(array)
    if (
        isinstance(old, torch.Tensor)
        and old.layout is value.layout
        and old.dtype == value.dtype
        and old.shape == value.shape
        and old.device.type == device.type
        and (value.layout is not torch.strided or old.stride() == value.stride())
        and value.layout is torch.strided
    ):
        return old.copy_(value)
    if device.type != "cpu":
        return value.to(device)
    return value.clone() if value.layout is torch.sparse_coo else value.clone(memory_format=torch.preserve_format)


class Place(NamedTuple):
    """Place of a part: the shape of the whole, and the part's box or flat range."""

    whole: tuple[int, ...]
    piece: Piece


def is_dtensor(tensor: Any) -> bool:
    """Return True for a DTensor."""
    return hasattr(tensor, "_local_tensor")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a tensor, as a plain tensor that shares its memory."""
    inner: Any = getattr(tensor, "_local_tensor", None)
    if inner is None:
        return tensor
    held: torch.Tensor = inner.wait() if hasattr(inner, "wait") else inner  # a collective may be on its way
    return held
