"""Kinds of torch's optimizers: those that update each element, or each tensor, independently of others."""

from __future__ import annotations

from collections.abc import Collection

import torch

# The update of an element depends on no other element; all state is by element, or a count of steps.
BY_ELEMENT = frozenset({"SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD"})
# The update of a tensor depends on no other tensor.
BY_TENSOR = BY_ELEMENT | {"Adafactor", "Muon"}


def is_one_of(kinds: Collection[str], optimizer: torch.optim.Optimizer) -> bool:
    """Return True if an optimizer is of one of these classes of torch, and not of a subclass or a namesake."""
    kind = type(optimizer)
    return kind.__name__ in kinds and getattr(torch.optim, kind.__name__, None) is kind
