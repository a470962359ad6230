"""The namespace that `remember` returns."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ...base.errors import UsageError


class Remembered:
    """A loop's own state: plain attributes, which have their values of the crash step after `recover()`.

        state = optimizer.remember(best=0.0, x=x, y=y)
        state.best = max(state.best, accuracy)

    A new attribute is remembered from its first assignment on. A copy is a plain namespace that nobody remembers.
    """

    __slots__ = ("__dict__", "__weakref__", "_tranlogs_check")
    _tranlogs_check: Callable[[str, Any], None]

    def __init__(self, check: Callable[[str, Any], None]) -> None:
        object.__setattr__(self, "_tranlogs_check", check)

    def __setattr__(self, name: str, value: Any) -> None:
        self._tranlogs_check(name, value)
        vars(self)[name] = value

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name!r} is not remembered; give it to remember(...), or assign it first", name=name, obj=self)

    def __delattr__(self, name: str) -> None:
        raise UsageError(f"state.{name} is remembered and cannot be deleted. Assign None to it")

    def __repr__(self) -> str:
        return f"Remembered({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return SimpleNamespace, (), dict(vars(self))
