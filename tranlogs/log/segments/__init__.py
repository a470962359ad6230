"""Segment files: their format on disk, preallocation, size, age limit and deletion."""
