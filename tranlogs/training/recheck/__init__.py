"""A unit that training computes again after a crash, compared with its record."""

from .messages import NOT_PROVEN, PENDING, describe_difference, describe_equal, describe_unfinished, is_rounding
from .recheck import Recheck

__all__ = ["NOT_PROVEN", "PENDING", "Recheck", "describe_difference", "describe_equal", "describe_unfinished", "is_rounding"]
