"""The position in the data: how `model.fit` is made to go on at a batch in the middle of an epoch."""

from .cursor import Cursor, Position
from .data_description import describe_content, describe_data, other_data
from .factory import make_source
from .validation import doubts_about_validation

__all__ = ["Cursor", "Position", "describe_content", "describe_data", "doubts_about_validation", "make_source", "other_data"]
