"""Digests of tensors, computed where the tensors are.

A tensor's bytes, in the order of its memory, are read as little-endian int32 words, with zeros after the last byte, in rows
of 256 words. With word w[j, i] in row j,

    digest = sum over j of b[j] * (sum over i of a[i] * w[j, i])  +  L * (number of bytes)      modulo 2**64

where a, b and L are odd constants from splitmix64. Sums of integers that wrap around do not depend on their order: the numbers
are the same on any device, with any number of threads, and by any division of the work.

What it finds:

- Any change within one word (so, of one element of at most 4 bytes) changes the digest, always: an odd constant has an inverse
  modulo 2**64, so a difference that is not zero stays one.
- Changes of several words, with differences d[j, i] of which 2**v is the largest common power of two: the digest stays only if
  the sum of b * a * d / 2**v is zero modulo 2**(64 - v). For constants that have nothing to do with the changes, the chance is
  about 2**-(63 - v). Words are 32 bits of a 64-bit sum, so v is at most 31: the chance is 2**-63 where any lowest bit of a word
  has changed, and at worst 2**-32, where nothing but the topmost bit of each word did (signs of float32 values). With 64-bit
  words the worst case would be certain: two flipped signs would cancel.
- It is no cryptographic hash. Whoever wants to can make two tensors with the same digest.

Work on a GPU: large tensors are read in place; small ones, tails and tensors with gaps are gathered into a window by
multi-tensor copies. Each window (`DIGEST_BYTES` of tensors) takes a multiplication and a row sum; at the end one cumulative sum
over all rows gives all tensors' sums at once. Memory on the device: one window, the products of one (twice its size), and 24
bytes for each row of 1 KiB. One transfer of 8 bytes a tensor brings the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tranlogs.base.config import DIGEST_BYTES

from ..tensors.arrays import memory_order
from .gather import Form, Gather, TensorOffsets, form_in_memory_order

Digests = npt.NDArray[np.uint64]

ROW_WORDS = 256
ROW_BYTES = 4 * ROW_WORDS
_DIRECT_BYTES = 1 << 20  # a tensor from here on is read in place; gathering a smaller one is cheaper than kernels of its own
_COLUMN_SEED, _ROW_SEED = 0x243F6A8885A308D3, 0x13198A2E03707344
LENGTH = 0xA4093822299F31D1  # odd


def odd_constants(seed: int, count: int) -> Digests:
    """Return `count` odd numbers: splitmix64 of consecutive states from `seed`, with the lowest bit set."""
    x = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) | np.uint64(1)


def columns() -> Digests:
    """Return the constants of the words within a row."""
    return odd_constants(_COLUMN_SEED, ROW_WORDS)


def rows(count: int) -> Digests:
    """Return the constants of the first `count` rows."""
    return odd_constants(_ROW_SEED, count)


class PendingDigests:
    """Digests that a device is computing."""

    def __init__(self, host: torch.Tensor, event: Any) -> None:
        self._host, self._event = host, event

    def result(self) -> Digests:
        """Wait for the digests, one for each tensor."""
        if self._event is not None:
            self._event.synchronize()
        return self._host.numpy().view(np.uint64).copy()


class DeviceDigests:
    """Computes digests of lists of tensors. What was prepared for a list is kept until another list, or other memory, comes."""

    def __init__(self, window_bytes: int = DIGEST_BYTES, direct_bytes: int = _DIRECT_BYTES) -> None:
        self._window_bytes, self._direct_bytes = window_bytes, max(direct_bytes, ROW_BYTES)
        self._plans: dict[torch.device, _Plan] = {}

    def digests(self, tensors: Sequence[torch.Tensor]) -> Digests:
        """Return one digest for each tensor: dense, plain ones (of a DTensor, the local part), on any devices.

        On a GPU it waits for all work that the current stream has been given; `start` does not.
        """
        devices = {tensor.device for tensor in tensors}
        if len(devices) == 1:
            return self.start(tensors).result()
        found = np.empty(len(tensors), np.uint64)
        pending = []
        for device in devices:
            indices = [i for i, tensor in enumerate(tensors) if tensor.device == device]
            pending.append((indices, self.start([tensors[i] for i in indices])))
        for indices, one in pending:
            found[indices] = one.result()
        return found

    def start(self, tensors: Sequence[torch.Tensor]) -> PendingDigests:
        """Enqueue the work for tensors of one device on its current stream."""
        device = tensors[0].device
        tensors = [tensor.detach() for tensor in tensors]
        signature = [(t.data_ptr(), t.shape, t.stride(), t.dtype) for t in tensors]
        plan = self._plans.get(device)
        if plan is None or plan.signature != signature:
            self._plans.pop(device, None)  # its memory may serve for the new one
            plan = self._plans[device] = _Plan(tensors, signature, self._window_bytes, self._direct_bytes)
        return plan.start(tensors)


class _Piece(NamedTuple):
    """A piece that a window gathers: a whole tensor, or the tail of a tensor that is read in place."""

    tensor: int  # its index
    tail: torch.Tensor | None
    form: Form
    first_row: int  # within the tensor


class _Round(NamedTuple):
    """Pieces that are gathered at once.

    Attributes:
        gather: into the window.
        pieces: in the order of the window.
        words: of the window, in rows.
        first: row of the first one among all rows.
    """

    gather: Gather
    pieces: list[_Piece]
    words: torch.Tensor
    first: int


class _Plan:
    """Plan for computing the digests of one list of tensors.

    The rows of all tensors are numbered through: first those that are read in place, tensor by tensor, then those of the
    windows. A tensor has one run of rows in either part; both may be empty.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], signature: list[Any], window_bytes: int, direct_bytes: int) -> None:
        self.signature = signature
        self._device = device = tensors[0].device
        runs = np.zeros((2, 2, len(tensors)), np.int64)  # [in place or gathered, first or last, tensor]
        multipliers: list[Digests] = []
        self._direct: list[tuple[torch.Tensor, int]] = []  # words in rows, and the number of their first row
        pieces: list[_Piece] = []
        at = 0
        most = max((-(-tensor.nbytes // ROW_BYTES) for tensor in tensors), default=0)
        constants = rows(most)
        for i, tensor in enumerate(tensors):
            memory = _bytes_in_place(tensor) if tensor.nbytes >= direct_bytes else None
            if memory is None:
                pieces.append(_Piece(i, None, form_in_memory_order(tensor), 0))
                continue
            count = tensor.nbytes // ROW_BYTES
            words = memory[: count * ROW_BYTES].view(torch.int32).view(count, ROW_WORDS)
            step = max(1, window_bytes // ROW_BYTES)
            self._direct += [(words[j : j + step], at + j) for j in range(0, count, step)]
            multipliers.append(constants[:count])
            runs[0, :, i] = at, at + count
            at += count
            if tensor.nbytes % ROW_BYTES:
                tail = memory[count * ROW_BYTES :]
                pieces.append(_Piece(i, tail, Form(torch.uint8, tuple(tail.shape)), count))
        self._rounds: list[_Round] = []
        self._window = torch.empty(0, dtype=torch.uint8, device=device)
        at = self._plan_rounds(tensors, pieces, window_bytes, at, runs, multipliers, constants)
        longest = max([words.shape[0] for words, _ in self._direct] + [turn.words.shape[0] for turn in self._rounds], default=0)
        self._products = torch.empty((longest, ROW_WORDS), dtype=torch.int64, device=device)
        self._columns = _on(device, columns())
        self._multipliers = _on(device, np.concatenate(multipliers) if multipliers else np.empty(0, np.uint64))
        self._row_sums = torch.empty(at, dtype=torch.int64, device=device)
        self._running = torch.zeros(at + 1, dtype=torch.int64, device=device)  # the first stays zero
        self._runs = torch.from_numpy(runs).to(device)
        lengths = np.array([tensor.nbytes for tensor in tensors], np.uint64) * np.uint64(LENGTH)
        self._lengths = _on(device, lengths)

    def _plan_rounds(
        self,
        tensors: Sequence[torch.Tensor],
        pieces: list[_Piece],
        window_bytes: int,
        at: int,
        runs: npt.NDArray[np.int64],
        multipliers: list[Digests],
        constants: Digests,
    ) -> int:
        """Divide what is gathered into windows; return the number of rows so far."""
        places = TensorOffsets([piece.form for piece in pieces], alignment=ROW_BYTES)
        divided = places.rounds(window_bytes)
        sizes = [_whole_rows(places.stop(run[-1])) - places.base(run.start) for run in divided]
        self._window = torch.zeros(max(sizes, default=0), dtype=torch.uint8, device=self._device)
        for run, size in zip(divided, sizes, strict=True):
            base, mine = places.base(run.start), [pieces[k] for k in run]
            for k in run:
                piece, first = pieces[k], at + (places.starts[k] - base) // ROW_BYTES
                count = -(-piece.form.nbytes // ROW_BYTES)
                runs[1, :, piece.tensor] = first, first + count
                multipliers.append(constants[piece.first_row : piece.first_row + count])
            gather = Gather([places.view(self._window, k, base) for k in run], self._sources(mine, tensors))
            words = self._window[:size].view(torch.int32).view(-1, ROW_WORDS)
            self._rounds.append(_Round(gather, mine, words, at))
            at += size // ROW_BYTES
        return at

    @staticmethod
    def _sources(pieces: list[_Piece], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [tensors[piece.tensor] if piece.tail is None else piece.tail for piece in pieces]

    @torch.no_grad()
    def start(self, tensors: Sequence[torch.Tensor]) -> PendingDigests:
        """Enqueue the work for the tensors that were planned for."""
        for words, first in self._direct:
            self._sum_rows(words, first)
        for turn in self._rounds:
            if len(self._rounds) > 1:
                self._window.zero_()  # else the zeros after each tensor are still there
            turn.gather.copy(self._sources(turn.pieces, tensors))
            self._sum_rows(turn.words, turn.first)
        torch.cumsum(self._row_sums.mul_(self._multipliers), 0, out=self._running[1:])
        sums = self._running[self._runs]
        found = (sums[:, 1] - sums[:, 0]).sum(0) + self._lengths
        if self._device.type != "cuda":
            return PendingDigests(found.cpu(), None)
        host = torch.empty(found.shape, dtype=torch.int64, pin_memory=True)
        host.copy_(found, non_blocking=True)
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(self._device))
        return PendingDigests(host, event)

    def _sum_rows(self, words: torch.Tensor, first: int) -> None:
        count = words.shape[0]
        products = torch.mul(words, self._columns, out=self._products[:count])
        torch.sum(products, 1, out=self._row_sums[first : first + count])


def _bytes_in_place(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a tensor's memory as bytes, if it has no gaps and begins where words may."""
    ordered = memory_order(tensor)
    is_aligned = tensor.storage_offset() * tensor.itemsize % 4 == 0 and tensor.data_ptr() % 4 == 0
    if not ordered.is_contiguous() or not is_aligned or tensor.is_conj() or tensor.is_neg():
        return None
    return ordered.reshape(-1).view(torch.uint8)


def _whole_rows(nbytes: int) -> int:
    return -(-nbytes // ROW_BYTES) * ROW_BYTES


def _on(device: torch.device, values: Digests) -> torch.Tensor:
    return torch.from_numpy(values.view(np.int64)).to(device)
