"""Watching of journals: they are evaluated, pruned, sealed and shipped."""
