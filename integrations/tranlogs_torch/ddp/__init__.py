"""DistributedDataParallel: how its sums round, how ranks divide the log of gradients, and ranks that run out of data."""
