"""What of a script starts over at each start, because the run does not keep it."""

from .notes import describe_restarts, describe_unset, describe_weights_read, lines_of, listed, name_of
from .restarts import Restarts, is_called_like_a_time
from .script_values import Framework

__all__ = [
    "Framework",
    "Restarts",
    "describe_restarts",
    "describe_unset",
    "describe_weights_read",
    "is_called_like_a_time",
    "lines_of",
    "listed",
    "name_of",
]
