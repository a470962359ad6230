"""Decisions of a group: the generation and the boundary at which all ranks resume (pure, over summaries)."""
