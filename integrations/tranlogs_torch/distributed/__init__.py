"""A run that several processes train together: who they are, how they divide the log, how they recover as one."""

from .together import Together

__all__ = ["Together"]
