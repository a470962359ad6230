"""A DataLoader whose drawing of indices is recorded: a proxy takes the place of its index sampler (sampler.py)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from tranlogs.base.errors import UsageError

from .generators import MovedGenerators
from .loader_class import SeededDataset, check_workers
from .loader_iteration import Rest, division_of, rest_of
from .sampler import Draws, SamplerStates, SeekableSampler, nested


class TrackedLoader:
    """A DataLoader with the sources of its order: samplers, generators, workers.

    Args:
        loader: the loader; its index sampler is replaced by a proxy.
        on_doubt: called with a text on what a resume does not bring back, and whether the order is known to be wrong.
        worker_seeds: "batch" seeds each batch's random numbers in the workers.

    Attributes:
        loader: the loader.
        plain_class: class of the loader, below a class that iterates in another way (loader_class.py).
        is_iterable: True if the dataset is an IterableDataset.
        samplers: states of the samplers, outer and inner.
        generators: generators of the loader and its samplers.
        worker_seeds: as given; None if the loader has no workers or no indices.
        moved: random generators of the dataset that passes have moved.
    """

    def __init__(self, loader: DataLoader[Any], on_doubt: Callable[[str, bool], None], worker_seeds: str | None = None) -> None:
        if any("__class__" in vars(kind) for kind in type(loader).__mro__[:-1]):  # a wrapper that only claims to be a loader
            raise UsageError(
                f"a {type(loader).__name__} is already a wrapped loader. If accelerate prepared it, use "
                "tranlogs_torch.trainers.accelerate.log_prepared(...)"
            )
        self.loader = loader
        self.plain_class: Any = getattr(type(loader), "_tranlogs_plain", type(loader))
        self.is_iterable = isinstance(loader.dataset, IterableDataset)
        self.moved = MovedGenerators(loader.dataset)
        self._proxy: SeekableSampler | None = None
        self._proxied = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        sampler = getattr(loader, self._proxied)
        self._sampler = sampler = sampler.sampler if isinstance(sampler, SeekableSampler) else sampler
        self.samplers = SamplerStates([] if self.is_iterable else [*nested(sampler), loader.sampler])
        found = [getattr(part, "generator", None) for part in (loader, *self.samplers.samplers)]
        self.generators = list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())
        # A user's class whose __iter__ is a generator asks for its sampler later than the proxy expects: read it again.
        if not self.is_iterable and not inspect.isgeneratorfunction(self.plain_class.__iter__):
            self._proxy = SeekableSampler(sampler, self.generators, on_doubt)
            self._set_sampler(self._proxy)
        self.worker_seeds = worker_seeds if self.has_indices and loader.num_workers else None
        if self.worker_seeds is not None:
            check_workers(loader)

    def release(self) -> None:
        """Give the loader its own sampler back."""
        if self._proxy is not None and self.loader.__dict__.get(self._proxied) == self._proxy:
            self._set_sampler(self._proxy.sampler)

    def _set_sampler(self, sampler: Any) -> None:
        self.loader.__dict__[self._proxied] = sampler  # the public setter refuses
        if self.has_started_workers:  # persistent ones, which have served another pass
            self.loader._iterator._index_sampler = sampler  # type: ignore[union-attr]

    @property
    def has_indices(self) -> bool:
        """True if a resume draws skipped indices again; False if it reads skipped batches again."""
        return self._proxy is not None

    @property
    def sampler(self) -> Any:
        """The loader's own batch sampler, or its sampler if it makes no batches."""
        return self._sampler

    @property
    def index_sampler(self) -> Any:
        """The loader's sampler, which gives one index at a time if the loader makes batches of them."""
        return self._sampler if self._proxied == "sampler" else self.loader.sampler

    @property
    def division(self) -> dict[str, Any] | None:
        """The facts that determine the division of the epoch among processes; None if the sampler is no DistributedSampler."""
        return division_of(self._sampler)

    def rest(self, rest: Rest) -> Any:
        """Return this process's part of an epoch that was divided anew."""
        return rest_of(self._sampler, rest)

    @property
    def sizes(self) -> dict[str, Any]:
        """The options on which the meaning of a recorded position depends."""
        loader = self.loader
        samples = len(loader.dataset) if hasattr(loader.dataset, "__len__") else None
        return {
            "batch_size": loader.batch_size,
            "drop_last": loader.drop_last,
            "samples": samples,
            "worker_seeds": self.worker_seeds,
        }

    @property
    def length(self) -> int | None:
        """Number of batches of an epoch; None if that is not known."""
        try:
            return None if self.is_iterable else len(self.loader)
        except (TypeError, NotImplementedError):  # a sampler without a length
            return None

    @property
    def has_persistent_workers(self) -> bool:
        """True if the loader has workers that serve all epochs."""
        return bool(self.loader.persistent_workers and self.loader.num_workers)

    @property
    def has_started_workers(self) -> bool:
        """True if the loader keeps an iterator whose workers run from epoch to epoch."""
        return getattr(self.loader, "_iterator", None) is not None

    def set_sources(self, state: dict[str, Any]) -> None:
        """Set samplers and generators to a recorded position."""
        self.samplers.write(state["samplers"])
        for generator, own in zip(self.generators, state["generators"], strict=False):
            generator.set_state(own.clone())

    def iterate(self, draws: Draws | None) -> Iterator[Any]:
        """Return an iterator whose draws of indices are recorded in `draws`."""
        if self._proxy is None:
            return self.iterate_plainly()
        self._proxy.opening = draws
        try:
            return self.iterate_plainly()
        finally:
            self._proxy.opening = None

    def iterate_plainly(self) -> Iterator[Any]:
        """Return an iterator of the loader's own class; workers take seeds if `worker_seeds` is given."""
        loader = self.loader
        dataset = loader.dataset
        if loader.num_workers and not self.is_iterable:
            if self.has_persistent_workers and self.has_started_workers and not self.moved.is_watched:
                self.moved.note_unwatched()
            loader.__dict__["dataset"] = self.moved.watched_by_workers()
        if self.worker_seeds is not None:
            loader.__dict__["dataset"] = SeededDataset(loader.dataset)
        try:
            return self.plain_class.__iter__(loader)  # type: ignore[no-any-return]
        finally:
            loader.__dict__["dataset"] = dataset
