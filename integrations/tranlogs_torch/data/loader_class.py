"""Classes of loaders and data sets.

A DataLoader's `for` is ours: Python looks `__iter__` up on the type, so the loader gets a subclass of its class.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader


def iterating(loader: Any, plain: Any, iterate: Callable[[], Iterator[Any]], **marks: Any) -> type:
    """Make a subclass of the loader's class whose `iter` is `iterate()`. Copies of the loader are of the plain class.

    Args:
        loader: the only object that gets the class.
        plain: its class.
        iterate: returns the iterator.
        marks: attributes of the subclass.
    """

    def __iter__(self: Any) -> Iterator[Any]:
        return iterate() if self is loader else plain.__iter__(self)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        found = plain.__reduce_ex__(self, protocol)
        if isinstance(found, str):
            return found
        make, arguments, *rest = found
        own = type(self)
        if make is copyreg.__newobj__:  # type: ignore[attr-defined]  # pickle compares its class with the object's
            make = object.__new__
        return (plain if make is own else make, tuple(plain if a is own else a for a in arguments), *rest)

    return type(
        plain.__name__,
        (plain,),
        {
            "__iter__": __iter__,
            "__reduce_ex__": __reduce_ex__,
            "__module__": plain.__module__,
            "__doc__": plain.__doc__,
            "__qualname__": plain.__qualname__,
            "_tranlogs_plain": plain,
            **marks,
        },
    )


class DatasetProxy:
    """A map-style dataset that is the given one in all but how a batch is loaded."""

    def __init__(self, dataset: Any) -> None:
        self.__dict__["_dataset"] = dataset

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the dataset: a worker's code may ask isinstance(get_worker_info().dataset, ...)."""
        return type(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "_dataset":  # while it is being unpickled
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    def __reduce__(self) -> Any:
        return type(self), (self._dataset,)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        return self._dataset[index]

    def __getitems__(self, indices: Any) -> Any:
        if getattr(self._dataset, "__getitems__", None):
            return self._dataset.__getitems__(indices)
        return [self._dataset[index] for index in indices]


def advice_for_other_loader(thing: Any) -> str | None:
    """Return what to write in place of a loader that is no torch DataLoader; None for what is no loader."""
    kind = f"{type(thing).__module__.partition('.')[0]}'s {type(thing).__name__}"
    attributes = vars(thing) if hasattr(thing, "__dict__") else {}
    inner = next((name for name, value in attributes.items() if isinstance(value, DataLoader)), None)
    if inner is not None:
        return (
            f"expected a torch DataLoader, got {kind}. It iterates over the one in its attribute {inner!r}: take the "
            f"batches from that loader, optimizer.batches(loader.{inner}, until=N), and prepare them in the body of the "
            "loop"
        )
    if hasattr(thing, "__iter__") and ("dataset" in attributes or "Loader" in type(thing).__name__):
        return (
            f"expected a torch DataLoader, got {kind}, whose position cannot be recovered. Make a "
            "torch.utils.data.DataLoader of its dataset for optimizer.batches(loader, until=N); or take the steps from "
            "optimizer.steps(until=N, stateless=True), and track an object whose state_dict and load_state_dict hold the "
            "position in the data"
        )
    return None
