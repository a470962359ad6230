"""Kinds of torch's optimizers: those that update each element independently of others."""

from __future__ import annotations

import torch

# The update of an element depends on no other element; all state is by element, or a count of steps.
_NAMES = frozenset({"SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD"})


def is_by_element(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if an optimizer is of one of these classes of torch, and not of a subclass or a namesake."""
    kind = type(optimizer)
    return kind.__name__ in _NAMES and getattr(torch.optim, kind.__name__, None) is kind
