"""Resumes are proven, as users have it."""

from tests.public.conftest import rechecks

__all__ = ["rechecks"]
