"""State of the user's loop that comes back after a crash: `state = optimizer.remember(iter_num=0, best=inf)`."""

from .loop_state import LoopState, Remembered, demand_storable
from .number_lists import NumberLists, restore_numbers
from .storing import SCALARS, FrameworkValues, Unstorable

__all__ = [
    "SCALARS",
    "FrameworkValues",
    "LoopState",
    "NumberLists",
    "Remembered",
    "Unstorable",
    "demand_storable",
    "restore_numbers",
]
