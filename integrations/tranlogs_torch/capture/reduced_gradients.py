"""Gradients in fewer bytes: what the optimizer consumes is the rounded gradient, and exactly that is logged.

bf16    the upper half of a float32. It is logged as a bfloat16 tensor `bf16/NAME`; gradients of two bytes stay as they are
int8    an integer from -127 to 127 for each element, `int8/NAME`, and for each `BLOCK` elements in the order of memory (the
        last block has fewer) a float32, `scale/NAME`. Their product is the gradient. A block with an element that is not
        finite has a scale that is not finite

Both round up or down at random, so that the expected value is the gradient. The random numbers are a table's, read from a
place that depends on the number of the step alone: they are the same on every device and in each process that takes the step,
and no generator of the script is touched. Recovery draws nothing, because it reads the rounded gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from tranlogs.base.errors import UsageError

from ..device.gather import Form, TensorOffsets
from ..tensors.arrays import memory_order

Reduction = Literal["bf16", "int8"]
Named = tuple[list[str], list[torch.Tensor]]

BLOCK = 256
_CODES = {"bf16": torch.bfloat16, "int8": torch.int8}
_DIRECT_BYTES = 64 << 10  # of codes: a larger gradient in the memory of a CPU is rounded where it lies
# Blocks that are rounded at once. On a CPU they fit into the cache of a core, and are fewer than torch divides among
# threads: these would have to be waited for in each of many short operations, for long where cores are busy.
_BLOCKS, _BLOCKS_FAR = 127, 1 << 14
_NUMBERS = 1 << 16  # random numbers
_HIGH_HALF = -(1 << 16)
# The largest element of a block becomes a little less than 127, so that no rounding makes 128 of it.
_LARGEST = 127 / (1 + 2**-20)
_SCALE_MIN = 2.0**-126  # of a block of zeros


class ReducedGradients:
    """Rounds the gradients of one optimizer, in place.

    Args:
        kind: to what.
    """

    def __init__(self, kind: Reduction) -> None:
        self.kind = kind
        self._plan: _Plan | None = None
        self._noise: _Noise | None = None

    def reduce(self, names: Sequence[str], gradients: Sequence[torch.Tensor | None], step: int) -> Named:
        """Replace gradients by what they are rounded to; return what the log has of them.

        Args:
            names: of each, "grad/NAME".
            gradients: of the parameters; None where there is none.
            step: steps that were taken before this one.

        Raises:
            UsageError: a gradient cannot be rounded; none was touched.
        """
        present = [gradient for gradient in gradients if gradient is not None]
        plan = self._plan
        if plan is None or not plan.fits(names, gradients, present):
            for name, gradient in zip(names, gradients, strict=True):
                if gradient is not None and (why := _find_obstacle(gradient, self.kind)):
                    raise UsageError(self._refuse(f"the gradient of {name[5:]} {why}"))
            if len({gradient.device for gradient in present}) > 1:
                raise UsageError(self._refuse("gradients are on several devices"))
            plan = self._plan = _Plan(self.kind, names, gradients)
        if len({g.data_ptr() for g in plan.rounded_of(present)}) < len(plan.rounded):
            raise UsageError(self._refuse("two parameters have one gradient"))
        if plan.rounded:
            if self._noise is None or self._noise.device != plan.device:
                self._noise = _Noise(plan.device, is_whole=self.kind == "bf16")
            plan.round(present, self._noise, step)
        return plan.names, plan.logged(present)

    def _refuse(self, why: str) -> str:
        return f'log="gradients:{self.kind}": {why}. Use log="gradients"'


def _find_obstacle(gradient: torch.Tensor, kind: Reduction) -> str:
    """Return why a gradient cannot be rounded; "" if it can, or stays as it is."""
    if type(gradient) is not torch.Tensor:
        return f"is a {type(gradient).__name__}"
    if gradient.layout is not torch.strided:
        return "is sparse"
    if gradient.dtype is not torch.float32 and not (kind == "bf16" and gradient.dtype in (torch.bfloat16, torch.float16)):
        return f"is {str(gradient.dtype).removeprefix('torch.')}, and float32 is rounded"
    if gradient.is_neg() or not memory_order(gradient).is_contiguous():
        return "has gaps or overlaps in memory"
    return ""


class _Noise:
    """Random integers from 0 to 65,535 (`is_whole`), or these as numbers between 0 and 1."""

    def __init__(self, device: torch.device, *, is_whole: bool) -> None:
        self.device = device
        self.blocks = _BLOCKS if device.type == "cpu" else _BLOCKS_FAR
        chance = np.random.RandomState(0)  # its numbers are the same in each version of numpy
        # All integers equally often, so that a place drawn at random gives each with one probability.
        self._count = -(-self.blocks * BLOCK // _NUMBERS) * _NUMBERS
        once = np.concatenate([chance.permutation(_NUMBERS) for _ in range(self._count // _NUMBERS)])
        table = torch.from_numpy(np.concatenate([once, once[: self.blocks * BLOCK]]).astype(np.int32))
        self._table = (table if is_whole else (table.to(torch.float32) + 0.5) / _NUMBERS).to(device)
        self.scratch = torch.empty(self.blocks, BLOCK, dtype=self._table.dtype, device=device)

    def of(self, step: int, number: int, blocks: int) -> torch.Tensor:
        """Return numbers for some blocks of a step's gradients, which are rounded at once."""
        x = (step << 32 | number) + 1  # splitmix64
        x = x * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        x = (x ^ x >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        at = (x ^ x >> 31) % self._count
        return self._table.as_strided((blocks, BLOCK), (BLOCK, 1), at)


class _Plan:
    """One set of gradients that are present, of given forms.

    Small gradients are gathered in one piece of memory, where each begins at a multiple of `BLOCK`, are rounded there at once,
    and copied back. On a GPU all of them are.
    """

    def __init__(self, kind: Reduction, names: Sequence[str], gradients: Sequence[torch.Tensor | None]) -> None:
        self._kind, self._given = kind, names
        self._is_there = [gradient is not None for gradient in gradients]
        found = [(name, gradient) for name, gradient in zip(names, gradients, strict=True) if gradient is not None]
        self._forms = [_form(gradient) for _, gradient in found]
        # Indices among those that are present.
        self.rounded = [i for i, (_, g) in enumerate(found) if g.dtype is torch.float32 and g.numel()]
        self._kept = sorted(set(range(len(found))) - set(self.rounded))
        self.device = found[0][1].device if found else torch.device("cpu")
        itemsize = _CODES[kind].itemsize

        def is_direct(gradient: torch.Tensor) -> bool:
            count = gradient.numel()
            return self.device.type == "cpu" and count % BLOCK == 0 and count * itemsize >= _DIRECT_BYTES

        self._direct = [i for i in self.rounded if is_direct(found[i][1])]
        self._gathered = [i for i in self.rounded if not is_direct(found[i][1])]
        forms = [Form(torch.float32, tuple(found[i][1].shape), tuple(found[i][1].stride())) for i in self._gathered]
        offsets = TensorOffsets(forms, alignment=4 * BLOCK)
        nbytes = -(-offsets.nbytes // (4 * BLOCK)) * 4 * BLOCK
        arena = torch.zeros(nbytes, dtype=torch.uint8, device=self.device)
        self._arena = arena.view(torch.float32)
        self._views = [offsets.view(arena, k) for k in range(len(forms))]
        starts, at = [start // 4 for start in offsets.starts], nbytes // 4
        self._block_counts = [at // BLOCK, *(found[i][1].numel() // BLOCK for i in self._direct)]
        self._parts: tuple[list[torch.Tensor], ...] = ()
        for i in self._direct:
            starts.append(at)
            at += found[i][1].numel()
        self._codes = torch.zeros(at, dtype=_CODES[kind], device=self.device)
        self._scales = torch.zeros(at // BLOCK if kind == "int8" else 0, dtype=torch.float32, device=self.device)
        self.names = [found[i][0] for i in self._kept]
        self._logged: list[torch.Tensor] = []
        for i, start in zip(self._gathered + self._direct, starts, strict=True):
            name, gradient = found[i][0][5:], found[i][1]
            self.names.append(f"{kind}/{name}")
            self._logged.append(self._codes.as_strided(gradient.shape, gradient.stride(), start))
            if kind == "int8":
                self.names.append(f"scale/{name}")
                self._logged.append(self._scales[start // BLOCK : start // BLOCK + -(-gradient.numel() // BLOCK)])

    def fits(self, names: Sequence[str], gradients: Sequence[torch.Tensor | None], present: Sequence[torch.Tensor]) -> bool:
        """Return True if the gradients are laid out as those that the plan was made of."""
        if names is not self._given or [gradient is not None for gradient in gradients] != self._is_there:
            return False
        return all(g.layout is torch.strided for g in present) and [_form(g) for g in present] == self._forms

    def rounded_of(self, present: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of the gradients that are rounded."""
        return [present[i] for i in self.rounded] if self._kept else present

    def logged(self, present: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return what the log has of the gradients. The next step overwrites it."""
        return [present[i] for i in self._kept] + self._logged if self._kept else self._logged

    @torch.no_grad()
    def round(self, present: Sequence[torch.Tensor], noise: _Noise, step: int) -> None:
        """Round the gradients."""
        gathered = [present[i] for i in self._gathered]
        if gathered:
            torch._foreach_copy_(self._views, gathered)
        flats = [_flat(present[i]) for i in self._direct]
        parts = [part for flat in (self._arena, *flats) if len(flat) for part in flat.view(-1, BLOCK).split(noise.blocks)]
        round_part = _round_bf16 if self._kind == "bf16" else _round_int8
        for number, (part, codes, scales, scratch) in enumerate(zip(parts, *self._targets(noise), strict=True)):
            round_part(part, noise.of(step, number, len(part)), scratch, codes, scales)
        if gathered:
            torch._foreach_copy_(gathered, self._views)

    def _targets(self, noise: _Noise) -> tuple[list[torch.Tensor], ...]:
        """Return where the parts are rounded to: codes, scales, and memory to compute in."""
        if not self._parts and len(self._codes):
            sizes = [size for count in self._block_counts for size in _split(count, noise.blocks)]
            scales = self._scales.view(-1, 1).split(sizes) if self._kind == "int8" else [self._scales] * len(sizes)
            scratch = [noise.scratch[:size] for size in sizes]
            self._parts = list(self._codes.view(-1, BLOCK).split(sizes)), list(scales), scratch
        return self._parts


def _split(count: int, most: int) -> list[int]:
    return [most] * (count // most) + [count % most] * (count % most > 0)


def _round_bf16(
    values: torch.Tensor, noise: torch.Tensor, scratch: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
) -> None:
    torch.add(values.view(torch.int32), noise, out=scratch)
    scratch.bitwise_and_(_HIGH_HALF)
    # The sum of a NaN and the noise may look like a number. Zero times the gradient is NaN again.
    torch.add(scratch.view(torch.float32), values, alpha=0, out=values)
    codes.copy_(values)


def _round_int8(
    values: torch.Tensor, noise: torch.Tensor, scratch: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
) -> None:
    torch.abs(values, out=scratch)
    torch.amax(scratch, 1, keepdim=True, out=scales)
    scales.mul_(1 / _LARGEST).clamp_(min=_SCALE_MIN)
    torch.addcdiv(noise, values, scales, out=scratch)
    codes.copy_(scratch.floor_())
    values.copy_(codes).mul_(scales)  # as `expand` does it


def expand(codes: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
    """Write the products of integers and the scales of their blocks. All are flat."""
    out.copy_(codes)
    whole = len(out) // BLOCK
    out[: whole * BLOCK].view(-1, BLOCK).mul_(scales[:whole].view(-1, 1))
    if whole < len(scales):
        out[whole * BLOCK :].mul_(scales[whole])


def widen(name: str, logged: Mapping[str, torch.Tensor], out: torch.Tensor) -> None:
    """Write the gradient of a parameter that the log has in fewer bytes. `out` lies in memory as what is logged does."""
    if f"bf16/{name}" in logged:
        out.copy_(logged[f"bf16/{name}"])
    else:
        expand(_flat(logged[f"int8/{name}"]), logged[f"scale/{name}"], _flat(out))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor in the order of memory."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def _form(gradient: torch.Tensor) -> Any:
    return gradient.dtype, gradient.shape, gradient.stride(), gradient.device
