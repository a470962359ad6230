"""To a store and back: sealed segments and checkpoints are sent, a manifest there names what counts, a new machine pulls it."""

from .embedded import LAG_SECONDS, bring_absent, ship_along
from .fetching.pull import find_run, pull
from .fetching.replacement import Spare
from .inventory.listing import stored_runs
from .inventory.manifest import place_of, read_newest
from .sending.archiver import Archiver, Limits, Progressed
from .sending.throttle import Throttle

__all__ = [
    "LAG_SECONDS",
    "Archiver",
    "Limits",
    "Progressed",
    "Spare",
    "Throttle",
    "bring_absent",
    "find_run",
    "place_of",
    "pull",
    "read_newest",
    "ship_along",
    "stored_runs",
]
