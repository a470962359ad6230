"""TranLogs for the Trainer of Lightning."""

from .callback import TranLogsLightningCallback

__all__ = ["TranLogsLightningCallback"]
