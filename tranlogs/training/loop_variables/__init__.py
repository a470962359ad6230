"""What a script's loop takes from turn to turn in variables and objects that the run does not keep."""

from .descriptions import UnkeptNote, UnkeptObject, UnkeptVariable, describe_unkept, listed, read_unkept
from .unkept_variables import UnkeptVariables
from .variables import LoopVariables

__all__ = [
    "LoopVariables",
    "UnkeptNote",
    "UnkeptObject",
    "UnkeptVariable",
    "UnkeptVariables",
    "describe_unkept",
    "listed",
    "read_unkept",
]
