"""The identity of a fit: its description in the run, its comparison with other fits, and the folder that belongs to it."""

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
