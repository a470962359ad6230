"""Watching of journals: evaluation, pruning, sealing and shipping."""
