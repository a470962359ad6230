"""Parts of parameters that lie otherwise now than they were recorded: each process takes its own from what all have redone.

What a rank of before had is redone as plain tensors, by one process. From there each process is sent what falls into its own
parts, one rank's after the other and some megabytes at a time: nobody holds more of the state than was redone there, its own,
and what is on its way. What several ranks had is compared, bit for bit: it must be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import xxhash

from tranlogs.base.errors import RecoveryError, StateMismatch, UsageError, error_text
from tranlogs.base.types import AnyArray, Array
from tranlogs.ranks import Transport
from tranlogs.records import Tensor

from ..sharding.overlap import Box, Shape, cut
from ..sharding.shards import is_alike, place_of, shape_of
from ..state import environment, naming
from ..state.compatibility import Layouts, in_later_groups, mismatches, optimizer_differences
from ..state.fingerprint import memory_of
from ..state.plain_tensors import unwrapped
from ..state.state import Groups, TorchState
from ..tensors import arrays
from ..tensors.equality import have_same_bits
from ..tensors.placement import NOTHING, empty_of, is_dtensor, local
from .adoption import packed, unpacked
from .transfer_plan import Piece, Told, bundles, common

T = TypeVar("T")

_NOT_TAKEN = ("ddp", "beside")  # of a boundary: what reducers and neighbours of before had


class Part(Protocol):
    """What one former rank had, redone: a state with the boundary that was landed on.

    Attributes:
        meta: what its checkpoint holds besides tensors.
        body: the auxiliary state of the boundary.
    """

    meta: dict[str, Any]
    body: dict[str, Any]
    parameters: dict[str, torch.Tensor]
    name_of: dict[int, str]
    given: dict[str, Groups]
    recorded_environment: dict[str, Any]
    fingerprint_kinds: set[str]
    stale: set[str]
    notes: list[str]

    @property
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """The optimizers by name."""
        ...

    def state_tensors(self, which: str) -> tuple[list[Tensor], dict[str, Any]]:
        """Return an optimizer's state: tensors by name, and the rest as a tree."""
        ...

    def groups(self, which: str) -> dict[str, Any]:
        """Return an optimizer's groups: names of parameters, and values."""
        ...


class Target:
    """A tensor of this process that is put together.

    Args:
        tensor: to be filled.
        boxes: of which it consists, each with its offset in the whole.
    """

    def __init__(self, tensor: torch.Tensor, boxes: list[tuple[Shape, torch.Tensor]]) -> None:
        self.tensor, self._boxes = tensor, boxes
        self._filled: dict[Box, int] = {}  # by whom
        self._count = 0
        self.clash: tuple[int, int] | None = None  # ranks that had other values

    @property
    def is_whole(self) -> bool:
        """Whether every element was filled, and once."""
        return self._count == self.tensor.numel()

    @property
    def boxes(self) -> list[Box]:
        """Where they lie, and how long they are."""
        return [(offset, tuple(box.shape)) for offset, box in self._boxes]

    @torch.no_grad()
    def put(self, rank: int, offset: tuple[int, ...], values: torch.Tensor) -> None:
        """Copy what falls into it of a rank's box; compare it where another rank had that box, too."""
        for at, box in self._boxes:
            both = common((offset, tuple(values.shape)), (at, tuple(box.shape)))
            if both is None:
                continue
            source, target = (
                one[tuple(slice(first - i, first - i + n) for first, n, i in zip(*both, begin, strict=True))]
                for one, begin in ((values, offset), (box, at))
            )
            before = self._filled.setdefault((offset, tuple(values.shape)), rank)
            if before == rank:
                target.copy_(source)
                self._count += source.numel()
            elif not have_same_bits(target, source):
                self.clash = self.clash or (before, rank)


