"""The data of a loop of the script's own, and the place in them."""

from .data_place import UNKNOWN_ITERABLE, DataPlace
from .loop_data import LoopData

__all__ = ["UNKNOWN_ITERABLE", "DataPlace", "LoopData"]
