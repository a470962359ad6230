"""Parameters that are laid out otherwise now than they were recorded: each process reads its parts from the former ranks'
checkpoints.

Of each checkpoint a process reads the ranges that fall into its own parts, some megabytes at a time. Where it cannot read the
folder (a disk of another machine), the process that made the checkpoint reads them and sends them. What several former ranks
had is compared, bit for bit: it must be the same. `RecoverableState` is the state that ranks recover in this way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from tranlogs.base.errors import CorruptCheckpoint, RecoveryError, StateMismatch, UsageError, error_text
from tranlogs.base.types import AnyArray, Array, Bytes
from tranlogs.ranks import FormerState, Transport
from tranlogs.records import Checkpoint

from ..replay.redo import ReplayableState
from ..sharding.shards import place_of, shape_of
from ..state import environment, naming
from ..state.compatibility import Layouts, in_later_groups, mismatches, optimizer_differences
from ..state.plain_tensors import unwrapped
from ..state.state import TorchState
from ..tensors import arrays
from ..tensors.arrays import is_dtensor, local
from ..tensors.equality import have_same_bits
from .former_checkpoint import FormerCheckpoint
from .lost_rank_state import adopt, packed, unpacked
from .transfer_plan import Box, BoxPiece, Shape, StoredBox, bundles, common, cut, pieces

T = TypeVar("T")


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
        """True if every element was filled exactly once."""
        return self._count == self.tensor.numel()

    @property
    def boxes(self) -> list[Box]:
        """Offset and length of each box."""
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


class Assembly:
    """Sets this process's state from the checkpoints of the former ranks. All processes make one; see `GroupState.assemble`."""

    def __init__(
        self,
        state: TorchState,
        checkpoints: Mapping[int, tuple[Path, dict[str, Any]]],
        owners: Mapping[int, int],
        rank: int,
        transport: Transport,
    ) -> None:
        self._state, self._checkpoints, self._owners, self._rank, self._transport = state, checkpoints, owners, rank, transport
        self._body: dict[str, Any] | None = None  # of this rank's own former boundary
        self._descriptions: dict[int, dict[str, Any]] = {}  # descriptions of all checkpoints
        self._stored: dict[int, list[StoredBox]] = {}  # of those that are read
        self._readable: set[int] = set()  # former ranks whose checkpoints this process can read
        self._targets: dict[str, Target] = {}

    def run(self) -> dict[str, Any]:
        """Set the state; return the boundary's body, which is set, too."""
        described = self._on_all(self._describe)
        gathered = self._transport.gather(described)
        self._descriptions = dict(sorted((rank, unpacked(blob)) for one in gathered for rank, blob in one))
        self._on_all(self._demand_fit)
        self._stored = {
            rank: [StoredBox(*one) for one in about["tensors"]]
            for rank, about in self._descriptions.items()
            if rank == self._donor or not self._is_copied
        }
        needs = self._on_all(self._prepare)
        self._on_all(self._read)
        needed = [unpacked(blob) for blob in self._transport.gather(packed({"needs": needs}))]
        self._on_all(lambda: self._exchange([one["needs"] for one in needed]))
        self._on_all(self._demand_whole)
        return self._set(self._first["body"] if self._body is None else self._body)

    @property
    def _donor(self) -> int:  # the rank whose parameters are taken if each rank had all
        return min(self._descriptions)

    @property
    def _is_copied(self) -> bool:
        """Return True if each rank held all parameters whole."""
        return all(about["whole"] for about in self._descriptions.values())

    @property
    def _first(self) -> dict[str, Any]:
        return self._descriptions[self._donor]

    def _on_all(self, act: Callable[[], T]) -> T:
        """Run a function that may fail on all processes; raise on all of them if it fails on one."""
        found, error = None, None
        try:
            found = act()
        except Exception as caught:  # the others wait
            error = caught
        failed = [text for text in self._transport.gather(error_text(error) if error else "") if text]
        if error is not None:
            raise error
        if failed:
            raise RecoveryError(f"another process could not load its part: {failed[0]}")
        return found  # type: ignore[return-value]

    # Describing.

    def _describe(self) -> list[tuple[int, bytes]]:
        first, found = min(self._owners), []
        for rank, (folder, replay) in self._checkpoints.items():
            with FormerCheckpoint(folder) as checkpoint:
                found.append((rank, packed(checkpoint.describe(replay, with_body=rank == first))))
                if rank == self._rank:
                    self._body = checkpoint.body
        return found

    def _demand_fit(self) -> None:
        state, first = self._state, self._first
        theirs: Layouts = {}
        differing = ""
        for rank, about in self._descriptions.items():
            named = {one[0][6:]: (one[1], tuple(one[4])) for one in about["tensors"] if one[0].startswith("param/")}
            theirs = theirs or named
            if named != theirs or any(
                about["optimizers"][which]["params"] != one["params"] for which, one in first["optimizers"].items()
            ):
                differing = f"rank {rank} did not train the same parameters as rank {min(self._descriptions)}"
        if not differing and self._is_copied and len({about["whole"] for about in self._descriptions.values()}) > 1:
            differing = "ranks with the same parameters reached different values"
        later = in_later_groups(state.named, first["optimizers"]) - theirs.keys()
        found = mismatches(
            "parameter",
            {name: (arrays.NAMES[p.dtype], shape_of(p)) for name, p in state.parameters.items() if name not in later},
            theirs,
        )
        found += optimizer_differences(state.named, first["optimizers"])
        if state.modules:
            live, recorded = naming.named_buffers(state.modules), first["body"]["buffers"]
            found += [f"buffer {name}: it is sharded and cannot be divided anew" for name in live if is_dtensor(live[name])]
            places = naming.buffer_places(state.modules)
            found += [
                (f"buffer {n}: recorded, but absent from the script") for n in recorded if n not in (*places, *first["born"])
            ]
            found += [f"buffer {n}: in the script, but not recorded" for n in live if n not in recorded]
        if found or differing:
            raise StateMismatch("recover()", [*([differing] if differing else []), *found])

    # Reading.

    def _prepare(self) -> dict[int, dict[str, list[Box]]]:
        """Make this process's tensors. Return what falls into them of checkpoints that it cannot read: boxes by tensor."""
        for stored in self._stored.values():
            for box in stored:
                if box.name not in self._targets:
                    self._targets[box.name] = self._made(box)
        self._readable = {rank for rank in self._stored if self._can_read(rank)}
        return {rank: self._wanted for rank in self._stored if rank not in self._readable}

    @property
    def _wanted(self) -> dict[str, list[Box]]:
        return {name: target.boxes for name, target in self._targets.items()}

    def _can_read(self, rank: int) -> bool:
        description = self._descriptions[rank]
        try:
            with Checkpoint(Path(description["folder"])) as checkpoint:
                return bool(checkpoint.identity == description["identity"])
        except CorruptCheckpoint:  # nothing is there, or what another machine has under this name
            return False

    def _read(self) -> None:
        """Fill this process's tensors from the checkpoints that it can read."""
        wanted = self._wanted
        for rank in sorted(self._readable):
            with FormerCheckpoint(Path(self._descriptions[rank]["folder"])) as checkpoint:
                for piece in pieces(self._stored[rank], wanted):
                    self._put(rank, piece, checkpoint.read_piece(piece))

    def _exchange(self, needs: list[dict[int, dict[str, list[Box]]]]) -> None:
        """Send what others need and cannot read, and receive what this process needs: one former rank after the other."""
        error: Exception | None = None
        for rank, stored in self._stored.items():
            owner = self._owners[rank]
            for process, wanted in enumerate(needs):
                for bundle in bundles(stored, wanted.get(rank, {})):
                    if process == self._rank:
                        self._put_bundle(rank, bundle, self._transport.receive(owner))
                    elif owner == self._rank:
                        content, caught = self._read_bundle(rank, bundle)
                        error = error or caught
                        self._transport.send(content, process)
        if error is not None:
            raise error

    def _read_bundle(self, rank: int, bundle: list[BoxPiece]) -> tuple[bytes, Exception | None]:
        """Return the bytes of pieces. After an error others are sent in their place: the receiver waits for as many."""
        try:
            with FormerCheckpoint(self._checkpoints[rank][0]) as checkpoint:
                return b"".join(checkpoint.read_piece(piece).tobytes() for piece in bundle), None
        except Exception as error:
            return bytes(sum(piece.nbytes for piece in bundle)), error

    def _put_bundle(self, rank: int, bundle: list[BoxPiece], content: bytes) -> None:
        blob, at = np.frombuffer(bytearray(content), np.uint8), 0
        assert blob.nbytes == sum(piece.nbytes for piece in bundle), f"rank {rank}: {blob.nbytes} bytes of {bundle}"
        for piece in bundle:
            self._put(rank, piece, blob[at : at + piece.nbytes])
            at += piece.nbytes

    def _put(self, rank: int, piece: BoxPiece, data: Bytes) -> None:
        array = Array(piece.box.dtype, piece.length, data)
        self._targets[piece.box.name].put(rank, piece.offset, arrays.from_array(array))

    def _made(self, box: StoredBox) -> Target:
        if not box.parameter:
            whole = torch.empty(box.whole, dtype=arrays.DTYPES[box.dtype])
            return Target(whole, cut(whole, None))
        parameter = self._state.parameters[box.parameter]
        place, held = place_of(parameter), local(parameter).detach()
        if not box.name.startswith("param/"):
            held = torch.zeros_like(held, dtype=arrays.DTYPES[box.dtype], device="cpu")
        return Target(held, cut(held, place))

    def _demand_whole(self) -> None:
        for name, target in self._targets.items():
            if target.clash is not None:
                a, b = target.clash
                raise UsageError(
                    f"{name}: rank {b} and rank {a} have different values, and which are right cannot be determined. Start "
                    f"{len(self._descriptions)} processes, as before"
                )
            if not target.is_whole and not name.startswith("grad/"):
                raise UsageError(f"{name}: the journals of {len(self._descriptions)} ranks do not contain all of its elements")

    # Setting.

    @torch.no_grad()
    def _set(self, body: dict[str, Any]) -> dict[str, Any]:
        state, first = self._state, self._first
        state.redone.kinds = {kind for about in self._descriptions.values() for kind in about["kinds"]}
        state.redone.stale = {which for about in self._descriptions.values() for which in about["stale"]}
        state.redone.environment = first["environment"]
        notes = [
            *(note for about in self._descriptions.values() for note in about["notes"]),
            *environment.set_back(first["environment"]),
        ]
        state.redone.notes += [note for note in dict.fromkeys(notes) if note not in state.redone.notes]
        optimizers = {which: {**about, "state": self._rest(which)} for which, about in first["optimizers"].items()}
        names = [name[6:] for name in self._targets if name.startswith("param/")]
        with unwrapped(state.named):
            state.set_tensors(names, optimizers, self._take)
        waiting = {name[5:]: target.tensor for name, target in self._targets.items() if name.startswith("grad/")}
        body = body | {"waiting": waiting}
        state.set_auxiliary(body)
        return body

    def _take(self, name: str) -> AnyArray:
        return arrays.to_array(self._targets.pop(name).tensor)

    def _rest(self, which: str) -> dict[str, Any]:
        """Return the entries of an optimizer's state for each parameter, from all ranks."""
        found: dict[str, dict[str, Any]] = {}
        for about in self._descriptions.values():
            for name, items in about["optimizers"][which]["state"].items():
                for key, value, device in items:
                    found.setdefault(name, {}).setdefault(key, (key, value, device))
        return {name: list(items.values()) for name, items in found.items()}


class RecoverableState(ReplayableState, ABC):
    """The state of a PyTorch run, with what ranks exchange while they recover."""

    @abstractmethod
    def former_state(self) -> FormerState:
        """Return a state for what another process recorded."""

    def assemble(
        self,
        checkpoints: Mapping[int, tuple[Path, dict[str, Any]]],
        owners: Mapping[int, int],
        rank: int,
        transport: Transport,
    ) -> dict[str, Any]:
        """Read this process's parts of all tensors from the checkpoints of the former ranks."""
        return Assembly(self, checkpoints, owners, rank, transport).run()

    def adopt(self, sources: Sequence[Path], rank: int, *, is_start: bool) -> list[str]:
        """Take the state of a rank whose journal is lost from the checkpoints of others."""
        return adopt(self, sources, rank, self.built if is_start else None)