class Taking:
    """See the module, and `GroupState.assemble`."""

    def __init__(
        self, state: TorchState, parts: dict[int, Any], owners: Mapping[int, int], rank: int, transport: Transport
    ) -> None:
        self._state, self._parts, self._owners, self._rank, self._transport = state, parts, owners, rank, transport
        self._targets: dict[str, Target] = {}
        self._told: dict[int, dict[str, Any]] = {}
        self._wanted: list[dict[str, list[Box]]] = []  # of each process, by tensor

    def take(self) -> dict[str, Any]:
        """Set the state; gives the boundary's body, which is set, too."""
        own = self._parts.get(self._rank)
        own_body = None if own is None else _body(own)
        mine = self._on_all(self._described)
        self._told = dict(sorted((rank, unpacked(blob)) for one in self._transport.gather(mine) for rank, blob in one))
        self._on_all(self._demand_fit)
        given = {
            rank: [Told(*one) for one in about["tensors"]]
            for rank, about in self._told.items()
            if rank == self._donor or not self._is_copied
        }
        self._wanted = [unpacked(blob) for blob in self._transport.gather(self._on_all(lambda: self._wants(given)))]
        for rank, told in given.items():
            self._deal(rank, told)
        self._parts.clear()
        self._on_all(self._demand_whole)
        return self._set(own_body or self._first["body"])

    @property
    def _donor(self) -> int:  # whose parameters are taken where each rank had all
        return min(self._told)

    @property
    def _is_copied(self) -> bool:
        """Whether each rank had all of the parameters, not a part of each."""
        return all(about["whole"] for about in self._told.values())

    @property
    def _first(self) -> dict[str, Any]:
        return self._told[self._donor]

    def _on_all(self, act: Callable[[], T]) -> T:
        """Do what may fail; if it does on any process, none goes on."""
        found, error = None, None
        try:
            found = act()
        except Exception as caught:  # the others wait
            error = caught
        failed = [text for text in self._transport.gather(error_text(error) if error else "") if text]
        if error is not None:
            raise error
        if failed:
            raise RecoveryError(f"another process could not take its part: {failed[0]}")
        return found  # type: ignore[return-value]

    # Telling.

    def _described(self) -> list[tuple[int, bytes]]:
        first = min(self._owners)
        return [(rank, packed(_description(one, with_body=rank == first))) for rank, one in self._parts.items()]

    def _demand_fit(self) -> None:
        state, first = self._state, self._first
        theirs: Layouts = {}
        differing = ""
        for rank, about in self._told.items():
            named = {one[0][6:]: (one[1], tuple(one[4])) for one in about["tensors"] if one[0].startswith("param/")}
            theirs = theirs or named
            if named != theirs or any(
                about["optimizers"][which]["all"] != one["all"] for which, one in first["optimizers"].items()
            ):
                differing = f"rank {rank} did not train the same parameters as rank {min(self._told)}"
        if not differing and self._is_copied and len({about["whole"] for about in self._told.values()}) > 1:
            differing = "ranks that had the same parameters came to other values"
        later = in_later_groups(state, first["optimizers"]) - theirs.keys()
        found = mismatches(
            "parameter",
            {name: (arrays.NAMES[p.dtype], shape_of(p)) for name, p in state.parameters.items() if name not in later},
            theirs,
        )
        found += optimizer_differences(state, first["optimizers"])
        if state.modules:
            live, recorded = naming.named_buffers(state.modules), first["body"]["buffers"]
            found += [f"buffer {name}: it is sharded, and is not dealt out anew" for name in live if is_dtensor(live[name])]
            places = naming.buffer_places(state.modules)
            found += [f"buffer {n}: recorded, but not there now" for n in recorded if n not in (*places, *first["born"])]
            found += [f"buffer {n}: there now, but not recorded" for n in live if n not in recorded]
        if found or differing:
            raise StateMismatch("recover()", [*([differing] if differing else []), *found])

    # Sending and receiving.

    def _wants(self, given: dict[int, list[Told]]) -> bytes:
        """What falls into this process's tensors, which are made, as boxes by tensor."""
        for told in given.values():
            for one in told:
                if one.name not in self._targets:
                    self._targets[one.name] = self._made(one)
        return packed({name: target.boxes for name, target in self._targets.items()})

    def _deal(self, rank: int, told: list[Told]) -> None:
        """Give each process its pieces of what a rank of before had, from the one that has redone it."""
        owner, part = self._owners[rank], self._parts.pop(rank, None)
        if part is None:
            for bundle in bundles(told, self._wanted[self._rank]):
                self._put(rank, bundle, self._transport.receive(owner))
            return
        held = {(one.name, one.offset): box for one, box in _boxes(part)}
        for process, wanted in enumerate(self._wanted):
            for bundle in bundles(told, wanted):
                content = b"".join(piece.cut_from(held[piece.told.name, piece.told.offset]) for piece in bundle)
                if process == self._rank:
                    self._put(rank, bundle, content)
                else:
                    self._transport.send(content, process)

    def _put(self, rank: int, bundle: list[Piece], content: bytes) -> None:
        blob, at = np.frombuffer(content, np.uint8), 0
        assert blob.nbytes == sum(piece.nbytes for piece in bundle), f"rank {rank}: {blob.nbytes} bytes of {bundle}"
        for piece in bundle:
            array = Array(piece.told.dtype, piece.length, blob[at : at + piece.nbytes])
            self._targets[piece.told.name].put(rank, piece.offset, arrays.from_array(array))
            at += piece.nbytes

    def _made(self, one: Told) -> Target:
        if not one.parameter:
            whole = torch.empty(one.whole, dtype=arrays.DTYPES[one.dtype])
            return Target(whole, cut(whole, None))
        parameter = self._state.parameters[one.parameter]
        place, held = place_of(parameter), local(parameter).detach()
        if one.name.startswith("grad/") and empty_of(parameter) is not None:  # it is there, also of what is another's
            place, held = None, parameter.detach()
        if not one.name.startswith("param/"):
            held = torch.zeros_like(held, dtype=arrays.DTYPES[one.dtype], device="cpu")
        return Target(held, cut(held, place))

    def _demand_whole(self) -> None:
        for name, target in self._targets.items():
            if target.clash is not None:
                a, b = target.clash
                raise UsageError(
                    f"{name}: rank {b} had other values than rank {a}, so that it is not known which are right. "
                    f"Start {len(self._told)} processes, as before"
                )
            if not target.is_whole and not name.startswith("grad/"):
                raise UsageError(f"{name}: the journals of {len(self._told)} ranks do not hold all of its elements")

    # Setting.

    @torch.no_grad()
    def _set(self, body: dict[str, Any]) -> dict[str, Any]:
        state, first = self._state, self._first
        state.fingerprint_kinds = {kind for about in self._told.values() for kind in about["kinds"]}
        state.stale = {which for about in self._told.values() for which in about["stale"]}
        state.recorded_environment = first["environment"]
        state.notes += [note for about in self._told.values() for note in about["notes"] if note not in state.notes]
        environment.set_back(state.recorded_environment)
        optimizers = {which: {**about, "state": self._rest(which)} for which, about in first["optimizers"].items()}
        names = [name[6:] for name in self._targets if name.startswith("param/")]
        with unwrapped(state):
            state.set_tensors(names, optimizers, self._read)
        waiting = {name[5:]: target.tensor for name, target in self._targets.items() if name.startswith("grad/")}
        body = {key: value for key, value in body.items() if key not in _NOT_TAKEN} | {"waiting": waiting}
        state.set_auxiliary(body)
        return body

    def _read(self, name: str) -> AnyArray:
        return arrays.to_array(self._targets.pop(name).tensor)

    def _rest(self, which: str) -> dict[str, Any]:
        """What an optimizer's state holds of each parameter, on whichever rank: one that had no part of it may know less."""
        found: dict[str, dict[str, Any]] = {}
        nothing = {name for name, p in self._state.parameters.items() if (place := place_of(p)) and place.piece == NOTHING}
        for about in self._told.values():
            for name, items in about["optimizers"][which]["state"].items():
                for key, value, device in items:
                    found.setdefault(name, {}).setdefault(key, (key, value, device))
        return {name: list(items.values()) for name, items in found.items() if name not in nothing}


