"""Contents of binary files, for comparison: what `torch.save` and `numpy.savez` write, without running anything in it."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

_HARMLESS = {("collections", "OrderedDict"): OrderedDict}


class _Stub:
    """Stands for an object of any class: what it was made of."""

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        made = super().__new__(cls)
        made.__dict__["made_of"] = (arguments, options)
        return made

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.__dict__["state"] = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__dict__.setdefault("items", []).append((key, value))

    def append(self, value: Any) -> None:
        self.__dict__.setdefault("items", []).append(value)

    def extend(self, values: Any) -> None:
        self.__dict__.setdefault("items", []).extend(values)

    def __hash__(self) -> int:
        return hash(type(self).__name__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stub) and plain(self) == plain(other)


class _Reader(pickle.Unpickler):
    """Reads the structure of a pickle. No class and no function that it names is looked up or called."""

    def find_class(self, module: str, name: str) -> Any:
        return _HARMLESS.get((module, name)) or type(f"{module}.{name}", (_Stub,), {})

    def persistent_load(self, pid: Any) -> Any:
        return ("stored", *[part if isinstance(part, (str, int)) else type(part).__name__ for part in pid])


def read_archive(path: Path) -> Any:
    """Return the contents of a zip archive by name, with pickles in it as plain values; None if the file is none."""
    if not zipfile.is_zipfile(path):
        return None
    found: dict[str, Any] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                data, inner = archive.read(name), name.partition("/")[2] or name
                if inner == ".data/serialization_id":  # a digest of the order of the bytes
                    continue
                found[inner] = plain(_Reader(io.BytesIO(data)).load()) if inner.endswith(".pkl") else data
    except Exception:  # whatever is wrong with a file that somebody else wrote: it is compared as bytes
        return None
    return found


def plain(value: Any) -> Any:
    """Return a value of stubs as dicts, lists and plain values."""
    if isinstance(value, _Stub):
        return {"class": type(value).__name__, **{name: plain(item) for name, item in vars(value).items()}}
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, dict):
        return {repr(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
