"""Checkpoints of a journal: their schedule, the disk space for them, and the thread that writes them."""
