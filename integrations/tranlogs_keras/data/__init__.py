"""The position in the data: how `model.fit` is made to go on at a batch in the middle of an epoch."""

from .cursor import Cursor, Position
from .sources import Source, make_source

__all__ = ["Cursor", "Position", "Source", "make_source"]
