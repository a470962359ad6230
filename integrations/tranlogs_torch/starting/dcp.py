"""Read a folder of torch.distributed.checkpoint into one process, whole, however many processes wrote it."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tranlogs.errors import UsageError
from tranlogs.recovery.recover import Progress
from tranlogs.types import ITEMSIZE

from ..adapt import DTYPES
from .metadata import METADATA, Held, Piece, Place, read_metadata

_ITEMSIZE = {dtype: ITEMSIZE[name] for name, dtype in DTYPES.items()}


def is_folder(path: Path) -> bool:
    """Whether this looks like one."""
    return (path / METADATA).is_file()


def read_folder(folder: Path, *, is_trusted: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """The nest of dicts and lists that was saved.

    Args:
        folder: of the checkpoint.
        is_trusted: whether pickles in it may run code.
        progress: told what is done.

    Raises:
        UsageError: it is damaged, or holds what is not read without trust.
    """
    held = read_metadata(folder, is_trusted=is_trusted)
    nest: dict[str | int, Any] = {}
    for i, (name, about) in enumerate(held.items()):
        value = _object(folder, name, about, is_trusted) if about.dtype is None else _tensor(folder, name, about)
        _put(folder, nest, about.path, _Leaf(value))
        if progress is not None:
            progress("read", i + 1, len(held))
    return {str(key): _listed(folder, value) for key, value in nest.items()}


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A value as it was saved; it may itself be a dict."""

    value: Any


def _tensor(folder: Path, name: str, about: Held) -> torch.Tensor:
    assert about.dtype is not None
    for piece in about.pieces:  # before memory is asked for, as the sizes are the file's own words
        if math.prod(piece.sizes) * _ITEMSIZE.get(about.dtype, 1) > piece.place.length:
            raise _damaged(folder, piece.place, name, "its size is more than there is of it")
    if sum(math.prod(piece.sizes) for piece in about.pieces) != math.prod(about.shape):
        raise UsageError(f"{folder / METADATA}: the pieces of {name} are not the whole of it")
    made = torch.empty(about.shape, dtype=about.dtype)
    covered = torch.zeros(about.shape, dtype=torch.bool) if len(about.pieces) > 1 else None
    for piece in about.pieces:
        _box(made, piece).copy_(_read_piece(folder, name, about.dtype, piece))
        if covered is not None:
            _box(covered, piece).fill_(True)
    if covered is not None and not bool(covered.all()):
        raise UsageError(f"{folder / METADATA}: the pieces of {name} are not the whole of it")
    return made


def _box(tensor: torch.Tensor, piece: Piece) -> torch.Tensor:
    for dimension, (offset, size) in enumerate(zip(piece.offsets, piece.sizes, strict=True)):
        tensor = tensor.narrow(dimension, offset, size)
    return tensor


def _read_piece(folder: Path, name: str, dtype: torch.dtype, piece: Piece) -> torch.Tensor:
    found = _loaded(folder, name, piece.place, is_trusted=False)
    if not isinstance(found, torch.Tensor) or found.dtype != dtype or tuple(found.shape) != piece.sizes:
        raise _damaged(folder, piece.place, name, "it is not the tensor that the metadata name")
    return found


def _object(folder: Path, name: str, about: Held, is_trusted: bool) -> Any:
    return _loaded(folder, name, about.pieces[0].place, is_trusted=is_trusted)


def _loaded(folder: Path, name: str, place: Place, *, is_trusted: bool) -> Any:
    try:
        with open(folder / place.file, "rb") as file:
            file.seek(place.offset)
            data = file.read(place.length)
    except OSError as error:
        raise _damaged(folder, place, name, f"it cannot be read ({error.strerror})") from None
    if len(data) < place.length:
        raise _damaged(folder, place, name, "the file is too short")
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=not is_trusted)
    except Exception as error:  # whatever torch makes of damaged bytes
        why = str(error).partition("\n")[0].partition(". ")[0]
        raise _damaged(folder, place, name, f"it cannot be read with weights_only=True ({why})") from None


def _damaged(folder: Path, place: Place, name: str, why: str) -> UsageError:
    return UsageError(f"{folder / place.file}: {name}: {why}")


def _put(folder: Path, nest: dict[str | int, Any], path: tuple[str | int, ...], value: _Leaf) -> None:
    for part in path[:-1]:
        nest = nest.setdefault(part, {})
        if type(nest) is not dict:
            raise UsageError(f"{folder / METADATA}: {'.'.join(map(str, path))} lies inside of another value")
    if path[-1] in nest:
        raise UsageError(f"{folder / METADATA}: {'.'.join(map(str, path))} is there twice")
    nest[path[-1]] = value


def _listed(folder: Path, value: Any) -> Any:
    """Dicts with numbers for keys were lists."""
    if isinstance(value, _Leaf):
        return value.value
    items = {key: _listed(folder, item) for key, item in value.items()}
    if not any(isinstance(key, int) for key in items):
        return items
    if set(items) != set(range(len(items))):
        raise UsageError(f"{folder / METADATA}: a list in it lacks some of its items")
    return [items[i] for i in range(len(items))]
