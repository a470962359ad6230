"""Segments and checkpoints as items to be sent: which come next, and their verified bytes."""
