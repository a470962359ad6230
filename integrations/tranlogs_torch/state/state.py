"""The state of a PyTorch run: described, put into a snapshot, restored from a checkpoint.

Everything is written into what exists (`copy_`), never replaced: references held by EMAs, compiled graphs and tied
modules stay valid. `Optimizer.load_state_dict` is not used: it casts state to the parameter's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import xxhash
from torch import nn

from tranlogs.base.errors import StateMismatch
from tranlogs.base.types import AnyArray
from tranlogs.ranks import GradientShards
from tranlogs.records import Checkpoint, Record, Snapshot, Tensor

from ..sharding.shards import array_of, is_relaid
from ..sharding.shards import differences as place_differences
from ..tensors import arrays
from ..tensors.arrays import from_array, local, make_array, make_extension, to_array, write_into
from . import environment, naming
from .compatibility import in_later_groups, mismatches, optimizer_differences
from .extra_state import ExtraState, set_own
from .fingerprint import Fingerprint, Mode, memory_of
from .group_values import GivenValues, Groups
from .named_tensors import NamedTensors
from .optimizer_states import Convert, read_state, write_groups, write_hyper, write_state
from .plain_tensors import unwrapped


@dataclass(slots=True)
class Redone:
    """Findings of the recovery, or the replay, that brought the state to where it is.

    Attributes:
        kinds: of the fingerprints of the records that were redone.
        stale: optimizers whose state the redone records did not hold.
        environment: the environment in which the run was recorded.
        notes: what had to be set back for a redo with the same rounding.
    """

    kinds: set[str] = field(default_factory=set)
    stale: set[str] = field(default_factory=set)
    environment: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class TorchState:
    """The state of a run: parameters, optimizers, buffers, and the auxiliary state of a boundary.

    Args:
        modules: by prefix; see `naming.as_modules`.
        optimizers: the inner optimizers by name.
        set_auxiliary: called with the body of a boundary that is restored; None for a replay without a training script.
        fingerprint: what a fingerprint of the parameters reads.

    Attributes:
        named: parameters and optimizers by name.
        extra: state that modules give in `get_extra_state`.
        redone: findings of the recovery.
        given: hyper-parameters with which the run began.
        shards: the journals of the other ranks, while records are redone that hold gradient shards.
        world: number of processes that train together.
        is_shared: True if weights and optimizer state are the same on all of these processes.
        mirror: the part of the state that only another rank has, by rank, for the checkpoint that is being taken.
        built: the part of the state that only this rank has, as it was before the recovery; None outside of a recovery.
        convert: makes an array of a tensor of a snapshot. Staging leaves tensors of a GPU there until they are copied.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        optimizers: Mapping[str, torch.optim.Optimizer],
        set_auxiliary: Callable[[dict[str, Any]], None] | None = None,
        *,
        fingerprint: Mode = "auto",
    ) -> None:
        self.named = NamedTensors(modules, optimizers, fingerprint)
        self._set_auxiliary = set_auxiliary
        self.extra = ExtraState(modules)
        self._built_buffers = set(naming.buffer_places(self.modules))  # other buffers come into being while training
        self.redone = Redone()
        self.given = GivenValues()
        self.shards: GradientShards | None = None
        self.world = 1
        self.is_shared = False
        self.mirror: dict[int, bytes] = {}
        self.built: dict[str, Any] | None = None
        self.convert: Convert = to_array

    # Names

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The modules by prefix."""
        return self.named.modules

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """The inner optimizers by name."""
        return self.named.optimizers

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """All parameters by name, in the order of the records."""
        return self.named.parameters

    @property
    def name_of(self) -> dict[int, str]:
        """Names of the parameters by id."""
        return self.named.name_of

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the parameters that the log holds."""
        return self.named.fingerprint

    # Describing

    def state_tensors(self, which: str, convert: Convert = to_array) -> tuple[list[Tensor], dict[str, Any]]:
        """Return the tensors of an optimizer's state by name, and the rest as a tree; see `optimizer_states.read_state`."""
        return read_state(self.named, which, convert)

    def nbytes(self) -> int:
        """Return the bytes of parameters and optimizer state, about what a checkpoint holds."""
        kept = (s for o in self.optimizers.values() for s in o.state.values() if isinstance(s, dict))
        state = (value for values in kept for value in values.values())
        return sum(
            local(t).nbytes for t in (*self.parameters.values(), *state) if isinstance(t, torch.Tensor) and not t.is_sparse
        )

    def snapshot(self, boundary: dict[str, Any]) -> Snapshot:
        """Return all state, as views of live memory or on its device, with the boundary's body."""
        convert = self.convert
        tensors: dict[str, AnyArray] = {f"param/{name}": array_of(p, p, convert) for name, p in self.parameters.items()}
        buffers = naming.named_buffers(self.modules)
        tensors |= {f"buffer/{name}": convert(b) for name, b in buffers.items()}
        optimizers: dict[str, Any] = {}
        for which, optimizer in self.optimizers.items():
            found, rest = self.state_tensors(which, convert)
            tensors |= {name: array for name, array in found if array is not None}
            groups = self.named.groups_to_log(which)
            optimizers[which] = {
                "class": environment.class_name(optimizer),
                "groups": groups["values"],
                "params": groups["params"],
                "state": rest,
                "given": self.given.by_optimizer.get(which, []),
            }
        born = sorted(buffers.keys() - self._built_buffers)
        meta = {"optimizers": optimizers, "modules": naming.state_keys(self.modules), "boundary": boundary, "born": born}
        return Snapshot(tensors, meta | {"mirror": self.mirror} if self.mirror else meta)

    # Recoverable

    def differences(self, checkpoint: Checkpoint) -> list[str]:
        meta = checkpoint.meta(make_array=make_array, make_extension=make_extension)
        recorded, born = meta["optimizers"], meta.get("born", ())
        theirs = {n[6:]: checkpoint.layout(n) for n in checkpoint.names("param/")}
        later = in_later_groups(self.named, recorded) - theirs.keys()
        found = self._world_differences(int(checkpoint.manifest["environment"].get("world", 1)))
        found += mismatches(
            "parameter",
            {n: (arrays.NAMES[p.dtype], tuple(local(p).shape)) for n, p in self.parameters.items() if n not in later},
            theirs,
        )
        if not found:
            about = checkpoint.manifest["tensors"]
            found += place_differences(self.parameters, {n: about.get(f"param/{n}", {}).get("piece") for n in theirs})
        if self.modules:  # a buffer may grow, or come into being, while training
            places = naming.buffer_places(self.modules)
            recorded_buffers = [n[7:] for n in checkpoint.names("buffer/") if n[7:] not in born]
            found += [f"buffer {n}: recorded, but absent from the script" for n in recorded_buffers if n not in places]
            filled = naming.named_buffers(self.modules)
            found += [f"buffer {n}: in the script, but not recorded" for n in filled if n not in (*recorded_buffers, *born)]
        return found + optimizer_differences(self.named, recorded)

    def _world_differences(self, recorded: int) -> list[str]:
        if recorded == self.world:
            return []
        now = "is 1" if self.world == 1 else f"are {self.world}"
        return [f"the run was recorded by {recorded} processes training together, and now there {now}"]

    @torch.no_grad()
    def restore(self, checkpoint: Checkpoint) -> None:
        meta = checkpoint.meta(make_array=make_array, make_extension=make_extension)
        self.redone.kinds.clear()
        self.redone.stale.clear()
        self.redone.environment = checkpoint.manifest["environment"]
        self.redone.notes += environment.set_back(self.redone.environment)
        with unwrapped(self.named):
            self.set_tensors([name[6:] for name in checkpoint.names("param/")], meta["optimizers"], checkpoint.read)
        naming.set_buffers(self.modules, {name[7:]: from_array(checkpoint.read(name)) for name in checkpoint.names("buffer/")})
        self.set_auxiliary(meta["boundary"])

    def set_tensors(self, recorded: list[str], optimizers: dict[str, Any], read: Callable[[str], AnyArray]) -> None:
        """Set parameters and optimizers.

        Args:
            recorded: names of the parameters, in order.
            optimizers: descriptions of the optimizers from a checkpoint.
            read: returns a tensor by name.
        """
        for parameter in self.parameters.values():
            parameter.grad = None
        self.named.use({name: self.parameters[name] for name in recorded} | self.parameters, len(recorded))
        for name in recorded:
            write_into(self.parameters[name], read(f"param/{name}"))
        for which, about in optimizers.items():
            self._compare_given(which, about.get("given", []))
            write_groups(self.named, which, about["params"], about["groups"])
            self.set_state(which, about["state"], partial(_read_state, read, f"state/{which}/"))

    def _compare_given(self, which: str, recorded: Groups) -> None:
        self.redone.notes += self.given.compare(which, recorded, self.named.hyper(which))

    def set_state(self, which: str, rest: dict[str, Any], read: Callable[[str, str], AnyArray | None]) -> None:
        """Set an optimizer's state; see `optimizer_states.write_state`."""
        write_state(self.named, which, rest, read)

    def cover(self, named: dict[str, AnyArray]) -> None:
        """Add parameters that the log holds from here on (a group was added)."""
        covered = list(self.parameters)[: len(self.fingerprint.tensors)]
        new = [name for name in named if name not in covered]
        for name in new:
            if name not in self.parameters:
                self.parameters[name] = self.make_parameter(name, named[name])
        order = [*covered, *new]
        self.named.use({name: self.parameters[name] for name in order} | self.parameters, len(order))

    def make_parameter(self, name: str, array: AnyArray) -> torch.Tensor:
        """Return a parameter that the log holds and the script has not built."""
        why = f"parameter {name}: it belongs to a group that was added during the run; add that group before recover()"
        raise StateMismatch("recover()", [why], is_untouched=False)

    def set_auxiliary(self, body: dict[str, Any]) -> None:
        naming.set_buffers(self.modules, body.get("buffers", {}))
        self.extra.write(body.get("extra", {}))
        for which, stored in body.get("own", {}).items():
            if which in self.optimizers:
                set_own(self.optimizers[which], stored)
        for which, groups in body.get("after", {}).items():
            if which in self.optimizers:
                write_hyper(self.named, which, groups)
        if self._set_auxiliary is not None:
            self._set_auxiliary(body)

    def is_resharded(self, sharding: Mapping[str, Any]) -> bool:
        return is_relaid(self.parameters, sharding)

    def digest(self, *, is_forced: bool = False) -> str:
        return self.digest_of_parameters() if self.is_shared or is_forced else ""

    def digest_of_parameters(self) -> str:
        """Return a digest of all bytes of the parameters."""
        found = xxhash.xxh3_64()
        for parameter in self.parameters.values():
            found.update(memory_of(parameter).data)
        return found.hexdigest()

    def decode(self, entry: Record) -> Any:
        return entry.body(make_array=make_array, make_extension=make_extension)

    def decode_boundary(self, entry: Record) -> dict[str, Any]:
        return entry.boundary(make_array=make_array, make_extension=make_extension)


