"""Journals under watch: evaluated, pruned, sealed and archived."""
