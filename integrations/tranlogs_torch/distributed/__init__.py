"""A run that several processes train together: who they are, how they divide the log, how they recover as one."""

from ..elastic.world_size import is_of_many, recover_alone, settle_in
from .coordinator import Together

__all__ = ["Together", "is_of_many", "recover_alone", "settle_in"]
