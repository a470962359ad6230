"""Segments and checkpoints as items to send: the order of uploads, and the verified bytes of each item."""
