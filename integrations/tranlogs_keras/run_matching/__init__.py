"""The identity of a fit: what its run records of it, how another fit is told from it, and which folder belongs to which fit."""

from .comparison import changed_rates, check_identity, compare_identities, digest_identity
from .description import describe_identity
from .folders import claim_folder
from .process import FinishedFits

__all__ = [
    "FinishedFits",
    "changed_rates",
    "check_identity",
    "claim_folder",
    "compare_identities",
    "describe_identity",
    "digest_identity",
]
