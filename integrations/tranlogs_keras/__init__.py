"""Keras's `model.fit`, brought back after a crash to the very batch, bit for bit.

    model.fit(x, y, epochs=20, callbacks=[TranLogsCallback("runs/mnist")])

Run the same script again after a crash, and it goes on where it stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .callback import TranLogsCallback

__all__ = ["TranLogsCallback"]


def __getattr__(name: str) -> Any:
    """Keras is imported with the callback: what replays a run without its script chooses the backend before."""
    if name != "TranLogsCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .callback import TranLogsCallback

    return TranLogsCallback
