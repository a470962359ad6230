"""A toy training run without a framework: momentum SGD on numpy arrays, with everything that a real integration has."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from tranlogs.base.notes import coded
from tranlogs.base.types import AnyArray, Array, dense
from tranlogs.checkpoints import Checkpoint, Snapshot
from tranlogs.encoding.tree import to_numpy
from tranlogs.journal.journal import Journal
from tranlogs.log.layout import Payload
from tranlogs.log.reader import Record
from tranlogs.log.record_format import RecordKind
from tranlogs.recovery.recover import recover
from tranlogs.recovery.recovery_plan import Target
from tranlogs.recovery.report import RecoveryReport
from tranlogs.recovery.state_protocol import Divergence, ReplacementSource


class ToyState:
    """Parameters and momenta; gradients are drawn from an RNG that is auxiliary state."""

    def __init__(self, sizes: Sequence[int] = (7, 3000, 40_000), seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.parameters = {f"w{i}": self.rng.standard_normal(n) for i, n in enumerate(sizes)}
        self.momenta = {name: np.zeros_like(p) for name, p in self.parameters.items()}
        self.lr = 0.1
        self.order = self.rng.permutation(2000)  # of an epoch's samples: an array that boundaries share until it changes

    def gradients(self) -> dict[str, np.ndarray[Any, Any]]:
        """The next step's gradients."""
        return {name: self.rng.standard_normal(p.size) + 0.1 * p for name, p in self.parameters.items()}

    def apply(self, gradients: dict[str, np.ndarray[Any, Any]], lr: float) -> None:
        """One optimizer update."""
        for name, gradient in gradients.items():
            momentum = self.momenta[name]
            momentum *= 0.9
            momentum += gradient
            self.parameters[name] -= lr * momentum

    def take_step(self, step: int) -> None:
        """What `ToyTrainer.train` does for a step, without a log."""
        self.apply(self.gradients(), self.lr)
        if step % 3 == 0:
            np.clip(self.parameters["w0"], -1, 1, out=self.parameters["w0"])
        self.go_on(step)

    def go_on(self, step: int) -> None:
        """What the loop does between a step and the next batch."""
        if step % 10 == 0:
            self.order = self.rng.permutation(2000)
        self.lr *= 0.999

    def digest(self) -> int:
        """Fingerprint of the parameters."""
        return xxhash.xxh3_64_intdigest(b"".join(p.tobytes() for p in self.parameters.values()))

    def everything(self) -> bytes:
        """All state as bytes, for comparisons."""
        arrays = [*self.parameters.values(), *self.momenta.values(), self.order]
        return b"".join(a.tobytes() for a in arrays) + repr((self.rng.bit_generator.state, self.lr)).encode()

    def snapshot(self) -> Snapshot:
        """All state, as views."""
        tensors: dict[str, AnyArray] = {f"param/{n}": dense(p) for n, p in self.parameters.items()}
        tensors |= {f"state/{n}": dense(p) for n, p in self.momenta.items()}
        return Snapshot(tensors, {"boundary": self.auxiliary()})

    def auxiliary(self) -> dict[str, Any]:
        """What a boundary commits."""
        return {"rng": self.rng.bit_generator.state, "lr": self.lr, "order": self.order}

    # Recoverable

    def differences(self, checkpoint: Checkpoint) -> list[str]:
        found = {name.removeprefix("param/") for name in checkpoint.names("param/")}
        return [f"parameter {name} is on one side only" for name in sorted(found ^ set(self.parameters))]

    def restore(self, checkpoint: Checkpoint) -> None:
        for target, prefix in ((self.parameters, "param/"), (self.momenta, "state/")):
            for name, values in target.items():
                array = checkpoint.read(prefix + name)
                assert isinstance(array, Array)
                values[:] = to_numpy(array)
        self.set_auxiliary(checkpoint.meta()["boundary"])

    def redo(self, entries: Sequence[Record], tick: Callable[[int], None]) -> Divergence | None:
        divergence = None
        for i, entry in enumerate(entries):
            arrays = {name: entry.read(name) for name in entry.tensor_names()}
            values = {n.partition("/")[2]: to_numpy(a) for n, a in arrays.items() if isinstance(a, Array)}
            body = self.decode(entry)
            if entry.kind == RecordKind.IMAGE:
                for name, image in values.items():
                    self.parameters[name][:] = image
                continue
            self.apply(values, body["lr"])
            if self.digest() != int.from_bytes(entry.digests, "little") and divergence is None:
                divergence = Divergence(entry.step, "parameters")
            tick(i + 1)
        return divergence

    def set_auxiliary(self, body: dict[str, Any]) -> None:
        self.rng.bit_generator.state = body["rng"]
        self.lr, self.order = body["lr"], body["order"]

    def decode(self, entry: Record) -> Any:
        return entry.body()

    def decode_boundary(self, entry: Record) -> dict[str, Any]:
        return entry.boundary()


class ToyTrainer:
    """Trains a `ToyState` under a journal."""

    def __init__(self, journal: Journal, state: ToyState) -> None:
        self.journal, self.state = journal, state

    def recover(self, step: int | None = None, spare: ReplacementSource | None = None) -> RecoveryReport:
        """Go on where the run stopped."""
        if step is not None:
            self.journal.holds.hold()
        found = recover(self.journal.paths.folder, self.state, Target(step), spare=spare)
        if found is None:
            self.journal.start()
            self.journal.checkpoint(self.state.snapshot(), wait=True)
            return RecoveryReport()
        self.journal.continue_from(
            found.position,
            new_timeline=found.plan.has_later,
            damaged=found.damaged,
            checkpoint=found.plan.checkpoint,
            log_bytes=found.log_bytes,
        )
        exact = None if found.divergence is not None else True
        return RecoveryReport(
            found.position.step,
            checkpoint_step=found.plan.checkpoint.step,
            replayed=found.replayed,
            exact=exact,
            notes=tuple(coded("damaged", found.notes)),
        )

    def train(self, until: int, say: Callable[[int], None] = lambda step: None) -> None:
        """Train to a step; every third step has a write that no optimizer made."""
        state, journal = self.state, self.journal
        while journal.step < until:
            gradients = state.gradients()
            record = journal.begin_step(Payload.of((f"grad/{name}", dense(gradient)) for name, gradient in gradients.items()))
            lr = state.lr
            state.apply(gradients, lr)
            journal.commit_step(record, {"lr": lr}, state.digest().to_bytes(8, "little"))
            if journal.step % 3 == 0:
                np.clip(state.parameters["w0"], -1, 1, out=state.parameters["w0"])
                journal.append_image(Payload.of([("param/w0", dense(state.parameters["w0"]))]), {})
            state.go_on(journal.step)
            journal.boundary(state.auxiliary(), state.snapshot)
            say(journal.step)


def uninterrupted(until: int, **options: Any) -> ToyState:
    """The state after `until` steps of a run without a log."""
    state = ToyState(**options)
    for step in range(1, until + 1):
        state.take_step(step)
    return state


def open_toy(
    run: str | os.PathLike[str] | Path, *, sizes: Sequence[int] = (7, 3000, 40_000), seed: int = 0, **options: Any
) -> ToyTrainer:
    """A toy trainer on a run; `options` go to `Journal.open`."""
    return ToyTrainer(Journal.open(run, framework="toy", **options), ToyState(sizes, seed))
