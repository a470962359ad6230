"""TranLogs for the Trainer of Hugging Face transformers."""

from .callback import TranLogsTrainerCallback

__all__ = ["TranLogsTrainerCallback"]
