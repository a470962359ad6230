"""The `.metadata` of a torch.distributed.checkpoint folder: which tensors and objects it holds, and in which files.

The file is a pickle. It is read without running anything of it (plain_pickle.py), unless the user says that it is trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr  # what nests and is shared would fill the memory
from typing import Any

import torch

from tranlogs.errors import UsageError

from ..adapt import DTYPES
from .plain_pickle import Record, Refused, read_pickle

METADATA = ".metadata"
_DEPTH_MAX = 64  # of the nest that was saved

_OWN = "torch.distributed.checkpoint.metadata."
_OLD = "torch.distributed._shard.sharded_tensor.metadata."  # of torch 2.2
_RECORDS = frozenset([
    *(_OWN + name for name in ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
                               "TensorProperties", "MetadataIndex", "StorageMeta")),
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    _OLD + "TensorProperties",
])  # fmt: skip


def _nothing(*_: object) -> None:
    """What is not looked at."""


_MAKERS: dict[str, Callable[..., Any]] = {
    "torch.Size": tuple,
    _OWN + "_MEM_FORMAT_ENCODING": _nothing,
    _OLD + "MEM_FORMAT_ENCODING": _nothing,
    "torch.serialization._get_layout": _nothing,
    **{f"pathlib.{inside}{kind}": _nothing for inside in ("", "_local.") for kind in ("PosixPath", "WindowsPath")},
    "collections.OrderedDict": dict,
}
_VALUES = {f"torch.{name}": dtype for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the bytes of a piece are."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a tensor."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Held:
    """One entry: a tensor, or an object (dtype None) in one place."""

    path: tuple[str | int, ...]  # where it stands in the nest of dicts and lists that was saved
    dtype: torch.dtype | None
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


def read_metadata(folder: Path, *, is_trusted: bool = False) -> dict[str, Held]:
    """What a folder holds, by its flat names.

    Args:
        folder: of the checkpoint.
        is_trusted: whether the pickle in it may run code.

    Raises:
        UsageError: it is no such folder, is damaged, or names what is not taken.
    """
    file = folder / METADATA
    try:
        found = _unpickled(folder) if is_trusted else read_pickle(file.read_bytes(), _RECORDS, _VALUES, _MAKERS)
        return _checked(found)
    except Refused as error:
        raise UsageError(f"{file}: {error}. A pickle runs whatever it names, so it is refused; if you know who wrote it, "
                         "--trust (trust=True) reads it as torch does") from None  # fmt: skip
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{file}: it is no sound metadata of torch.distributed.checkpoint ({error})") from None


def _unpickled(folder: Path) -> Any:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    try:
        return FileSystemReader(folder).read_metadata()
    except Exception as error:  # whatever a pickle raises
        raise UsageError(f"{folder / METADATA}: it cannot be read ({type(error).__name__}: {error})") from None


def _checked(found: Any) -> dict[str, Held]:
    paths = found.planner_data if isinstance(found.planner_data, Mapping) else {}
    places: dict[tuple[str, tuple[int, ...] | None], Any] = {}
    for index, info in found.storage_data.items():
        offset = getattr(index, "offset", None)
        places[index.fqn, None if offset is None else _numbers(offset)] = info
    held = {}
    for name, about in found.state_dict_metadata.items():
        path = tuple(paths.get(name, (name,)))
        if not (isinstance(name, str) and 0 < len(path) <= _DEPTH_MAX and all(isinstance(part, (str, int)) for part in path)):
            raise ValueError(f"the name {name!r} has no path")
        if (about.name if isinstance(about, Record) else type(about).__name__).endswith("BytesStorageMetadata"):
            held[name] = Held(path, None, (), (Piece((), (), _place(places[name, None])),))
            continue
        held[name] = _tensor(name, path, about, places)
    return held


def _tensor(name: str, path: tuple[str | int, ...], about: Any, places: Mapping[Any, Any]) -> Held:
    properties, shape = about.properties, _numbers(about.size)
    dtype = properties.state[0] if isinstance(properties, Record) else properties.dtype
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name} has no dtype")
    pieces = []
    for chunk in about.chunks:
        offsets, sizes = _numbers(chunk.offsets), _numbers(chunk.sizes)
        if not len(offsets) == len(sizes) == len(shape):
            raise ValueError(f"a piece of {name} has other dimensions than the whole")
        if any(offset + size > whole for offset, size, whole in zip(offsets, sizes, shape, strict=True)):
            raise ValueError(f"a piece of {name} lies outside of it")
        info = places.get((name, offsets), places.get((name, None)))
        if info is None:
            raise ValueError(f"a piece of {name} is nowhere")
        pieces.append(Piece(offsets, sizes, _place(info)))
    return Held(path, dtype, shape, tuple(pieces))


def _place(info: Any) -> Place:
    if getattr(info, "transform_descriptors", None):
        raise ValueError(f"its data went through {', '.join(info.transform_descriptors)}, which is not read here; load it with "
                         "torch and save it plainly")  # fmt: skip
    file, (offset, length) = info.relative_path, _numbers((info.offset, info.length))
    if not isinstance(file, str) or Path(file).is_absolute() or ".." in Path(file).parts:
        raise ValueError(f"it names the file {repr(file)}, which is not in the folder")
    return Place(file, offset, length)


def _numbers(values: Iterable[Any]) -> tuple[int, ...]:
    found = tuple(values)
    if not all(type(value) is int and value >= 0 for value in found):
        raise ValueError(f"{repr(found)} are no sizes")
    return found
