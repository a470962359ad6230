"""Trainers of a toy model, as the core's tests have them."""

from tests.core.conftest import closed, toy

__all__ = ["closed", "toy"]
