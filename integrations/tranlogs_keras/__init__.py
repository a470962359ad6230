"""Keras training, brought back after a crash to the very batch, bit for bit.

    model.fit(x, y, epochs=20, callbacks=[TranLogsCallback("runs/mnist")])

Run the same script again after a crash, and it goes on where it stopped. A training loop of one's own wraps the optimizer:

    optimizer = LoggedOptimizer(keras.optimizers.Adam(), "runs/mnist", model)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .callback import TranLogsCallback
    from .optimizer import LoggedOptimizer

__all__ = ["LoggedOptimizer", "TranLogsCallback"]


def __getattr__(name: str) -> Any:
    """Import Keras with the first name: what replays a run without its script chooses the backend before."""
    if name == "TranLogsCallback":
        from .callback import TranLogsCallback

        return TranLogsCallback
    if name == "LoggedOptimizer":
        from .optimizer import LoggedOptimizer

        return LoggedOptimizer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
