"""TranLogs inside the `learn` of Stable-Baselines3."""

from .callback import TranLogsSB3Callback

__all__ = ["TranLogsSB3Callback"]
