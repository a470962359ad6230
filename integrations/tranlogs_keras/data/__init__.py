"""The position in the data: how `model.fit` is made to go on at a batch in the middle of an epoch."""

from .cursor import Cursor, Position
from .sources import describe_data, make_source, other_data

__all__ = ["Cursor", "Position", "describe_data", "make_source", "other_data"]
