"""Uploads of segments and checkpoints, and the threads that send them."""
