"""Comparison of what was redone with the fingerprints in the log, bundle by bundle."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch
import xxhash

from tranlogs.base.types import Bytes
from tranlogs.ranks import StepEntry

from ..state.fingerprint import Fingerprint
from ..tensors.arrays import flat_bytes
from .tensor_bundles import Bundle, RangeBundle

_digest = xxhash.xxh3_64_intdigest


class Recorded:
    """The record of one step in the log: its body, and the fingerprint after it.

    Attributes:
        body: the body.
        step: the step.
        digests: one for each compared tensor; [] if the step has none.
        is_full: whether they are digests of all bytes.
        is_plain: whether gradients are given to the optimizer as they are.
        differs_anyway: whether the number of tensors is another one.
    """

    __slots__ = ("_fingerprint", "_places", "body", "differs_anyway", "digests", "is_full", "is_plain", "step")

    def __init__(self, fingerprint: Fingerprint, count: int, entry: StepEntry, body: dict[str, Any]) -> None:
        self.body, self.step, self._fingerprint = body, entry.step, fingerprint
        self.is_plain = body.get("clip") is None and not body.get("amp")
        self.is_full = body["fingerprint"] == "full"
        self.digests: list[int] = np.frombuffer(entry.digests, "<u8").tolist()
        window = () if self.is_full or not self.digests else fingerprint.window(entry.step)
        self._places = {index: place for place, index in enumerate(window)}
        self.differs_anyway = bool(self.digests) and len(self.digests) != (count if self.is_full else len(window))

    def different_sample(self, indices: Sequence[int]) -> int | None:
        """Return the first of these tensors of which sampled bytes are not as recorded; None if there is none."""
        for index in indices:
            place = self._places.get(index)
            if place is not None and self._fingerprint.sampled([index], self.step)[0] != self.digests[place]:
                return index
        return None


class TensorDigests:
    """Digests of whole tensors.

    Args:
        fingerprint: of the run.
        indices: of the tensors in the fingerprint.
        buffers: where they lie; None to ask the fingerprint.
    """

    def __init__(self, fingerprint: Fingerprint, indices: Sequence[int], buffers: Sequence[memoryview] | None = None) -> None:
        self._fingerprint, self.indices, self._buffers = fingerprint, list(indices), buffers
        self._known: list[int] | None = None
        self._pick = _picker(self.indices)

    def forget(self) -> None:
        """Note that the tensors were written to."""
        self._known = None

    def different(self, recorded: Recorded) -> int | None:
        """Return the index of the first tensor that is not as recorded; None if all are."""
        if not recorded.digests or not self.indices:
            return None
        if not recorded.is_full:
            return recorded.different_sample(self.indices)
        found = self._known
        if found is None:
            buffers = self._buffers
            found = list(map(self._fingerprint.one, self.indices)) if buffers is None else list(map(_digest, buffers))
            self._known = found
        wanted = self._pick(recorded.digests)
        if found == wanted:
            return None
        return next(i for i, a, b in zip(self.indices, found, wanted, strict=True) if a != b)


def _picker(indices: list[int]) -> Any:
    """Return what takes the items at these indices out of a list, as a list."""
    if indices and indices == list(range(indices[0], indices[0] + len(indices))):
        return itemgetter(slice(indices[0], indices[0] + len(indices)))
    return lambda digests: [digests[i] for i in indices]


class CutDigest:
    """Digests of a tensor that is redone part by part: each step of a block has one that grows with each part.

    Args:
        fingerprint: of the run.
        index: of the tensor in the fingerprint.
    """

    def __init__(self, fingerprint: Fingerprint, index: int) -> None:
        self.index = index
        self._before = fingerprint.one(index)
        self._growing: dict[int, Any] = {}

    def update(self, position: int, memory: Bytes) -> None:
        """Add a part of the tensor as it is after a step."""
        digest = self._growing.get(position)
        if digest is None:
            digest = self._growing[position] = xxhash.xxh3_64()
        digest.update(memory.data)

    def different(self, recorded: Sequence[Recorded]) -> int | None:
        """Return the position in a block of the first step after which the tensor is not as recorded.

        All parts of the tensor have been redone, up to the end of the block.
        """
        found = None
        for position, one in enumerate(recorded):
            digest = self._growing.get(position)
            if digest is not None:
                self._before = digest.intdigest()
            if found is None and one.digests and (one.differs_anyway or self._before != one.digests[self.index]):
                found = position
        self._growing.clear()
        return found


def tensor_digests(fingerprint: Fingerprint, bundle: Bundle, index: dict[str, int]) -> TensorDigests:
    """Return the digests of a bundle's whole tensors that the fingerprint covers."""
    covered = [i for i, name in enumerate(bundle.names) if name in index]
    indices = [index[bundle.names[i]] for i in covered]
    if not isinstance(bundle, RangeBundle):
        return TensorDigests(fingerprint, indices)
    return TensorDigests(fingerprint, indices, [memory_of_part(bundle.parameters[i]).data for i in covered])


def memory_of_part(tensor: torch.Tensor) -> Bytes:
    """Return the bytes of a contiguous tensor."""
    return flat_bytes(tensor)
