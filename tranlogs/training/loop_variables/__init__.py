"""Variables of a script's loop that a turn takes from the turn before it, and that the run does not keep."""

from .unkept_variables import UnkeptVariables
from .variables import LoopVariables, UnkeptVariable, describe_unkept, split_unkept

__all__ = ["LoopVariables", "UnkeptVariable", "UnkeptVariables", "describe_unkept", "split_unkept"]
