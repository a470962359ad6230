"""Division of the optimizers' parameters into bundles, and of bundles into spans whose gradients are read together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter

import torch

from tranlogs.base.types import TensorSpec
from tranlogs.ranks import JoinedEntry, StepEntry
from tranlogs.records import Entry
from tranlogs.training import Decoded

from ..sharding.update_kinds import BY_ELEMENT, is_one_of
from ..state.state import TorchState
from ..tensors.arrays import NAMES
from .gradient_blocks import Span
from .range_trial import gives_same_bits
from .ranges import Extent, divide, is_even
from .tensor_bundles import Bundle, RangeBundle, TensorBundle, are_alike, can_be_flat

_SPAN_BYTES = 1 << 20  # at least; less only at the end

SpannedBundles = tuple[Span, list[Bundle]]


class Division:
    """The bundles of one optimizer for a run of records.

    Args:
        state: that is redone.
        which: name of the optimizer.
        records: the records of the optimizer in the run.
        groups: number of parameter groups.
        elements_max: of a bundle. Only a tensor that cannot be cut may have more.
    """

    def __init__(self, state: TorchState, which: str, records: Sequence[Decoded], groups: int, elements_max: int) -> None:
        self._state, self._which, self._elements_max = state, which, elements_max
        self._optimizer = state.optimizers[which]
        self._entry = _common_form([entry for entry, _ in records])
        self._largest = max(entry.raw_bytes for entry, _ in records)
        is_full = all(body["fingerprint"] == "full" or not entry.digests for entry, body in records)
        self._can_be_flat = self._entry is not None and is_full and is_one_of(BY_ELEMENT, self._optimizer)
        self._extents: dict[str, Extent] = _extents(self._entry) if self._entry is not None else {}
        self.bundles = [bundle for group in range(groups) for bundle in self._divide(group)]

    def spans(self) -> Iterator[SpannedBundles]:
        """Yield the spans in the order of the payload, each with its bundles."""
        if self._entry is None:
            yield self._span(self.bundles, self._largest), self.bundles
            return
        taken: list[Bundle] = []
        begin = end = 0
        for bundle, first, last in sorted(map(self._covered, self.bundles), key=itemgetter(1)):
            # Behind a tensor of another dtype, one may not be aligned in memory that both are read into.
            if taken and (end - begin >= _SPAN_BYTES or bundle.trained[0].dtype != taken[-1].trained[0].dtype):
                yield self._span(taken, end - begin), taken
                taken = []
            begin, end = (min(begin, first), max(end, last)) if taken else (first, last)
            taken.append(bundle)
        if taken:
            yield self._span(taken, end - begin), taken

    def _span(self, bundles: Sequence[Bundle], nbytes: int) -> Span:
        return Span(self._which, tuple(key for bundle in bundles for key in bundle.keys), nbytes)

    def _covered(self, bundle: Bundle) -> tuple[Bundle, int, int]:
        """Return a bundle and where its gradients lie in the payload."""
        if isinstance(bundle, RangeBundle):
            part = bundle.parts[0]
            extent = self._extents[part.name]
            first = extent.offset + part.begin * extent.itemsize
            return bundle, first, first + bundle.nbytes
        found = [self._extents[name] for name in bundle.names if name in self._extents]
        return bundle, min((e.offset for e in found), default=0), max((e.end for e in found), default=0)

    def _divide(self, group: int) -> Iterator[Bundle]:
        """Divide a parameter group into ranges where that gives the same bits, and into whole tensors."""
        parameters = {self._state.name_of[id(p)]: p for p in self._optimizer.param_groups[group]["params"]}
        threads = torch.get_num_threads()
        if self._can_be_flat:
            for alike in self._alike(parameters, threads):
                if not gives_same_bits(self._optimizer, group, parameters[alike[0].name].dtype):
                    continue
                for range_ in divide(alike, self._elements_max, threads):
                    members = [parameters[part.name] for part in range_.parts]
                    yield RangeBundle(self._optimizer, self._which, group, range_, members)
                for extent in alike:
                    del parameters[extent.name]
        yield from self._whole(parameters, group)

    def _alike(self, parameters: Mapping[str, torch.Tensor], threads: int) -> list[list[Extent]]:
        """Return the parameters that can be flat, in the order of the payload: those together that can be merged."""
        found: list[list[Extent]] = []
        before: torch.Tensor | None = None
        states = self._optimizer.state
        for extent in sorted((e for name, e in self._extents.items() if name in parameters), key=attrgetter("offset")):
            parameter = parameters[extent.name]
            state = states.get(parameter, {})
            fits = extent.is_in_order and extent.dtype == NAMES.get(parameter.dtype) and extent.shape == tuple(parameter.shape)
            if not fits or not can_be_flat(parameter, state) or not is_even(extent.elements, extent.itemsize, threads):
                continue
            if before is None or before.dtype != parameter.dtype or not are_alike(states.get(before, {}), state):
                found.append([])
            found[-1].append(extent)
            before = parameter
        return found

    def _whole(self, parameters: Mapping[str, torch.Tensor], group: int) -> Iterator[Bundle]:
        """Large tensors alone, small ones together."""
        names: list[str] = []
        count = 0
        for name, parameter in parameters.items():
            if names and count + parameter.numel() > self._elements_max:
                yield TensorBundle(self._optimizer, self._which, group, names, [parameters[n] for n in names])
                names, count = [], 0
            names.append(name)
            count += parameter.numel()
        if names:
            yield TensorBundle(self._optimizer, self._which, group, names, [parameters[n] for n in names])


def _common_form(entries: Sequence[StepEntry]) -> Entry | None:
    """Return one of the records, if all have the same tensors, each of them whole and dense; else None."""
    one = entries[0]
    if isinstance(one, JoinedEntry):
        return None
    layout = one.layout
    for entry in entries:
        if isinstance(entry, JoinedEntry) or entry.absent != one.absent or entry.sparse:
            return None
        if entry.layout is not layout:  # of another segment
            if entry.layout != layout:
                return None
            layout = entry.layout
    is_whole = len(one.layout.index) == len(one.layout) and all(spec.piece is None for spec in one.layout.tensors)
    return one if is_whole else None


def _extents(entry: Entry) -> dict[str, Extent]:
    """Return where the gradients of a record lie in its payload, by name of the parameter."""
    found = {}
    for i, (spec, offset) in enumerate(zip(entry.layout.tensors, entry.starts(), strict=True)):
        kind, _, name = spec.name.partition("/")
        if kind == "grad" and i not in entry.absent:
            found[name] = Extent(name, spec.shape, spec.dtype, offset, _is_in_order(spec))
    return found


def _is_in_order(spec: TensorSpec) -> bool:
    """Return True if a tensor lies in memory in the order of its elements."""
    wanted = 1
    for size, stride in zip(reversed(spec.shape), reversed(spec.strides or ()), strict=False):
        if size != 1 and stride != wanted:
            return False
        wanted *= size
    return True
