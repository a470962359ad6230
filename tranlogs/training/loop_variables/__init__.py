"""Variables and objects that a script's loop carries from turn to turn, and that the run does not keep."""

from .carried_variables import LoopVariables
from .descriptions import UnkeptIterator, UnkeptNote, UnkeptObject, UnkeptVariable, describe_unkept, listed, read_unkept
from .objects.library_objects import LibraryObject
from .unkept_variables import UnkeptVariables

__all__ = [
    "LibraryObject",
    "LoopVariables",
    "UnkeptIterator",
    "UnkeptNote",
    "UnkeptObject",
    "UnkeptVariable",
    "UnkeptVariables",
    "describe_unkept",
    "listed",
    "read_unkept",
]
