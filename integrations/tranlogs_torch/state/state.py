"""The state of a PyTorch run: described, put into a snapshot, restored from a checkpoint.

Everything is written into what exists (`copy_`), never replaced: references held by EMAs, compiled graphs and tied
modules stay valid. `Optimizer.load_state_dict` is not used: it casts state to the parameter's dtype.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import xxhash
from torch import nn

from tranlogs.base.errors import StateMismatch, UsageError
from tranlogs.base.types import AnyArray
from tranlogs.ranks import GradientShards
from tranlogs.records import Checkpoint, Entry, Snapshot, Tensor

from ..data.growing_state import Growth
from ..sharding import zero_optimizer
from ..sharding.shards import array_of, is_alike, is_relaid
from ..sharding.shards import differences as place_differences
from ..tensors import arrays
from ..tensors.arrays import from_array, make_array, make_extension, to_array, write_into, write_or_make
from ..tensors.placement import is_dtensor, local
from . import environment, naming
from .compatibility import in_later_groups, mismatches, optimizer_differences
from .extra_state import ExtraState, set_own
from .fingerprint import Fingerprint, Mode, memory_of
from .group_values import Groups, is_plain, values_of
from .plain_tensors import unwrapped

Convert = Callable[[torch.Tensor], AnyArray]


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
    """Parameters by name, optimizers by name, modules for their buffers.

    Checkpoints, redo, ranks and the hooks of optimizers all name parameters by this class, and each keeps here what the others
    have to know of it. So it has many attributes.

    Args:
        modules: by prefix; see `naming.as_modules`.
        optimizers: the inner optimizers by name.
        auxiliary: gives and takes what a boundary commits (auxiliary.py); None when replayed without a training script.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        optimizers: Mapping[str, torch.optim.Optimizer],
        set_auxiliary: Callable[[dict[str, Any]], None] | None = None,
        *,
        fingerprint: Mode = "auto",
    ) -> None:
        self.modules, self.optimizers = dict(modules), dict(optimizers)
        self.outers: dict[str, torch.optim.Optimizer] = {}  # around optimizers that have some of the parameters only
        self._set_auxiliary = set_auxiliary
        self.extra, self.growth = ExtraState(modules), Growth()
        self._built_buffers = set(naming.buffer_places(self.modules))  # others come into being while training
        self.parameters: dict[str, torch.Tensor] = {}
        self.name_of: dict[int, str] = {}
        self._mode: Mode = fingerprint
        self.refresh()
        self.logged_members: dict[str, list[list[int]]] = {}  # of the parameter groups (ids), as the log knows them
        self.redone = Redone()
        self.given: dict[str, Groups] = {}  # the groups' values with which the run began
        self.loaded: set[str] = set()  # optimizers that the script has loaded from a file of its own
        self.shards: GradientShards | None = None  # the other ranks' journals, while records are redone that were divided
        self.world = 1  # processes that train together
        self.is_shared = False  # whether weights and optimizer state are the same on all of them
        self.mirror: dict[int, bytes] = {}  # another rank's own part, for the checkpoint that is being taken
        self.convert: Convert = to_array  # tensors of a snapshot; staging leaves those of a GPU there until they are copied
        self.built: dict[str, Any] | None = None  # this rank's own part, before a recovery touched it

    def refresh(self) -> None:
        """Look up the parameters again (a group or an optimizer was added); new ones come last."""
        for outer in self.outers.values():
            zero_optimizer.tell_places(outer)
        found = naming.name_parameters(self.modules, self.optimizers | self.outers)
        self.use({name: found[name] for name in self.parameters if name in found} | found)

    def use(self, parameters: dict[str, torch.Tensor], covered: int | None = None) -> None:
        """Take these for the run's parameters, in this order; fingerprints cover the first `covered` (default: all)."""
        self.parameters = parameters
        self.name_of = {id(p): name for name, p in self.parameters.items()}
        self.fingerprint = Fingerprint(list(self.parameters.values())[:covered], self._mode)

    # Describing

    def hyper(self, which: str) -> Groups:
        """An optimizer's parameter groups without the parameters: views of live values."""
        return values_of(self.outer(which))

    def outer(self, which: str) -> torch.optim.Optimizer:
        """The optimizer that has all of the parameters, and whose groups the script writes to."""
        return self.outers.get(which, self.optimizers[which])

    def group_names(self, which: str) -> list[list[str]]:
        """Names of the parameters in each group."""
        return [[self.name_of[id(p)] for p in g["params"]] for g in self.optimizers[which].param_groups]

    def all_names(self, which: str) -> list[list[str]]:
        """The same of the optimizer that has all of the parameters."""
        return [[self.name_of[id(p)] for p in g["params"]] for g in self.outer(which).param_groups]

    def group_members(self, which: str) -> list[list[int]]:
        """Return the ids of the parameters in each group."""
        return [list(map(id, group["params"])) for group in self.optimizers[which].param_groups]

    def groups(self, which: str) -> dict[str, Any]:
        """An optimizer's groups, to be logged."""
        names = self.group_names(which)
        self.logged_members[which] = self.group_members(which)
        return {"params": names, "values": self.hyper(which)}

    def state_tensors(self, which: str, convert: Convert = to_array) -> tuple[list[Tensor], dict[str, Any]]:
        """An optimizer's state: its tensors by name, and the rest as a tree {parameter: [(key, value or None)]}."""
        tensors: list[Tensor] = []
        rest: dict[str, Any] = {}
        others = []  # an optimizer may keep state under keys of its own
        parameter: Any
        for parameter, state in self._state_in_order(which):
            if not isinstance(parameter, torch.Tensor):
                others.append((parameter, state, ""))
                continue
            name = self.name_of.get(id(parameter))
            if name is None:  # of a parameter that it no longer has
                continue
            items = []
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    tensors.append((f"state/{which}/{name}/{key}", _state_array(which, name, key, value, parameter, convert)))
                    items.append((key, None, value.device.type))
                else:
                    items.append((key, value, ""))
            rest[name] = items
        if others:
            rest[""] = others
        return tensors, rest

    def _state_in_order(self, which: str) -> list[tuple[Any, Any]]:
        """An optimizer's state in the order of its groups: in what order it came into being depends on how steps are redone."""
        optimizer = self.optimizers[which]
        members = itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups)
        places = {id(parameter): i for i, parameter in enumerate(members)}
        return sorted(optimizer.state.items(), key=lambda item: places.get(id(item[0]), len(places)))

    def nbytes(self) -> int:
        """Bytes of parameters and optimizer state, about what a checkpoint holds."""
        kept = (s for o in self.optimizers.values() for s in o.state.values() if isinstance(s, dict))
        state = (value for own in kept for value in own.values())
        return sum(
            local(t).nbytes for t in (*self.parameters.values(), *state) if isinstance(t, torch.Tensor) and not t.is_sparse
        )

    def snapshot(self, boundary: dict[str, Any]) -> Snapshot:
        """All state, as views of live memory or on its device, with the boundary's body."""
        convert = self.convert
        tensors: dict[str, AnyArray] = {f"param/{name}": array_of(p, p, convert) for name, p in self.parameters.items()}
        buffers = naming.named_buffers(self.modules)
        tensors |= {f"buffer/{name}": convert(b) for name, b in buffers.items()}
        optimizers: dict[str, Any] = {}
        for which, optimizer in self.optimizers.items():
            found, rest = self.state_tensors(which, convert)
            tensors |= {name: array for name, array in found if array is not None}
            groups = self.groups(which)
            optimizers[which] = {
                "class": environment.class_name(optimizer),
                "groups": groups["values"],
                "params": groups["params"],
                "state": rest,
                "given": self.given.get(which, []),
            }
            if which in self.outers:
                optimizers[which]["all"] = self.all_names(which)
        born = sorted(buffers.keys() - self._built_buffers)
        meta = {"optimizers": optimizers, "modules": naming.state_keys(self.modules), "boundary": boundary, "born": born}
        return Snapshot(tensors, meta | {"mirror": self.mirror} if self.mirror else meta)

    # Recoverable

    def differences(self, checkpoint: Checkpoint) -> list[str]:
        meta = checkpoint.meta(make_array=make_array, make_extension=make_extension)
        recorded, born = meta["optimizers"], meta.get("born", ())
        theirs = {n[6:]: checkpoint.layout(n) for n in checkpoint.names("param/")}
        later = in_later_groups(self, recorded) - theirs.keys()
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
        return found + optimizer_differences(self, recorded)

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
        with unwrapped(self):
            self.set_tensors([name[6:] for name in checkpoint.names("param/")], meta["optimizers"], checkpoint.read)
        naming.set_buffers(self.modules, {name[7:]: from_array(checkpoint.read(name)) for name in checkpoint.names("buffer/")})
        self.set_auxiliary(meta["boundary"])

    def set_tensors(self, recorded: list[str], optimizers: dict[str, Any], read: Callable[[str], AnyArray]) -> None:
        """Set parameters and optimizers.

        Args:
            recorded: names of the parameters, in order.
            optimizers: as a checkpoint tells of them.
            read: gives a tensor by name.
        """
        for parameter in self.parameters.values():
            parameter.grad = None
        self.use({name: self.parameters[name] for name in recorded} | self.parameters, len(recorded))
        for name in recorded:
            write_into(self.parameters[name], read(f"param/{name}"))
        for which, about in optimizers.items():
            self._compare_given(which, about.get("given", []))
            self.set_groups(which, about["params"], about["groups"])
            self.set_state(which, about["state"], partial(_read_state, read, f"state/{which}/"))

    def _compare_given(self, which: str, recorded: Groups) -> None:
        """Say where the script now gives other hyper-parameters than when the run began: the run goes on with its own."""
        self.given.setdefault(which, self.given_now(which))
        for i, (was, now) in enumerate(zip(recorded, self.given[which], strict=False)):
            for key in was.keys() & now.keys():
                if was[key] != now[key] and which not in self.loaded:
                    self.redone.notes.append(
                        f"optimizer {which!r}: the script gives {key}={now[key]} to parameter group {i}, and gave {was[key]} "
                        "when the run began; the run's own value holds (to change it, set it after recover())"
                    )
        self.given[which] = recorded

    def given_now(self, which: str) -> Groups:
        """The groups' plain values."""
        return [{key: value for key, value in group.items() if is_plain(value)} for group in self.hyper(which)]

    def set_state(self, which: str, rest: dict[str, Any], read: Callable[[str, str], AnyArray | None]) -> None:
        """Set an optimizer's state: tensors into the existing ones where they fit, keys in the recorded order."""
        optimizer = self.optimizers[which]
        wanted = {id(self.parameters[name]) for name in rest if name}
        for parameter in [p for p in optimizer.state if id(p) not in wanted]:
            del optimizer.state[parameter]
        optimizer.state.update({key: value for key, value, _ in rest.get("", ())})
        for name, items in rest.items():
            if not name:
                continue
            parameter = self.parameters[name]
            old = optimizer.state.get(parameter, {})
            fresh = {}
            for key, value, device in items:
                if device:
                    array = read(name, key)
                    assert array is not None
                    beside = parameter.device if parameter.device.type == device else torch.device(device)
                    fresh[key] = write_or_make(old.get(key), array, beside)
                else:
                    fresh[key] = value
            if isinstance(old, dict) and parameter in optimizer.state:
                old.clear()
                old.update(fresh)
            else:
                optimizer.state[parameter] = fresh

    def set_groups(self, which: str, names: list[list[str]], groups: Groups) -> None:
        """Give an optimizer the recorded groups: parameters, and values. Groups behind the recorded ones stay."""
        optimizer = self.optimizers[which]
        for i, members in enumerate(
            () if which in self.outers else names
        ):  # else it has its own of them, in an order of its own
            parameters = [self.parameters[name] for name in members]
            if i == len(optimizer.param_groups):
                optimizer.add_param_group({"params": parameters, **groups[i], **_named(optimizer, members)})
            elif [id(p) for p in optimizer.param_groups[i]["params"]] != [id(p) for p in parameters]:
                optimizer.param_groups[i].update(params=parameters, **_named(optimizer, members))
        if len(names) > len(optimizer.param_groups):
            now = len(optimizer.param_groups)
            why = f"optimizer {which!r}: {len(names)} parameter groups were recorded, and now there are {now}"
            raise StateMismatch("recover()", [why], is_untouched=False)
        self.logged_members[which] = self.group_members(which)[: len(names)]
        self.set_hyper(which, groups)

    def cover(self, named: dict[str, AnyArray]) -> None:
        """The log holds more parameters from here on (a group was added)."""
        covered = list(self.parameters)[: len(self.fingerprint.tensors)]
        new = [name for name in named if name not in covered]
        for name in new:
            if name not in self.parameters:
                self.parameters[name] = self.make_parameter(name, named[name])
        order = [*covered, *new]
        self.use({name: self.parameters[name] for name in order} | self.parameters, len(order))

    def make_parameter(self, name: str, array: AnyArray) -> torch.Tensor:
        """A parameter that the log holds and nobody built."""
        why = f"parameter {name}: it belongs to a group that was added during the run; add that group before recover()"
        raise StateMismatch("recover()", [why], is_untouched=False)

    def set_hyper(self, which: str, groups: Groups) -> None:
        """Set the parameter groups' values in place; tensor values by `copy_`, since schedulers hold them."""
        for optimizer in (self.optimizers[which], *([self.outers[which]] if which in self.outers else [])):
            self._set_hyper(optimizer, groups)

    @staticmethod
    def _set_hyper(optimizer: torch.optim.Optimizer, groups: Groups) -> None:
        for group, recorded in zip(optimizer.param_groups, groups, strict=False):
            for key, value in recorded.items():
                old = group.get(key)
                if isinstance(old, torch.Tensor) and isinstance(value, torch.Tensor) and old.shape == value.shape:
                    old.copy_(value)
                elif isinstance(value, tuple) and isinstance(old, tuple) and any(isinstance(v, torch.Tensor) for v in old):
                    for a, b in zip(old, value, strict=True):
                        a.copy_(b)
                else:
                    group[key] = value

    def set_auxiliary(self, body: dict[str, Any]) -> None:
        naming.set_buffers(self.modules, body.get("buffers", {}))
        self.extra.write(body.get("extra", {}))
        for which, stored in body.get("own", {}).items():
            if which in self.optimizers:
                set_own(self.optimizers[which], stored)
        for which, groups in body.get("after", {}).items():
            if which in self.optimizers:
                self.set_hyper(which, groups)
        if self._set_auxiliary is not None:
            self._set_auxiliary(body)

    def is_resharded(self, sharding: Mapping[str, Any]) -> bool:
        return is_relaid(self.parameters, sharding)

    def digest(self, *, is_forced: bool = False) -> str:
        return self.digest_of_parameters() if self.is_shared or is_forced else ""

    def digest_of_parameters(self) -> str:
        """A digest of all bytes of them."""
        found = xxhash.xxh3_64()
        for parameter in self.parameters.values():
            found.update(memory_of(parameter).data)
        return found.hexdigest()

    def decode(self, entry: Entry) -> Any:
        return entry.body(make_array=make_array, make_extension=make_extension)


def _state_array(which: str, name: str, key: str, value: torch.Tensor, parameter: torch.Tensor, convert: Convert) -> AnyArray:
    if is_alike(key, value, parameter):
        return array_of(value, parameter, convert)
    if is_dtensor(value):
        raise UsageError(f"optimizer {which!r} shards {key} of {name} differently from the parameter, so it is not stored")
    return convert(value)


def _read_state(read: Callable[[str], AnyArray], prefix: str, name: str, key: str) -> AnyArray:
    return read(f"{prefix}{name}/{key}")


def _named(optimizer: torch.optim.Optimizer, names: list[str]) -> dict[str, Any]:
    """Return the entry that a group needs in addition if the optimizer was made of named parameters."""
    return {"param_names": list(names)} if "param_names" in optimizer.param_groups[0] else {}
