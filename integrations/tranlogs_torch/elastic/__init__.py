"""A run that goes on over another number of processes."""
