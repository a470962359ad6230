"""Segment files: written, prepared ahead, aged and deleted."""
