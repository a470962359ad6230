"""Checkpoints that are derived from the log, in a process beside the monitor."""
