"""A DataLoader whose `for` is ours: Python looks `__iter__` up on the type, so the loader gets a subclass of its class."""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterator
from typing import Any


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
