"""Reader of checkpoints. Every byte is checked before it is used."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import xxhash

from ..base import lazy_numpy as np
from ..base.atomic_files import ReadFile
from ..base.config import FORMAT_VERSION
from ..base.errors import CannotRead, CorruptCheckpoint, UnknownFormat
from ..base.types import ITEMSIZE, AnyArray, Array, Bytes, Piece, SparseArray
from ..catalog import CheckpointRow
from ..encoding import tree
from .folder import MANIFEST, META, STATE, from_c_order, open_manifest, seal_manifest
from .writer import aux_name


class Checkpoint(ReadFile):
    """A published checkpoint, opened for reading. Its tensors are read one at a time.

    Attributes:
        sequence: the sequence number of the last record before the checkpoint.
        chain: the digest of that record, which the next record names as its predecessor.

    Raises:
        CorruptCheckpoint: a file is missing, its size is not that in the manifest, or the manifest is damaged.
        UnknownFormat: a newer version wrote the checkpoint.
        CannotRead: file handles, memory or rights are missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.manifest: dict[str, Any] = open_manifest((folder / MANIFEST).read_bytes())
            if self.manifest["format"] != FORMAT_VERSION:
                raise UnknownFormat(folder / MANIFEST, self.manifest["format"], FORMAT_VERSION)
            self._tensors: dict[str, dict[str, Any]] = self.manifest["tensors"]
            self.step, self.sequence = int(self.manifest["step"]), int(self.manifest["sequence"])
            self.chain, self.timeline = int(self.manifest["chain"], 16), int(self.manifest["timeline"])
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            if isinstance(error, OSError):
                CannotRead.raise_for(folder / MANIFEST, error)
            raise CorruptCheckpoint(folder / MANIFEST, f"it cannot be read ({error})") from None
        try:
            size, expected = (folder / STATE).stat().st_size, self.manifest["state"]["bytes"]
            if size != expected:
                raise CorruptCheckpoint(folder / STATE, f"expected {expected} bytes, found {size}")
            super().__init__(folder / STATE)
        except OSError as error:
            CannotRead.raise_for(folder / STATE, error)
            raise CorruptCheckpoint(folder / STATE, f"it cannot be opened ({error.strerror})") from None
        self._start = self.manifest["state"]["bytes"] - sum(t["bytes"] for t in self._tensors.values())

    @property
    def nbytes(self) -> int:
        """The size of state.safetensors."""
        return int(self.manifest["state"]["bytes"])

    @property
    def identity(self) -> str:
        """A digest of the manifest, which identifies the checkpoint."""
        return xxhash.xxh3_128_hexdigest(seal_manifest(self.manifest))

    def row(self, name: str) -> CheckpointRow:
        """Return the row for the catalog of a checkpoint with this name."""
        about = self.manifest
        return CheckpointRow(
            name,
            self.step,
            self.sequence,
            about["chain"],
            self.timeline,
            self.nbytes + int(about["meta"]["bytes"]),
            about["created_at"],
        )

    def names(self, prefix: str = "") -> Iterator[str]:
        """Yield the names of the tensors under a prefix, in the order in which they were written."""
        sparse = self.manifest["sparse"]
        seen = set()
        # An empty tensor has the same offset as the next one, and the size decides.
        extents = {name: (int(t["offset"]), int(t["bytes"])) for name, t in self._tensors.items()}
        for name in sorted(extents, key=extents.__getitem__):
            base = name.partition("#")[0]
            base = base if base in sparse else name
            if base.startswith(prefix) and base not in seen:
                seen.add(base)
                yield base

    def layout(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return dtype and shape of a tensor from the manifest."""
        if name in self.manifest["sparse"]:
            return self._tensors[name + "#values"]["dtype"], tuple(self.manifest["sparse"][name]["shape"])
        return self._tensors[name]["dtype"], tuple(self._tensors[name]["shape"])

    def piece(self, name: str) -> tuple[Piece, tuple[int, ...]] | None:
        """Return the position of a piece, and the shape of the whole tensor; None for a tensor that is not a piece."""
        about = self._tensors.get(name, {})
        if "piece" not in about:
            return None
        kind, offset, whole = about["piece"]
        return Piece(kind, tuple(offset), tuple(about["shape"])), tuple(whole)

    def digest(self, prefix: str) -> str:
        """Return a digest of the dense tensors under a prefix, from the checksums in the manifest."""
        sums = [[name, about["dtype"], about["shape"], about["xxh3_64"]] for name, about in sorted(self._tensors.items())]
        return xxhash.xxh3_64_hexdigest(repr([one for one in sums if one[0].startswith(prefix)]).encode())

    def read(self, name: str) -> AnyArray:
        """Read one tensor."""
        sparse = self.manifest["sparse"].get(name)
        if sparse is not None:
            indices, values = self._read_dense(name + "#indices"), self._read_dense(name + "#values")
            return SparseArray(tuple(sparse["shape"]), indices, values, sparse["coalesced"])
        return self._read_dense(name)

    def read_range(self, name: str, first: int, into: Bytes) -> None:
        """Fill `into` with elements of a dense tensor in C order, from the element `first` on.

        The checksum is not compared, because it covers the whole tensor. Call `demand_sound` first.
        """
        about = self._tensors[name]
        if problem := self.fill(into, self._start + about["offset"] + first * ITEMSIZE[about["dtype"]]):
            raise CorruptCheckpoint(self.folder / STATE, problem, tensor=name)

    def demand_sound(self) -> None:
        """Compare all checksums."""
        for _, damage in self.verify():
            if damage is not None:
                raise damage

    def meta(self, **make: Any) -> Any:
        """Decode the tree of all state except tensors. `make_array` and `make_extension` are passed to `tree.decode`."""
        try:
            return tree.decode(self._read_meta(), lambda index, _: self.read(aux_name(index)), **make)
        except (tree.MalformedTree, KeyError) as error:
            raise CorruptCheckpoint(self.folder / META, f"it cannot be decoded ({error})") from None

    def _read_meta(self) -> bytes:
        about = self.manifest["meta"]
        try:
            raw = (self.folder / META).read_bytes()
        except OSError as error:
            CannotRead.raise_for(self.folder / META, error)
            raise CorruptCheckpoint(self.folder / META, f"it cannot be read ({error.strerror})") from None
        if len(raw) != about["bytes"] or xxhash.xxh3_64_hexdigest(raw) != about["xxh3_64"]:
            raise CorruptCheckpoint(self.folder / META, "its checksum differs")
        return raw

    def verify(self) -> Iterator[tuple[int, CorruptCheckpoint | None]]:
        """Check every byte. For each part, yield its size and its damage (None if it is sound)."""
        parts: list[tuple[int, Callable[[], Any]]] = [
            (self._start, self._check_header),
            (int(self.manifest["meta"]["bytes"]), self._check_meta),
        ]
        parts += [(int(about["bytes"]), partial(self._read_checked, name)) for name, about in self._tensors.items()]
        for nbytes, check in parts:
            try:
                check()
                yield nbytes, None
            except CorruptCheckpoint as damage:
                yield nbytes, damage

    def _check_header(self) -> None:
        raw = self._read(self._start, 0, "").tobytes()
        if struct.unpack_from("<Q", raw) != (self._start - 8,):
            raise CorruptCheckpoint(self.folder / STATE, "the length of the header is wrong")
        if xxhash.xxh3_64_hexdigest(raw[8:]) != self.manifest["state"]["header_xxh3_64"]:
            raise CorruptCheckpoint(self.folder / STATE, "the checksum of the header differs")

    def _check_meta(self) -> None:
        try:
            tree.decode(self._read_meta(), lambda _, layout: layout, make_array=lambda _: None)
        except tree.MalformedTree as error:
            raise CorruptCheckpoint(self.folder / META, f"it cannot be decoded ({error})") from None

    def _read_dense(self, name: str) -> Array:
        about = self._tensors.get(name)
        if about is None:
            raise CorruptCheckpoint(self.folder / STATE, "the manifest does not list it", tensor=name)
        shape = tuple(about["shape"])
        if math.prod(shape) * ITEMSIZE[about["dtype"]] != about["bytes"]:
            raise CorruptCheckpoint(self.folder / MANIFEST, "its size does not fit its shape and dtype", tensor=name)
        data = self._read_checked(name)
        strides = tuple(about["strides"]) if "strides" in about else None
        if strides is not None:
            data = from_c_order(data, shape, strides)
        array = Array(about["dtype"], shape, data, strides, not about.get("numpy", False))
        array.piece, array.whole = self.piece(name) or (None, None)
        return array

    def _read_checked(self, name: str) -> Bytes:
        about = self._tensors[name]
        data = self._read(about["bytes"], self._start + about["offset"], name)
        if xxhash.xxh3_64_hexdigest(data.data) != about["xxh3_64"]:
            raise CorruptCheckpoint(self.folder / STATE, "the checksum of its bytes differs", tensor=name)
        return data

    def _read(self, size: int, offset: int, name: str) -> Bytes:
        data = np.empty(size, np.uint8)
        if problem := self.fill(data, offset):
            raise CorruptCheckpoint(self.folder / STATE, problem, tensor=name)
        return data