def _body(part: Part) -> dict[str, Any]:
    """The boundary that was landed on, with what was noted before its checkpoint."""
    noted = part.meta["boundary"].get("scalars")
    return part.body if noted is None else {**part.body, "scalars": noted}


def _description(part: Part, *, with_body: bool) -> dict[str, Any]:
    """What others need to know of it, as plain values."""
    told = [one for one, _ in _boxes(part)]
    optimizers: dict[str, Any] = {}
    for which, about in part.meta["optimizers"].items():
        rest = part.state_tensors(which)[1]
        if "" in rest:
            raise UsageError(
                f"optimizer {which!r} keeps state that belongs to no parameter, which is not dealt out to other "
                "processes. Start as many as before"
            )
        groups = part.groups(which)
        names = about.get("all", groups["params"])  # also those of other ranks
        optimizers[which] = {
            "class": about["class"],
            "groups": groups["values"],
            "params": names,
            "all": names,
            "state": rest,
            "given": part.given.get(which, []),
        }
    found = {
        "tensors": [tuple(one) for one in told],
        "optimizers": optimizers,
        "environment": part.recorded_environment,
        "born": part.meta["born"],
        "kinds": sorted(part.fingerprint_kinds),
        "stale": sorted(part.stale),
        "notes": part.notes,
        "whole": _digest(part),
    }
    return found | {"body": {key: value for key, value in _body(part).items() if key not in _NOT_TAKEN}} if with_body else found