def _read_state(read: Callable[[str], AnyArray], prefix: str, name: str, key: str) -> AnyArray:
    return read(f"{prefix}{name}/{key}")


def digest_state(state: TorchState) -> bytes:
    """Return the digest of all weights and optimizer states, 8 bytes. How often it is taken depends on what it costs.

    States are read in the order of the parameter groups, not in that in which they came to be: checkpoints do not keep it.
    """
    tensors: list[torch.Tensor] = list(state.parameters.values())
    others = list[Any]()
    for optimizer in state.optimizers.values():
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for key in dict.fromkeys([*parameters, *optimizer.state]):
            for value in _leaves(optimizer.state.get(key, {})):
                (tensors if isinstance(value, torch.Tensor) else others).append(value)
    hasher = xxhash.xxh3_64(repr(others).encode())
    for tensor in tensors:
        hasher.update(memory_of(tensor.to_dense() if tensor.is_sparse else tensor).data)
    return hasher.intdigest().to_bytes(8, "little")


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the tensors in a state, and plain values; what an optimizer keeps besides shows in these."""
    if isinstance(value, dict):
        for _, item in sorted(value.items(), key=lambda pair: str(pair[0])):
            yield from _leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, (torch.Tensor, bool, int, float, complex, str, type(None))):
        yield value
