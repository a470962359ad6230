"""The positions in the data: one for each DataLoader that the run reads from."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from operator import is_
from typing import Any

from torch.utils.data import DataLoader

from tranlogs.base.errors import UsageError
from tranlogs.records import Fixed
from tranlogs.training import Face, Parts

from ..data.loader_class import advice_for_other_loader
from ..data.loader_position import LoaderPosition
from .caveats import advise

_OUTSIDE = ("epoch", "batch", "taken", "order", "index", "length")  # of the head: what each batch changes, and others read
_LASTING = ("opened", "workers", "entered")  # random states of 8 kB each; so is that of the index, when the first draw was made


class LastingStates:
    """Wraps what rarely changes in one loader's positions, so that it is encoded once: random states, and the head with all
    that does not move.

    Nobody writes to them, so the same object is the same state.
    """

    def __init__(self) -> None:
        self._parts = Parts()
        self._head: dict[str, Any] = {}
        self._fixed_head = Fixed({})

    def split(self, position: dict[str, Any]) -> dict[str, Any]:
        """Return a position for a boundary, with all that does not move in its head; `join_position` is the inverse."""
        head = position.copy()
        found: dict[str, Any] = {}
        for name in _OUTSIDE:
            found[name] = head.pop(name)
        if head.keys() != self._head.keys() or not all(map(is_, head.values(), self._head.values())):
            lasting = {name: self._parts.of(name, head[name]) for name in _LASTING if head.get(name) is not None}
            self._head, self._fixed_head = head, Fixed(head | lasting)
        if (index := found["index"]) is not None and "first_draw" in index:
            found["index"] = index | {"first_draw": self._parts.of("first_draw", index["first_draw"])}
        found["head"] = self._fixed_head
        return found


def join_position(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return the position of a boundary."""
    head: dict[str, Any] = recorded["head"]
    return {name: recorded[name] for name in _OUTSIDE} | head


_NO_NAME = re.compile(r"\W+")  # what a keyword cannot have


class LoaderPositions:
    """The positions of a run.

    Args:
        on_boundary: called by a position when the loop asks for its next batch.
        on_open: called by a position before an epoch, or the rest of one, is opened.
        on_doubt: called with what of the data is not recovered, in words, and True if the order is known to be wrong.
        on_loader: called with a position that is new.
        worker_seeds: for the positions (data/worker_seeds.py).

    Attributes:
        by_name: the positions, by the loader's name in the run.
    """

    def __init__(
        self,
        on_boundary: Callable[[LoaderPosition], None],
        on_open: Callable[[LoaderPosition], None],
        on_doubt: Callable[[str, bool], None],
        on_loader: Callable[[LoaderPosition], None],
        worker_seeds: str | None,
    ) -> None:
        self._on_boundary, self._on_open, self._on_doubt, self._on_loader = on_boundary, on_open, on_doubt, on_loader
        self._worker_seeds = worker_seeds
        self.by_name: dict[str, LoaderPosition] = {}
        self._unclaimed: dict[str, Any] = {}  # recorded positions of loaders that nobody has named yet
        self._lasting: defaultdict[str, LastingStates] = defaultdict(LastingStates)  # by loader

    def of(self, loader: DataLoader[Any], name: str, kind: type[LoaderPosition]) -> LoaderPosition:
        """Return the position in a loader; a loader has one.

        Raises:
            UsageError: it is not a DataLoader.
        """
        for position in self.by_name.values():
            if position.stands_for(loader):
                return position
        if not isinstance(loader, DataLoader):
            raise UsageError(
                advice_for_other_loader(loader)
                or (
                    f"expected a torch.utils.data.DataLoader, got a {type(loader).__name__}; for other sources there is "
                    "steps(until=...)"
                )
            )
        if name in self.by_name:
            name = f"{name}{len(self.by_name)}"
        position = self.by_name[name] = kind(loader, self._on_boundary, self._on_open, self._on_doubt, self._worker_seeds)
        if kind is LoaderPosition:
            self._on_loader(position)
        self._claim(name, position)
        return position

    @property
    def has_any(self) -> bool:
        """True if the run has a position in a loader, also in one that the script has not named yet."""
        return bool(self.by_name or self._unclaimed)

    def _claim(self, name: str, position: LoaderPosition) -> None:
        if name in self._unclaimed:
            position.load_state_dict(self._unclaimed.pop(name))

    def passed(self) -> dict[str, int]:
        """Return the batches handed out so far, by loader."""
        found: dict[str, int] = {}
        for name, position in self.by_name.items():
            found[name] = position.passed
        return found

    def read(self) -> dict[str, Any]:
        """Return the positions, by loader."""
        return self._unclaimed | {name: position.state_dict() for name, position in self.by_name.items()}

    def read_lasting(self) -> dict[str, Any]:
        """Return the positions for a boundary, split into what moves and what rarely changes."""
        found = self._unclaimed | self.by_name
        for name, position in found.items():
            found[name] = self._lasting[name].split(position.state_dict() if name in self.by_name else position)
        return found

    def write(self, recorded: dict[str, Any]) -> None:
        """Set the positions to recorded ones; those of loaders that come later are kept for them."""
        self._unclaimed = {name: join_position(position) for name, position in recorded.items()}
        for name, position in self.by_name.items():
            self._claim(name, position)

    def stop(self) -> None:
        """Let the loop that runs end, because the run was brought back to a later one."""
        for position in self.by_name.values():
            position.is_stopped = True

    def set_back(self) -> None:
        """Undo what else drew from the samplers and generators of loaders whose loop has not resumed yet."""
        for position in self.by_name.values():
            position.set_back()

    def caveats(self, is_kept: Callable[[Any], bool], face: Face) -> list[str]:
        """Return what is known not to be recovered of loaders in the middle of an epoch.

        Args:
            is_kept: returns True for a generator whose state the run keeps.
            face: whose words advice is given in.
        """
        found = [caveat for position in self.by_name.values() for caveat in position.caveats]
        for name, position in self.by_name.items():
            workers = position.loader.num_workers
            for place, generator in position.source.moved.lost():
                path = name + place
                if workers:
                    found.append(f"{_not_recovered(path)}: workers draw from copies. Let it draw from the global generators")
                elif generator is None or not is_kept(generator):
                    key = _NO_NAME.sub("_", path.rpartition(".")[2]).strip("_") or "rng"
                    found.append(f"{_not_recovered(path)}. {advise('generator', face).format(key=key, path=path)}")
        return found


def _not_recovered(path: str) -> str:
    return f"{path} is a random generator that belongs to the dataset, and its draws are not recovered"
