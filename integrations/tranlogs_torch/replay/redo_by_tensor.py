"""Redo tensor by tensor: a block of steps of some tensors, or of a part of one, while they lie in the processor's cache.

The bits are those of redoing step by step. Optimizers whose steps alternate (a GAN) take part together: the steps of the
others leave a tensor as it is, so its digest need not be taken again to be compared after them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from tranlogs.ranks import StepEntry
from tranlogs.training import Decoded, Divergence

from ..capture.single_step import amp_of, clip_again, step_of, without_hooks
from ..state.optimizer_states import write_hyper
from ..state.state import TorchState
from .bundle_division import Division, SpannedBundles
from .gradient_blocks import Block, GradientBlocks, Gradients
from .redone_digests import CutDigest, Recorded, TensorDigests, memory_of_part, tensor_digests
from .tensor_bundles import Bundle, RangeBundle

_COUNT_DIFFERS = "the number of parameters"
_BUNDLE_ELEMENTS = 262_144  # small tensors are redone together, so that Python's cost a call is shared, and large ones in parts


class ByTensor:
    """Redo a run of gradient records, a block of steps and a bundle of tensors at a time.

    Args:
        state: that is redone.
        run: records of optimizers that have no tensor in common; those of each have as many parameter groups.
    """

    def __init__(self, state: TorchState, run: list[Decoded]) -> None:
        self.state, self.run = state, run
        self.last = {body["optimizer"]: position for position, (_, body) in enumerate(run)}  # record of each optimizer
        self.optimizers = {which: state.optimizers[which] for which in self.last}
        self.fingerprint = state.fingerprint
        self.index = {name: i for i, name in enumerate(list(state.parameters)[: len(self.fingerprint.tensors)])}
        self.first = len(run)  # position in the run of the first divergence
        self.tensor = ""
        self._digests: dict[int, TensorDigests] = {}  # by id of the bundle
        self._cut: dict[str, CutDigest] = {}  # by name of a parameter that is redone in parts

    @torch.no_grad()
    def redo(self, tick: Callable[[int], None]) -> Divergence | None:
        """Apply the run; a Divergence if a fingerprint differs."""
        spans = self._divide()
        bundles = [bundle for _, bundles in spans for bundle in bundles]
        records = [(entry, body["optimizer"]) for entry, body in self.run]
        recorded: list[Recorded] = []
        with ExitStack() as stack:
            for optimizer in self.optimizers.values():
                stack.enter_context(without_hooks(optimizer))
            for block in stack.enter_context(GradientBlocks(records, [span for span, _ in spans])):
                if block.span == 0:
                    recorded = [self._recorded(*self.run[block.first + i]) for i in range(block.steps)]
                for bundle in spans[block.span][1]:
                    self._redo_bundle(bundle, block, recorded)
                    if block.first <= self.last[bundle.which] < block.first + block.steps:
                        bundle.keep_gradients()
                if block.span == len(spans) - 1:
                    tick(block.first + block.steps)
        for bundle in bundles:
            bundle.finish()
        self._compare_untouched({name for bundle in bundles for name in bundle.names})
        for which, position in self.last.items():
            write_hyper(self.state.named, which, self.run[position][1]["hyper"])
        self.state.redone.kinds |= {body["fingerprint"] for _, body in self.run}
        if self.first == len(self.run):
            return None
        return Divergence(self.run[self.first][0].step, self.tensor)

    def _recorded(self, entry: StepEntry, body: dict[str, Any]) -> Recorded:
        return Recorded(self.fingerprint, len(self.index), entry, body)

    def _divide(self) -> list[SpannedBundles]:
        found: list[SpannedBundles] = []
        for which in self.optimizers:
            groups = len(self.run[self.last[which]][1]["hyper"])  # a group after these was added later
            records = [(entry, body) for entry, body in self.run if body["optimizer"] == which]
            found += Division(self.state, which, records, groups, _BUNDLE_ELEMENTS).spans()
        for bundle in [bundle for _, bundles in found for bundle in bundles]:
            cut = bundle.cut
            if cut is None:
                self._digests[id(bundle)] = tensor_digests(self.fingerprint, bundle, self.index)
            elif cut.begin == 0 and cut.name in self.index:
                self._cut[cut.name] = CutDigest(self.fingerprint, self.index[cut.name])
        return found

    def _redo_bundle(self, bundle: Bundle, block: Block, recorded: Sequence[Recorded]) -> None:
        step = step_of(type(bundle.optimizer))
        if isinstance(bundle, RangeBundle) and bundle.cut is not None:
            self._redo_part(bundle, bundle.cut.name, step, block, recorded)
            return
        digests = self._digests[id(bundle)]
        for position, (gradients, one) in enumerate(zip(block.gradients, recorded, strict=True), block.first):
            if gradients is not None:
                _step(bundle, step, gradients, one)
                digests.forget()
            if position < self.first and (different := self._different(digests, one)) is not None:
                self.first, self.tensor = position, different

    def _different(self, digests: TensorDigests, recorded: Recorded) -> str | None:
        if recorded.differs_anyway and digests.indices:
            return _COUNT_DIFFERS
        index = digests.different(recorded)
        return None if index is None else list(self.index)[index]

    def _redo_part(
        self, bundle: RangeBundle, name: str, step: Callable[[Any], Any], block: Block, recorded: Sequence[Recorded]
    ) -> None:
        """Redo a part of a tensor; compare the tensor once its last part is done."""
        digest, memory = self._cut.get(name), memory_of_part(bundle.parameters[0])
        for i, (gradients, one) in enumerate(zip(block.gradients, recorded, strict=True)):
            if gradients is not None:
                _step(bundle, step, gradients, one)
                if digest is not None:
                    digest.update(i, memory)
        if digest is None or not bundle.is_last:
            return
        different = digest.different(recorded)
        if different is not None and block.first + different < self.first:
            self.first = block.first + different
            self.tensor = _COUNT_DIFFERS if recorded[different].differs_anyway else name

    def _compare_untouched(self, done: set[str]) -> None:
        """Compare frozen parameters, and those of other optimizers, which must stay as recorded."""
        left = [i for name, i in self.index.items() if name not in done]
        if not left:
            return
        digests = TensorDigests(self.fingerprint, left)  # the same at every position
        for position in range(self.first):
            tensor = self._different(digests, self._recorded(*self.run[position]))
            if tensor is not None:
                self.first, self.tensor = position, tensor
                return


def _step(bundle: Bundle, step: Callable[[Any], Any], gradients: Gradients, recorded: Recorded) -> None:
    """Redo one step of a bundle's tensors."""
    optimizer, body = bundle.optimizer, recorded.body
    bundle.set_hyper(body["hyper"][bundle.group])
    bundle.set_gradients(gradients)
    if recorded.is_plain:
        step(optimizer)
        return
    clip_again([p for p in bundle.trained if p.grad is not None], body)
    with amp_of(optimizer, body):
        step(optimizer)
