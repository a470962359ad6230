"""The base class by which other modules recognize the callback of TranLogs among those of a trainer."""

from __future__ import annotations

import lightning.pytorch as pl


class TranLogsCallback(pl.Callback):  # type: ignore[misc]
    """The callback of TranLogs; see `callback.TranLogsLightningCallback`."""
