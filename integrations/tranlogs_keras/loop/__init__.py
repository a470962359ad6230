"""A logged training loop of one's own: the script computes the gradients and calls `optimizer.apply`."""
