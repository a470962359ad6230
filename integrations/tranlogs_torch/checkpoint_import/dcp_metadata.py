"""The `.metadata` file of a torch.distributed.checkpoint folder: which tensors and objects the folder holds, and where.

The file is a pickle. `FileSystemReader.read_metadata` passes it to `pickle.load`, which executes whatever the file names, and
torch's weights_only unpickler does not know this version of the pickle protocol. So the file is read here, in two steps:

1. Unpickle. A class becomes an empty stand-in, made for this one file. No class or function of any module is looked up, so the
   pickle can build plain values and stand-ins, and nothing else.
2. Check every name, path, size and offset, and copy them into torch's own classes, for torch's own reader.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from reprlib import repr  # a nest of shared lists would fill the memory
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch

from tranlogs.base.errors import UsageError

from ..tensors.arrays import DTYPES

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

METADATA = ".metadata"
Sizes = tuple[int, ...]
_DEPTH_MAX = 64  # of the nest of dicts and lists that was saved

_DTYPES = {f"torch.{name}": dtype for name, dtype in DTYPES.items()}
_DCP = "torch.distributed.checkpoint."
_SHARDED = "torch.distributed._shard.sharded_tensor.metadata."  # up to torch 2.2
_CLASSES = frozenset(
    [
        *(
            f"{_DCP}metadata.{name}"
            for name in (
                "Metadata",
                "TensorStorageMetadata",
                "BytesStorageMetadata",
                "ChunkStorageMetadata",
                "TensorProperties",
                "MetadataIndex",
                "StorageMeta",
                "_MEM_FORMAT_ENCODING",
            )
        ),
        f"{_DCP}filesystem._StorageInfo",
        f"{_SHARDED}TensorProperties",
        f"{_SHARDED}MEM_FORMAT_ENCODING",
        "torch.serialization._get_layout",
        "pathlib.PosixPath",
        "pathlib.WindowsPath",
        "pathlib._local.PosixPath",
        "pathlib._local.WindowsPath",
    ]
)


def read_metadata(folder: Path, *, is_trusted: bool = False) -> Metadata:
    """Return the metadata of a folder, checked.

    Args:
        folder: a folder of torch.distributed.checkpoint.
        is_trusted: True to unpickle as torch does, which executes whatever the file names.

    Raises:
        UsageError: the file is damaged, does not fit the other files, or names what does not belong in it.
    """
    file = folder / METADATA
    try:
        data = file.read_bytes()
        return _check(folder, pickle.loads(data) if is_trusted else _Unpickler(io.BytesIO(data)).load())
    except UsageError:
        raise
    except _Refused as error:
        raise UsageError(
            f"{file}: it {error}, which does not belong in this file. Reading such a file could execute code. If "
            "you trust whoever wrote it, --trust (trust=True) reads it as torch does"
        ) from None
    except Exception as error:  # a damaged pickle can raise anything
        raise UsageError(
            f"{file}: not valid metadata of torch.distributed.checkpoint ({type(error).__name__}: {error})"
        ) from None


# Unpickling.


class _Refused(Exception):
    """The pickle uses something that such a file does not need. The text is a predicate, to follow "it"."""


class _Record:
    """Base of the stand-ins for the classes that a pickle names: ignores arguments, keeps attributes."""

    def __init__(self, *arguments: object) -> None: ...

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple):  # that of TensorProperties
            state = {"dtype": state[0]}
        self.__dict__.update(state)


# The unpickler in C allocates memory for any index that a pickle gives to the memo, and ends the process when a key is a deeply
# nested tuple. Python's own is restricted here to these opcodes, and to keys of simple types.
_OPCODES = [
    "PROTO",
    "FRAME",
    "STOP",
    "MARK",
    "NONE",
    "NEWTRUE",
    "NEWFALSE",
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "BINFLOAT",
    "SHORT_BINUNICODE",
    "BINUNICODE",
    "BINUNICODE8",
    "SHORT_BINBYTES",
    "BINBYTES",
    "EMPTY_TUPLE",
    "TUPLE",
    "TUPLE1",
    "TUPLE2",
    "TUPLE3",
    "EMPTY_LIST",
    "APPEND",
    "APPENDS",
    "EMPTY_DICT",
    "SETITEM",
    "SETITEMS",
    "MEMOIZE",
    "BINPUT",
    "LONG_BINPUT",
    "BINGET",
    "LONG_BINGET",
    "GLOBAL",
    "STACK_GLOBAL",
    "NEWOBJ",
    "REDUCE",
    "BUILD",
]
_Base: Any = pickle._Unpickler


class _Unpickler(_Base):  # type: ignore[misc]
    """Unpickler of step 1 above."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name: never what the name means to Python."""
        full = f"{module}.{name}"
        if full in _CLASSES:
            return type(name, (_Record,), {})
        if full == "torch.Size":
            return tuple
        if full == "collections.OrderedDict":
            return type(name, (dict,), {"__init__": lambda self: None})
        if full not in _DTYPES:
            raise _Refused(f"refers to {full}")
        return _DTYPES[full]

    def _refuse(self) -> None:
        raise _Refused("uses an opcode of pickle")

    def _set_item(self) -> None:
        self._check_keys(self.stack[-2:-1])
        self.load_setitem()

    def _set_items(self) -> None:
        self._check_keys(self.stack[::2])
        self.load_setitems()

    def _check_keys(self, keys: list[Any]) -> None:
        if not all(isinstance(key, (str, int, _Record)) for key in keys):
            raise _Refused("has a key that is neither a string, a number nor an index")

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **dict.fromkeys(range(256), _refuse),
        **{getattr(pickle, name)[0]: _Base.dispatch[getattr(pickle, name)[0]] for name in _OPCODES},
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _set_items,
    }


