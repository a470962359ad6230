"""Rehearsal of a crash: a training script is run, killed, started again, and compared with a run that was not killed."""
