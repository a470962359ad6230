"""A unit that training computes again after a crash, compared with its record."""

from .comparison import (
    CHANGED_BEFORE,
    CHANGED_NOW,
    LEFT_NOW,
    describe_moved,
    describe_script_change,
    find_changed_elements,
    is_below,
    is_set_as_a_whole,
)
from .messages import (
    CAUSES,
    NO_UNIT,
    PENDING,
    REMEMBERED_NAMES,
    describe_difference,
    describe_equal,
    describe_not_computed,
    describe_unfinished,
    is_rounding,
    path_of_remembered,
)
from .recheck import Recheck
from .recomputed_unit import RecomputedUnit

__all__ = [
    "CAUSES",
    "CHANGED_BEFORE",
    "CHANGED_NOW",
    "LEFT_NOW",
    "NO_UNIT",
    "PENDING",
    "REMEMBERED_NAMES",
    "Recheck",
    "RecomputedUnit",
    "describe_difference",
    "describe_equal",
    "describe_moved",
    "describe_not_computed",
    "describe_script_change",
    "describe_unfinished",
    "find_changed_elements",
    "is_below",
    "is_rounding",
    "is_set_as_a_whole",
    "path_of_remembered",
]
