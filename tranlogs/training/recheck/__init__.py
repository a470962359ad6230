"""A unit that training computes again after a crash, compared with its record."""

from .comparison import (
    LEFT_NOW,
    describe_script_change,
    is_below,
)
from .messages import (
    CAUSES,
    NOTHING_RECORDED,
    PENDING,
    REMEMBERED_NAMES,
    SHOWS_NO_TENSORS,
    describe_difference,
    describe_equal,
    describe_not_computed,
    describe_superseded,
    describe_unfinished,
    is_rounding,
    name_missing_unit,
    path_of_remembered,
)
from .recheck import PASSES, UnitComparison
from .recomputed_unit import RecomputedUnit

__all__ = [
    "CAUSES",
    "LEFT_NOW",
    "NOTHING_RECORDED",
    "PASSES",
    "PENDING",
    "REMEMBERED_NAMES",
    "SHOWS_NO_TENSORS",
    "RecomputedUnit",
    "UnitComparison",
    "describe_difference",
    "describe_equal",
    "describe_not_computed",
    "describe_script_change",
    "describe_superseded",
    "describe_unfinished",
    "is_below",
    "is_rounding",
    "name_missing_unit",
    "path_of_remembered",
]
