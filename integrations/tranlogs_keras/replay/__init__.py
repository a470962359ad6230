"""Redo, and a run without its training script."""
