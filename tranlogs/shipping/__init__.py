"""To a store and back: sealed segments and checkpoints are sent, a manifest there names what counts, a new machine pulls it."""

from .archiver import Archiver, Limits, Progressed
from .manifest import Manifest, place_of, read_newest
from .pull import Pulled, find_run, pull
from .throttle import Throttle

__all__ = ["Archiver", "Limits", "Manifest", "Progressed", "Pulled", "Throttle", "find_run", "place_of", "pull",
           "read_newest"]  # fmt: skip