# Checking.


def _check(folder: Path, found: Any) -> Metadata:
    """Return a copy of unpickled metadata, of torch's classes, in which every value was checked."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo  # importing it takes a second
    from torch.distributed.checkpoint.metadata import (
        BytesStorageMetadata,
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )

    given: dict[tuple[str, Sizes | None], Any] = {}
    for index, info in found.storage_data.items():
        offset = getattr(index, "offset", None)
        given[_text(index.fqn), None if offset is None else _sizes(offset)] = info
    paths = found.planner_data if isinstance(found.planner_data, Mapping) else {}
    made = Metadata({}, {}, {})
    for name, entry in found.state_dict_metadata.items():
        made.planner_data[_text(name)] = _path(name, paths)
        if type(entry).__name__ == "BytesStorageMetadata":
            made.state_dict_metadata[name] = BytesStorageMetadata()
            made.storage_data[MetadataIndex(name)] = _StorageInfo(*_place(folder, name, given.get((name, None))))
            continue
        dtype, shape = entry.properties.dtype, _sizes(entry.size)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{name} has no dtype")
        chunks = [(_sizes(chunk.offsets), _sizes(chunk.sizes)) for chunk in entry.chunks]
        for offsets, sizes in chunks:
            place = _place(folder, name, given.get((name, offsets), given.get((name, None))))
            if math.prod(sizes) * dtype.itemsize > place[2]:  # before memory is allocated for it
                raise UsageError(f"{folder / place[0]}: the metadata give {name} more bytes than the file contains")
            made.storage_data[MetadataIndex(name, offsets)] = _StorageInfo(*place)
        _check_chunks(folder, name, shape, chunks)
        made.state_dict_metadata[name] = TensorStorageMetadata(
            TensorProperties(dtype=dtype), torch.Size(shape), [ChunkStorageMetadata(*map(torch.Size, one)) for one in chunks]
        )
    return made


def _check_chunks(folder: Path, name: str, shape: Sizes, chunks: list[tuple[Sizes, Sizes]]) -> None:
    """Demand that the chunks fill the tensor, and do not overlap."""
    torch.empty(shape, device="meta")  # raises if the sizes overflow
    is_whole = sum(math.prod(sizes) for _, sizes in chunks) == math.prod(shape)
    if is_whole and chunks != [((0,) * len(shape), shape)]:
        covered = torch.zeros(shape, dtype=torch.bool)
        for offsets, sizes in chunks:
            covered[tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))] = True
        is_whole = bool(covered.all())
    if not is_whole:
        raise UsageError(f"{folder / METADATA}: the chunks of {name} do not add up to the tensor")


def _place(folder: Path, name: str, info: Any) -> tuple[str, int, int]:
    """Return file, offset and length of a piece."""
    if info is None:
        raise ValueError(f"no file contains {name}, or a chunk of it")
    if descriptors := getattr(info, "transform_descriptors", None):
        raise ValueError(f"{name} was saved with {repr(descriptors)}, which is not supported. Save it again without")
    file, (offset, length) = _text(info.relative_path), _sizes((info.offset, info.length))
    if Path(file).is_absolute() or ".." in Path(file).parts:
        raise ValueError(f"{name} is in the file {repr(file)}, which is not in the folder")
    try:
        size = (folder / file).stat().st_size
    except OSError as error:
        raise UsageError(f"{folder / file}: the file contains {name} and cannot be read ({error.strerror})") from None
    if offset + length > size:
        raise UsageError(f"{folder / file}: the file is too short: {name} ends at byte {offset + length} of {size}")
    return file, offset, length


def _path(name: str, paths: Mapping[Any, Any]) -> tuple[str | int, ...]:
    """Return where an entry stands in the nest of dicts and lists that was saved."""
    path = tuple(paths.get(name, (name,)))
    if not 0 < len(path) <= _DEPTH_MAX or not all(type(part) in (str, int) for part in path):
        raise ValueError(f"{name} has no valid path")
    return path


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{repr(value)} is not a name")
    return value


def _sizes(values: Iterable[Any]) -> Sizes:
    found = tuple(values)
    if not all(type(value) is int and value >= 0 for value in found):
        raise ValueError(f"{repr(found)} are not sizes")
    return cast(Sizes, found)
