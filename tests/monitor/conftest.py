"""Trainers of a toy model, as the core's tests have them."""

from tests.journal.conftest import closed, toy

__all__ = ["closed", "toy"]
