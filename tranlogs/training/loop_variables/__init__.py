"""What a script's loop takes from turn to turn in variables and objects that the run does not keep."""

from .descriptions import UnkeptIterator, UnkeptNote, UnkeptObject, UnkeptVariable, describe_unkept, listed, read_unkept
from .objects.library_objects import LibraryObject
from .unkept_variables import UnkeptVariables
from .variables import LoopVariables

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
