"""The training loop: boundaries between batches, and the run as a whole."""