def _digest(part: Part) -> str:
    """Of all parameters; empty if they are parts."""
    if any(place_of(parameter) is not None for parameter in part.parameters.values()):
        return ""
    found = xxhash.xxh3_64()
    for parameter in part.parameters.values():
        found.update(memory_of(parameter).data)
    return found.hexdigest()


def _tensors(part: Part) -> Iterator[tuple[str, torch.Tensor, torch.Tensor | None]]:
    """What is dealt out: name, tensor, and the parameter as which it is laid out; None for what is whole on each rank."""
    for name, parameter in part.parameters.items():
        yield f"param/{name}", parameter.detach(), parameter
    for which, optimizer in part.optimizers.items():
        for parameter, kept in optimizer.state.items():
            if not isinstance(kept, dict) or id(parameter) not in part.name_of:
                continue
            for key, value in kept.items():
                if isinstance(value, torch.Tensor):
                    name = f"state/{which}/{part.name_of[id(parameter)]}/{key}"
                    yield name, value, parameter if is_alike(key, value, parameter) else None
    for name, gradient in part.body["waiting"].items():
        yield f"grad/{name}", gradient, part.parameters[name]


def _boxes(part: Part) -> Iterator[tuple[Told, torch.Tensor]]:
    """What is dealt out, box by box; of what a part has no element of, an empty one."""
    for name, tensor, parameter in _tensors(part):
        if tensor.layout is not torch.strided:
            raise UsageError(f"{name} is a sparse tensor, which is not dealt out to other processes. Start as many as before")
        place = None if parameter is None or parameter.shape != tensor.shape else place_of(parameter)
        whole, laid = place.whole if place else tuple(tensor.shape), "" if parameter is None else part.name_of[id(parameter)]
        for offset, box in cut(tensor, place) or [((0,) * max(1, len(whole)), tensor.new_empty((0,) * max(1, len(whole))))]:
            yield Told(name, arrays.NAMES[tensor.dtype], offset, tuple(box.shape), whole, laid), box
