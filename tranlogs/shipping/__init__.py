"""To a store and back: sealed segments and checkpoints are sent, a manifest there names what counts, a new machine pulls it."""

from .archiver import Archiver, Limits, Progressed
from .manifest import Manifest, read_newest
from .pull import Pulled, pull

__all__ = ["Archiver", "Limits", "Manifest", "Progressed", "Pulled", "pull", "read_newest"]
