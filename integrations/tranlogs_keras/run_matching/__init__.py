"""The identity of a fit: what its run records of it, how another fit is told from it, and which folder belongs to which fit."""

from .finished_fits import FinishedFits
from .fit_comparison import changed_rates, check_identity, compare_identities, digest_identity
from .fit_description import describe_identity
from .folders import claim_folder

__all__ = [
    "FinishedFits",
    "changed_rates",
    "check_identity",
    "claim_folder",
    "compare_identities",
    "describe_identity",
    "digest_identity",
]
