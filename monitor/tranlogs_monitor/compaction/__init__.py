"""Checkpoints made from the log, in a process beside the monitor."""
