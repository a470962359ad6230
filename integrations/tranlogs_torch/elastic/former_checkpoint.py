"""The checkpoint of a former rank: described to all processes, and read by range."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tranlogs.base.errors import UsageError
from tranlogs.base.types import ITEMSIZE, Bytes
from tranlogs.records import Checkpoint

from ..sharding.shards import has_layout
from ..tensors import arrays
from ..tensors.arrays import Place
from .transfer_plan import BoxPiece, Shape, StoredBox, cut

_NOT_TAKEN = ("ddp", "beside", "waiting")  # of a boundary: state of the former reducers and neighbours, and gradients


class FormerCheckpoint(Checkpoint):
    """The checkpoint of a former rank at the step at which the run resumes.

    Args:
        folder: of the checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._buffer: Bytes = np.empty(0, np.uint8)

    @cached_property
    def tree(self) -> dict[str, Any]:
        """The metadata of the checkpoint: all that is no tensor."""
        found: dict[str, Any] = self.meta(make_array=arrays.make_array, make_extension=arrays.make_extension)
        return found

    @property
    def body(self) -> dict[str, Any]:
        """The body of the boundary, as far as another process can take it."""
        return {key: value for key, value in self.tree["boundary"].items() if key not in _NOT_TAKEN}

    def describe(self, replay: dict[str, Any], *, with_body: bool) -> dict[str, Any]:
        """Return what other processes need to know, as plain values.

        Args:
            replay: the result of `RecordedState.describe_replay`; empty if nothing was redone.
            with_body: add the body of the boundary.

        Raises:
            UsageError: a tensor, or the state of an optimizer, cannot be divided among processes.
        """
        optimizers: dict[str, Any] = {}
        for which, about in self.tree["optimizers"].items():
            if "" in about["state"]:
                raise UsageError(
                    f"optimizer {which!r} keeps state that belongs to no parameter and cannot be divided among a different "
                    "number of processes. Start as many processes as before"
                )
            optimizers[which] = about
        found = {
            "tensors": [tuple(box) for box in self._boxes()],
            "optimizers": optimizers,
            "environment": self.manifest["environment"],
            "born": self.tree["born"],
            "kinds": [],
            "stale": [],
            "notes": [],
            **replay,
            "whole": "" if any(self.piece(name) for name in self.names("param/")) else self.digest("param/"),
            "folder": str(self.folder.resolve()),
            "identity": self.identity,
        }
        return found | {"body": self.body} if with_body else found

    def read_piece(self, piece: BoxPiece) -> Bytes:
        """Return the bytes of a piece in C order. They are valid until the next call."""
        box, itemsize = piece.box, ITEMSIZE[piece.box.dtype]
        row = math.prod(box.length[1:])
        skipped, rows = (piece.offset[0] - box.offset[0], piece.length[0]) if piece.length else (0, 1)
        found = self._elements(box, box.first + skipped * row, rows * row)
        if piece.length[1:] == box.length[1:]:
            return found
        inner = zip(piece.offset[1:], box.offset[1:], piece.length[1:], strict=True)
        slices = [slice(at - first, at - first + count) for at, first, count in inner]
        return np.ascontiguousarray(found.reshape(rows, *box.length[1:], itemsize)[(slice(None), *slices)]).reshape(-1)

    def _elements(self, box: StoredBox, first: int, count: int) -> Bytes:
        itemsize = ITEMSIZE[box.dtype]
        if box.name.startswith("grad/"):
            gradient = self.tree["boundary"]["waiting"][box.name[5:]]
            held = arrays.flat_bytes(gradient.detach().resolve_conj().resolve_neg().contiguous())
            return held[first * itemsize : (first + count) * itemsize]
        if self._buffer.nbytes < count * itemsize:
            self._buffer = np.empty(count * itemsize, np.uint8)
        data = self._buffer[: count * itemsize]
        self.read_range(box.name, first, data)
        return data

    def _boxes(self) -> Iterator[StoredBox]:
        """Yield the boxes of all tensors that are divided anew. A tensor without elements has an empty one."""
        for name in self.names("param/"):
            yield from self._cut(name, *self.layout(name), name[6:])
        for which, about in self.tree["optimizers"].items():
            for parameter, items in about["state"].items():
                for key, _, device in items:
                    if device:
                        name = f"state/{which}/{parameter}/{key}"
                        dtype, shape = self.layout(name)
                        is_alike = has_layout(key, shape, self.layout(f"param/{parameter}")[1])
                        yield from self._cut(name, dtype, shape, parameter if is_alike else "")
        for parameter, gradient in self.tree["boundary"]["waiting"].items():
            if gradient.layout is not torch.strided:
                raise _sparse(f"grad/{parameter}")
            yield from self._cut(f"grad/{parameter}", arrays.NAMES[gradient.dtype], tuple(gradient.shape), parameter)

    def _cut(self, name: str, dtype: str, shape: Shape, parameter: str) -> Iterator[StoredBox]:
        if name in self.manifest["sparse"]:
            raise _sparse(name)
        stored = f"param/{parameter}"
        found = self.piece(stored) if parameter and self.layout(stored)[1] == shape else None
        place = None if found is None else Place(found[1], found[0])
        whole = shape if place is None else place.whole
        nothing = (0,) * max(1, len(whole))
        first = 0
        for offset, box in cut(torch.empty(shape, device="meta"), place) or [(nothing, torch.empty(nothing, device="meta"))]:
            yield StoredBox(name, dtype, offset, tuple(box.shape), whole, parameter, first)
            first += box.numel()


def _sparse(name: str) -> UsageError:
    return UsageError(
        f"{name} is a sparse tensor, which cannot be divided among a different number of processes. Start as many processes "
        "as before"
    )
