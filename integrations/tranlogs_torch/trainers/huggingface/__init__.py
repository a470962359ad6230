"""TranLogs for the Trainer of Hugging Face transformers."""

from .loop import TranLogsTrainerCallback

__all__ = ["TranLogsTrainerCallback"]
