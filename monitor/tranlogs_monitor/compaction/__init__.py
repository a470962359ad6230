"""Checkpoints that are derived from the log, in a child process of the monitor."""
